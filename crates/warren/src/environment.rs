//! Environment variables for a command: chooses which are passed, and writes the file that carries
//! them into the sandbox.
//!
//! Values never become arguments, part of a URL or of an object: those can be seen by other users,
//! in logs and in audits.

use std::collections::BTreeMap;

/// Variables that are never passed to a sandbox, not even on request.
pub const BLOCKED: [&str; 16] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DATABASE_URL",
    "DB_PASSWORD",
    "ENCRYPTION_KEY",
    "JWT_SECRET",
    "MYSQL_PASSWORD",
    "POSTGRES_PASSWORD",
    "PRIVATE_KEY",
    "REDIS_PASSWORD",
    "SECRET_KEY",
    "SENDGRID_API_KEY",
    "SIGNING_KEY",
    "SSH_PRIVATE_KEY",
    "STRIPE_SECRET_KEY",
    "TWILIO_AUTH_TOKEN",
];

/// Variables that a command on a terminal gets by default.
const ON_A_TERMINAL: [&str; 2] = ["TERM", "COLORTERM"];

/// The error of a variable that cannot be passed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// It is one of [`BLOCKED`].
    #[error("`--env {0}`: variables of this name hold secrets and are never passed to a sandbox")]
    Blocked(String),
    /// It is not set here.
    #[error("`--env {0}`: there is no such variable here; write `{0}=VALUE` to set it")]
    Missing(String),
    /// Its name is not valid in a shell.
    #[error("`--env {0}`: a name has letters, digits and `_`, and does not begin with a digit")]
    Name(String),
}

/// Returns the variables for a command. `wishes` are `NAME` or `NAME=VALUE`; a later one wins.
/// `here` looks up a variable of this process.
pub fn variables(
    wishes: &[String],
    on_a_terminal: bool,
    here: impl Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut variables = BTreeMap::new();
    if on_a_terminal {
        let own = ON_A_TERMINAL.iter().filter_map(|name| Some(((*name).to_owned(), here(name)?)));
        variables.extend(own);
    }
    for wish in wishes {
        let (name, value) = match wish.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (wish.as_str(), None),
        };
        if !is_name(name) {
            return Err(EnvironmentError::Name(name.to_owned()));
        }
        if BLOCKED.contains(&name) {
            return Err(EnvironmentError::Blocked(name.to_owned()));
        }
        let value = value.or_else(|| here(name)).ok_or_else(|| EnvironmentError::Missing(name.to_owned()))?;
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

fn is_name(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && letters.all(|letter| letter == b'_' || letter.is_ascii_alphanumeric())
}

/// Returns the variables as a script that exports them.
pub fn script(variables: &BTreeMap<String, String>) -> String {
    let quoted = |value: &str| value.replace('\'', r"'\''");
    variables.iter().map(|(name, value)| format!("export {name}='{}'\n", quoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(name: &str) -> Option<String> {
        [("TOKEN", "t"), ("TERM", "xterm-256color"), ("SECRET_KEY", "s")]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    }

    fn build(wishes: &[&str], terminal: bool) -> Result<String, EnvironmentError> {
        let wishes: Vec<String> = wishes.iter().map(|wish| (*wish).to_owned()).collect();
        variables(&wishes, terminal, here).map(|variables| script(&variables))
    }

    #[test]
    fn nothing_is_passed_without_being_asked_for_but_the_kind_of_terminal() {
        assert_eq!(build(&[], false), Ok(String::new()));
        assert_eq!(build(&[], true), Ok("export TERM='xterm-256color'\n".to_owned()));
        assert_eq!(build(&["TERM=dumb"], true), Ok("export TERM='dumb'\n".to_owned()));
    }

    #[test]
    fn values_are_set_or_taken_from_here_and_quoted() {
        let script = "export A='it'\\''s $HOME\n=b'\nexport TOKEN='t'\n";
        assert_eq!(build(&["TOKEN", "A=it's $HOME\n=b"], false), Ok(script.to_owned()));
        assert_eq!(build(&["A=1", "A=2"], false), Ok("export A='2'\n".to_owned()));
    }

    #[test]
    fn blocked_missing_and_malformed_names_are_refused() {
        assert_eq!(build(&["SECRET_KEY"], false), Err(EnvironmentError::Blocked("SECRET_KEY".to_owned())));
        assert_eq!(build(&["SECRET_KEY=x"], false), Err(EnvironmentError::Blocked("SECRET_KEY".to_owned())));
        assert_eq!(build(&["NONE"], false), Err(EnvironmentError::Missing("NONE".to_owned())));
        for name in ["", "1A", "A-B", "A;rm", "A B"] {
            assert_eq!(build(&[&format!("{name}=x")], false), Err(EnvironmentError::Name(name.to_owned())));
        }
    }
}
