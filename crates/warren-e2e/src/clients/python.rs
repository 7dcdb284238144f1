//! Sets up the published Python clients, each in an environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use warren_testkit::kube::Cache;

use super::{Side, mask, run};

/// A Python with the client installed.
#[derive(Debug, Clone)]
pub struct Python {
    program: PathBuf,
}

/// Finds the environment in the cache, or makes it: pinned versions, from pip's configured source.
///
/// # Errors
///
/// Fails with the reason: no Python here, or no way to get packages.
pub fn python() -> Result<Python, String> {
    Ok(Python { program: python_with("requirements.txt", None)? })
}

/// Does the same with a version of agent-sandbox's SDK.
///
/// # Errors
///
/// As above.
pub fn python_with_sdk(version: &str) -> Result<Python, String> {
    let package = format!("k8s-agent-sandbox=={version}");
    Ok(Python { program: python_with("sdk-requirements.txt", Some(&package))? })
}

/// Finds the environment with the requirements of a file in `clients` and one more package, or
/// makes it; returns its Python.
///
/// # Errors
///
/// Fails with the reason: no Python here, or no way to get packages.
pub fn python_with(requirements: &str, package: Option<&str>) -> Result<PathBuf, String> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(requirements);
    let mut text = std::fs::read(&requirements).map_err(|error| error.to_string())?;
    text.extend(package.into_iter().flat_map(str::bytes));
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name)).map_err(|error| error.to_string())?;
    let directory = cache.programs().with_file_name(format!("python-{hash:016x}"));
    let finished = directory.join("finished");
    let program = directory.join("bin/python");
    if !finished.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
        run(Command::new(&program)
            .args(["-m", "pip", "install", "--quiet", "--requirement"])
            .arg(&requirements)
            .args(package))?;
        std::fs::write(&finished, "").map_err(|error| error.to_string())?;
    }
    Ok(program)
}

impl Python {
    /// Runs the script on a side; returns its output, masked.
    ///
    /// # Errors
    ///
    /// Returns all of its output if it failed.
    pub fn transcript(&self, side: &Side) -> Result<String, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/transcript.py");
        let mut command = Command::new(&self.program);
        command.arg(script).arg(&side.kubeconfig).env_remove("KUBECONFIG");
        run(&mut command).map(|text| mask(&text))
    }

    /// Uses the SDK as `clients/sdk.py` does; returns its output.
    ///
    /// # Errors
    ///
    /// Returns all of its output if it failed.
    pub fn use_sdk(&self, command: impl FnOnce(&mut Command) -> &mut Command) -> Result<String, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/sdk.py");
        let mut python = Command::new(&self.program);
        python.arg(script);
        run(command(&mut python))
    }
}
