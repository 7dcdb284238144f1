//! Calls the cargo that runs this program.

use std::ffi::OsString;
use std::process::Command;

/// The prefixes of variables with which cargo describes a program's package.
const ABOUT_A_PACKAGE: [&str; 5] =
    ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_PRIMARY_"];

/// Returns a command for cargo without variables about the calling package. Some build scripts read
/// them, and if they change, cargo builds half the tree again.
pub fn cargo(variable: impl Fn(&str) -> Option<OsString>) -> Command {
    let mut command = Command::new(variable("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ABOUT_A_PACKAGE.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsStr;

    #[test]
    fn the_caller_s_package_is_not_passed_on() {
        let command = super::cargo(|_| None);
        let removed: BTreeSet<&OsStr> =
            command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(removed.contains(OsStr::new("CARGO_PKG_NAME")), "{removed:?}");
        assert_eq!(command.get_program(), "cargo");
    }
}
