//! The program that a process becomes: its file, found as a shell would find it, its arguments and
//! environment.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;

use warren_sys::process;

use super::rootfs::{Step as _, StepError};
use crate::defaults;

#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    /// The files that the name may refer to, in order.
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    /// Creates it from program and arguments, and `NAME=value` lines. A name without a slash is
    /// looked up in their `PATH`.
    pub(crate) fn new(arguments: &[String], environment: &[String]) -> Result<Self, StepError> {
        let step = || "read arguments and environment".to_owned();
        let texts = |lines: &[String]| -> io::Result<Vec<CString>> {
            lines.iter().map(|line| CString::new(line.as_str()).map_err(io::Error::from)).collect()
        };
        let Some(name) = arguments.first() else {
            return Err(io::Error::other("there is no program to run")).step(step);
        };
        let (arguments, environment) = (texts(arguments).step(step)?, texts(environment).step(step)?);
        Ok(Self { name: name.clone(), candidates: candidates(name, &environment), arguments, environment })
    }

    /// Executes the program. Returns only on error.
    pub(crate) fn run(&self) -> Result<Infallible, StepError> {
        let step = || format!("run `{}`", self.name);
        let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "executable file not found in $PATH"));
        for candidate in &self.candidates {
            match process::execute(candidate, &self.arguments, &self.environment) {
                // Try the next directory. If all fail, return the first error that is not "not
                // found".
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    if self.name.contains('/') {
                        result = Err(error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => result = Err(error),
                other => return other.step(step),
            }
        }
        result.step(step)
    }
}

fn candidates(program: &str, environment: &[CString]) -> Vec<CString> {
    if program.contains('/') {
        return CString::new(program).into_iter().collect();
    }
    let path = environment
        .iter()
        .find_map(|line| line.to_str().ok()?.strip_prefix("PATH="))
        .unwrap_or(defaults::PATH);
    path.split(':')
        .map(|directory| if directory.is_empty() { "." } else { directory })
        .filter_map(|directory| CString::new(format!("{directory}/{program}")).ok())
        .collect()
}
