//! A small daemon for the tests. It starts a zygote, which is this program again. It reads pod
//! requests from standard input, one JSON document per line, spawns a shim for each, and answers
//! with the shim's pid.
//!
//! `warren-oci-harness measure [STARTS]` measures the steps of a start. With
//! `WARREN_OCI_LAYERING=attached` overlays are made as kernels before 6.15 need them.

mod measure;

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use warren_oci::kernel::Layering;
use warren_oci::protocol::PodRequest;
use warren_oci::zygote::{self, Zygote};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args();
    if arguments.next().as_deref() == Some(zygote::NAME) {
        return Ok(zygote::run());
    }
    match arguments.next().as_deref() {
        Some("measure") => {
            let starts = arguments.next().map_or(Ok(200), |text| text.parse())?;
            measure::run(&start_zygote()?, starts)
        }
        Some("serve") => serve(),
        _ => Err("usage: warren-oci-harness serve | measure [STARTS]".into()),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn start_zygote() -> Result<Zygote, Box<dyn std::error::Error>> {
    let layering = match std::env::var("WARREN_OCI_LAYERING").as_deref() {
        Ok("attached") => Some(Layering::Attached),
        Ok(other) => return Err(format!("`{other}` is not a layering: `attached` is").into()),
        Err(_) => None,
    };
    Ok(Zygote::start_with(Path::new("/proc/self/exe"), layering)?)
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let zygote = start_zygote()?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", zygote.pid())?;
    for line in std::io::stdin().lock().lines() {
        let pod: PodRequest = serde_json::from_str(&line?)?;
        let shim = zygote.spawn_shim(&pod)?;
        writeln!(output, "{}", shim.pid)?;
    }
    Ok(())
}
