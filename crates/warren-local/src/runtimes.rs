//! Further runtimes that pods may request by class: those that were named, and `runsc` if it is
//! found.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::str::FromStr;

use tracing::warn;
use warren_oci::privileges::Privileges;
use warren_oci::protocol::{RuntimeKind, RuntimeProgram};

/// The usual class of `runsc`.
const GVISOR: &str = "gvisor";

/// A runtime class and its program, as `NAME=PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRuntime {
    /// The class.
    pub name: String,
    /// The program.
    pub path: PathBuf,
}

/// An error of a runtime.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The text is not `NAME=PATH`.
    #[error("`{0}` is not NAME=PATH, with a name such as `gvisor` and an absolute path")]
    Text(String),
    /// The program cannot be run.
    #[error("run `{}` of runtime `{name}`", path.display())]
    Run {
        /// The class.
        name: String,
        /// The program.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The program does not identify itself.
    #[error("`{} --version` of runtime `{name}` says: {said}", path.display())]
    Version {
        /// The class.
        name: String,
        /// The program.
        path: PathBuf,
        /// The output instead.
        said: String,
    },
    /// Only root can name runtimes.
    #[error("runtime `{name}` is for the homes of root: an ordinary user's pods are run by Warren itself")]
    NotRoot {
        /// The class.
        name: String,
    },
}

impl FromStr for NamedRuntime {
    type Err = RuntimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || RuntimeError::Text(text.to_owned());
        let (name, path) = text.split_once('=').ok_or_else(bad)?;
        // The name must be a DNS label, as the API requires of a handler.
        let is_label = (1..=63).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        if !is_label || !Path::new(path).is_absolute() {
            return Err(bad());
        }
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

/// Returns the runtimes that work here, by class. A named one that does not work is an error. One
/// that was only found causes a warning. Only root can have any: an ordinary user's containers need
/// features that only our own runtime has.
pub(crate) fn find(
    privileges: Privileges,
    named: &[NamedRuntime],
    path: Option<&OsStr>,
) -> Result<BTreeMap<String, RuntimeProgram>, RuntimeError> {
    let mut found = BTreeMap::new();
    if privileges != Privileges::Machine {
        let asked_for = named.first().map(|runtime| RuntimeError::NotRoot { name: runtime.name.clone() });
        return asked_for.map_or(Ok(found), Err);
    }
    for runtime in named {
        found.insert(runtime.name.clone(), identify(&runtime.name, &runtime.path)?);
    }
    if !found.contains_key(GVISOR)
        && let Some(program) = path.and_then(|path| in_path(path, "runsc"))
    {
        match identify(GVISOR, &program) {
            Ok(program) => {
                found.insert(GVISOR.to_owned(), program);
            }
            Err(error) => warn!(%error, "runsc is there, and does not work"),
        }
    }
    Ok(found)
}

fn in_path(path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

fn identify(name: &str, path: &Path) -> Result<RuntimeProgram, RuntimeError> {
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|source| RuntimeError::Run {
        name: name.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    match kind(&output) {
        Some(kind) => Ok(RuntimeProgram { path: path.to_owned(), kind }),
        None => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = said.lines().next().unwrap_or_default().chars().take(200).collect();
            Err(RuntimeError::Version { name: name.to_owned(), path: path.to_owned(), said })
        }
    }
}

/// Reads the kind of runtime. All print `NAME version NUMBER` first; Kata's prints `NAME : NUMBER`.
fn kind(output: &Output) -> Option<RuntimeKind> {
    let said = String::from_utf8_lossy(&output.stdout);
    let mut words = said.lines().next()?.split_ascii_whitespace();
    let program = words.next()?;
    if !output.status.success() || !["version", ":"].contains(&words.next()?) {
        return None;
    }
    Some(if program == "runsc" { RuntimeKind::Gvisor } else { RuntimeKind::Plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_a_label_and_an_absolute_path() {
        let good = "kata-2=/opt/kata/bin/kata-runtime".parse::<NamedRuntime>().unwrap();
        assert_eq!((good.name.as_str(), good.path), ("kata-2", PathBuf::from("/opt/kata/bin/kata-runtime")));
        for bad in ["", "gvisor", "=/bin/runsc", "G=/bin/runsc", "-a=/bin/x", "a=runsc", "a=", "a.b=/x"] {
            assert!(bad.parse::<NamedRuntime>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_program_that_is_no_runtime_is_refused_by_name() {
        let named = |path: &str| [NamedRuntime { name: "odd".to_owned(), path: path.into() }];
        let error = find(Privileges::Machine, &named("/nowhere/at/all"), None).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
        let error = find(Privileges::Machine, &named("/bin/true"), None).unwrap_err();
        assert!(error.to_string().contains("odd"), "{error}");
    }

    #[test]
    fn ordinary_users_have_no_other_runtimes() {
        let named = [NamedRuntime { name: "odd".to_owned(), path: "/bin/true".into() }];
        let error = find(Privileges::Ordinary, &named, None).unwrap_err();
        assert!(error.to_string().contains("homes of root"), "{error}");
        assert_eq!(find(Privileges::Ordinary, &[], Some(OsStr::new("/usr/bin"))).unwrap(), BTreeMap::new());
    }
}
