//! Runs commands of the second program: this process is replaced by `warren-service`.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::cli;

const PROGRAM: &str = "warren-service";

/// The error if the second program is not installed.
#[derive(Debug, thiserror::Error)]
#[error("there is no `{PROGRAM}` beside `{}` and none in PATH", own.display())]
pub struct NoService {
    /// The path of this program.
    own: PathBuf,
}

/// Replaces this process by `warren-service` with a subcommand and its arguments.
pub fn exec(subcommand: &str, service: &cli::Service) -> anyhow::Result<Infallible> {
    let own = std::env::current_exe().context("find this program's own file")?;
    let program = find(&own, std::env::var_os("PATH").as_deref()).ok_or(NoService { own })?;
    let error = Command::new(&program).arg(subcommand).args(&service.arguments).exec();
    Err(error).with_context(|| format!("start `{}`", program.display()))
}

/// Finds the program beside this one, else in `PATH`.
fn find(own: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let beside = own.with_file_name(PROGRAM);
    let elsewhere = path.into_iter().flat_map(std::env::split_paths).map(|directory| directory.join(PROGRAM));
    std::iter::once(beside).chain(elsewhere).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_beside_this_program_goes_before_one_in_path() {
        let directory = tempfile::tempdir().expect("make a directory");
        let (bin, other) = (directory.path().join("bin"), directory.path().join("other"));
        for directory in [&bin, &other] {
            std::fs::create_dir(directory).expect("make a directory");
            std::fs::write(directory.join(PROGRAM), "").expect("write");
        }
        let own = bin.join("warren");
        assert_eq!(find(&own, Some(other.as_os_str())), Some(bin.join(PROGRAM)));
        std::fs::remove_file(bin.join(PROGRAM)).expect("remove");
        assert_eq!(find(&own, Some(other.as_os_str())), Some(other.join(PROGRAM)));
        assert_eq!(find(&own, None), None);
    }
}
