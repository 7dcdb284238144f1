//! Writes the list of the web page's files, so that the program carries them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("ui");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    find(&root, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        let _ = writeln!(table, "    ({name:?}, include_bytes!({:?})),", file.display().to_string());
    }
    table.push_str("]\n");
    let output = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("ui.rs");
    std::fs::write(output, table)
}

fn find(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => find(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
