//! Checks of tool arguments. Each error names the argument and the way out.
//!
//! Paths and words reach the sandbox as arguments of a program. Nothing here builds a shell line from them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use warren_api::labels;

/// A command travels in the address of a request, which servers limit to 64 KiB.
const LONGEST_COMMAND: usize = 60_000;

/// A command: a shell line, or a program with its arguments.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CommandLine {
    /// A line for `sh -c`.
    Shell(String),
    /// A program and its arguments, run without a shell.
    Program(Vec<String>),
}

/// Returns the arguments that run a command, in a directory and with variables if those are named.
pub fn command(
    line: &CommandLine,
    workdir: Option<&str>,
    env: &BTreeMap<String, String>,
) -> Result<Vec<String>, String> {
    let mut words: Vec<String> = match line {
        CommandLine::Shell(line) if line.trim().is_empty() => {
            return Err("`command` is empty".to_owned());
        }
        CommandLine::Shell(line) => ["sh", "-c", line].map(str::to_owned).to_vec(),
        CommandLine::Program(words) if words.first().is_none_or(String::is_empty) => {
            return Err("`command` names no program".to_owned());
        }
        CommandLine::Program(words) => words.clone(),
    };
    if let Some(directory) = workdir {
        let directory = path("workdir", directory)?;
        let script = "cd -- \"$0\" && exec \"$@\"".to_owned();
        words = ["sh".to_owned(), "-c".to_owned(), script, directory].into_iter().chain(words).collect();
    }
    if !env.is_empty() {
        let mut prefix = vec!["env".to_owned()];
        for (name, value) in env {
            if !is_variable(name) {
                return Err(format!("`env` has `{name}`, which is not a name of letters, digits and `_`"));
            }
            prefix.push(format!("{name}={value}"));
        }
        // `env` would take a program with `=` in its name for one more variable.
        prefix.extend(["sh", "-c", "exec \"$@\"", "sh"].map(str::to_owned));
        words = prefix.into_iter().chain(words).collect();
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err("`command`, `workdir` and `env` cannot hold a NUL character".to_owned());
    }
    let length: usize = words.iter().map(|word| encoded_length(word) + "&command=".len()).sum();
    if length > LONGEST_COMMAND {
        return Err(format!(
            "`command` has {length} bytes as it is sent, and {LONGEST_COMMAND} are possible; write a script \
             with `upload_file` and run that"
        ));
    }
    Ok(words)
}

/// Returns the length of a word in the query of an address.
fn encoded_length(word: &str) -> usize {
    word.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' | b' ' => 1,
            _ => 3,
        })
        .sum()
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte == b'_' || byte.is_ascii_alphabetic())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}

/// Returns a path as a program's argument. One that is relative is relative to the container's working directory, and
/// begins with `./`, so that no program takes it for an option.
pub fn path(argument: &str, path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err(format!("`{argument}` is empty"));
    }
    if path.contains('\0') {
        return Err(format!("`{argument}` holds a NUL character"));
    }
    if encoded_length(path) > LONGEST_COMMAND / 2 {
        return Err(format!("`{argument}` is too long for a path"));
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("./{path}") })
}

/// Checks a name of a Kubernetes object.
pub fn object_name<'a>(argument: &str, name: &'a str) -> Result<&'a str, String> {
    let ends = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let valid = name.len() <= 253
        && name.bytes().next().is_some_and(ends)
        && name.bytes().last().is_some_and(ends)
        && name.bytes().all(|byte| ends(byte) || byte == b'-' || byte == b'.');
    match valid {
        true => Ok(name),
        false => Err(format!(
            "`{argument}` is not a name of lowercase letters, digits, `-` and `.`; `list_sandboxes` lists the names \
             of sandboxes"
        )),
    }
}

/// Checks that a client sets no labels or annotations with a meaning to the home: those are its operator's.
pub fn free_keys(argument: &str, keys: &BTreeMap<String, String>) -> Result<(), String> {
    let reserved = |key: &String| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let belongs = |owner: &str| domain == owner || domain.ends_with(&format!(".{owner}"));
        ["warren.dev", "x-k8s.io", "k8s.io", "kubernetes.io"].into_iter().any(belongs)
            || key == labels::MCP_SESSION
    };
    match keys.keys().find(|key| reserved(key)) {
        Some(key) => Err(format!("`{argument}` may not set `{key}`: the key has a meaning to the home")),
        None => Ok(()),
    }
}

/// Checks `timeout`.
pub fn timeout(seconds: Option<u64>) -> Result<Duration, String> {
    self::seconds("timeout", seconds, 60, 1..=600)
}

/// Checks `max_output_bytes`.
pub fn output_limit(bytes: Option<u64>) -> Result<usize, String> {
    let bytes = in_range("max_output_bytes", bytes, 30_000, 1000..=1_000_000)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Checks a number of seconds.
pub fn seconds(
    argument: &str,
    given: Option<u64>,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<Duration, String> {
    in_range(argument, given, default, range).map(Duration::from_secs)
}

/// Checks a number.
pub fn in_range(
    argument: &str,
    given: Option<u64>,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, String> {
    let number = given.unwrap_or(default);
    match range.contains(&number) {
        true => Ok(number),
        false => {
            Err(format!("`{argument}` is {number}; it has to be from {} to {}", range.start(), range.end()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn words_with_shell_characters_stay_single_arguments() {
        let line = CommandLine::Program(vec!["a=b".to_owned(), "; rm -rf / #".to_owned()]);
        let words = command(&line, Some("-e $(x)"), &map(&[("K", "`v`")])).expect("valid");
        let expected = [
            "env",
            "K=`v`",
            "sh",
            "-c",
            "exec \"$@\"",
            "sh",
            "sh",
            "-c",
            "cd -- \"$0\" && exec \"$@\"",
            "./-e $(x)",
            "a=b",
            "; rm -rf / #",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn bad_arguments_are_named() {
        let shell = |line: &str| CommandLine::Shell(line.to_owned());
        let none = BTreeMap::new();
        for (result, word) in [
            (command(&shell(" "), None, &none).map(drop), "`command`"),
            (command(&CommandLine::Program(Vec::new()), None, &none).map(drop), "`command`"),
            (command(&shell("x"), Some(""), &none).map(drop), "`workdir`"),
            (command(&shell("x"), None, &map(&[("-i", "")])).map(drop), "`env`"),
            (command(&shell("a\0b"), None, &none).map(drop), "NUL"),
            (command(&shell(&"'".repeat(30_000)), None, &none).map(drop), "`upload_file`"),
            (path("path", "a\0").map(drop), "`path`"),
            (object_name("warmpool", "../pods/x").map(drop), "`warmpool`"),
            (object_name("warmpool", "x?y").map(drop), "`warmpool`"),
            (free_keys("labels", &map(&[(labels::MCP_SESSION, "x")])), "`labels`"),
            (free_keys("pod_annotations", &map(&[("warren.dev/network", "full")])), "`pod_annotations`"),
            (free_keys("pod_labels", &map(&[("agents.x-k8s.io/claim-uid", "x")])), "`pod_labels`"),
            (seconds("timeout", Some(601), 60, 1..=600).map(drop), "from 1 to 600"),
        ] {
            let error = result.expect_err(word);
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(free_keys("labels", &map(&[("example.com/a", "x"), ("team", "y")])), Ok(()));
    }
}
