//! Compiles `init/main.rs`, a program without standard library and libc. This crate's library
//! contains it as bytes.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    const SOURCE: &str = "init/main.rs";
    println!("cargo::rerun-if-changed={SOURCE}");
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets `{name}`"));
    let program = PathBuf::from(variable("OUT_DIR")).join("init");
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args(["--edition", "2024", "--crate-name", "init", "--target"]).arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        compiler.arg("-C").arg(format!("linker={}", linker.display()));
    }
    for option in
        ["opt-level=s", "panic=abort", "force-unwind-tables=no", "relocation-model=static", "strip=symbols"]
    {
        compiler.args(["-C", option]);
    }
    for option in ["-nostartfiles", "-nostdlib", "-static", "-Wl,--build-id=none"] {
        compiler.args(["-C", &format!("link-arg={option}")]);
    }
    let status = compiler.arg("-o").arg(&program).arg(SOURCE).status().expect("run the compiler");
    assert!(status.success(), "the compiler could not make the containers' init of `{SOURCE}`: {status}");
}
