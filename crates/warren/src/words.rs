//! Builds the command that is executed in a sandbox, from the words of the command line.

/// Runs a line (`$1`) with a login shell, if the image has `bash`.
const SHELL: &str =
    r#"if command -v bash >/dev/null 2>&1; then exec bash -lc "$1"; fi; exec /bin/sh -c "$1""#;

/// Reads variables from a file (`$1`) and removes it, changes to a directory (`$2`), and executes
/// the command. Either may be empty.
const PREPARE: &str = r#"if [ -n "$1" ]; then . "$1" || exit 125; rm -f -- "$1"; fi
if [ -n "$2" ]; then cd -- "$2" || exit 125; fi
shift 2
exec "$@""#;

/// Returns the program and its arguments. A single string with shell syntax is run by a shell.
pub fn program(words: &[String]) -> Vec<String> {
    match words {
        [line] if !is_plain(line) => ["/bin/sh", "-c", SHELL, "sh", line].map(str::to_owned).to_vec(),
        words => words.to_vec(),
    }
}

/// Returns the words for a shell of the image.
pub fn shell() -> Vec<String> {
    let shell = r#"if command -v bash >/dev/null 2>&1; then exec bash -l; fi; exec /bin/sh"#;
    ["/bin/sh", "-c", shell].map(str::to_owned).to_vec()
}

/// Returns true for a word that means the same with and without a shell.
fn is_plain(word: &str) -> bool {
    !word.is_empty()
        && word.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"_-./+:,@%".contains(&letter))
}

/// Returns the words that run a program with the variables of a file, in a directory.
pub fn prepared(program: Vec<String>, variables: Option<&str>, directory: Option<&str>) -> Vec<String> {
    if variables.is_none() && directory.is_none() {
        return program;
    }
    let before = [variables, directory].map(|word| word.unwrap_or_default().to_owned());
    let script = ["/bin/sh", "-c", PREPARE, "sh"].map(str::to_owned);
    script.into_iter().chain(before).chain(program).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// Runs words locally, and returns the exit code and the output.
    fn run(words: &[String]) -> (Option<i32>, String) {
        let output = Command::new(&words[0]).args(&words[1..]).output().expect("run");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn one_string_is_a_line_for_a_shell_and_several_words_are_a_command() {
        assert_eq!(program(&words(&["cargo", "test $X"])), words(&["cargo", "test $X"]));
        assert_eq!(program(&words(&["./run-tests.sh"])), words(&["./run-tests.sh"]));
        assert_eq!(run(&program(&words(&["echo a; exit 7"]))), (Some(7), "a\n".to_owned()));
        assert_eq!(program(&words(&["A=b"])).len(), 5);
    }

    #[test]
    fn variables_and_directory_are_in_place_before_the_command() {
        let directory = tempfile::tempdir().expect("make a directory");
        let file = directory.path().join("env");
        std::fs::write(&file, "export A='b c'\n").expect("write");
        let prepared =
            prepared(words(&["sh", "-c", "echo \"$A\" $#; pwd"]), file.to_str(), directory.path().to_str());
        let output = format!("b c 0\n{}\n", directory.path().display());
        assert_eq!(run(&prepared), (Some(0), output));
        assert!(!file.exists(), "the file with values is removed");
    }

    #[test]
    fn missing_program_and_directory_have_the_codes_of_a_shell() {
        let here = |program: &str, directory: &str| prepared(words(&[program]), None, Some(directory));
        assert_eq!(run(&here("no-such-program", "/")).0, Some(127));
        assert_eq!(run(&here("/etc/passwd", "/")).0, Some(126));
        assert_eq!(run(&here("true", "/no/such/directory")).0, Some(125));
    }
}
