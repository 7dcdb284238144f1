//! Splits a command line into words, as a POSIX shell does, without anything else that a shell does:
//! no variables, no globs, no pipes, no comments.

use std::fmt;

/// A command line that cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitError {
    /// A quote is not closed.
    NoClosingQuotation,
    /// The last character is a backslash.
    NoEscapedCharacter,
}

impl fmt::Display for SplitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            SplitError::NoClosingQuotation => "No closing quotation",
            SplitError::NoEscapedCharacter => "No escaped character",
        })
    }
}

/// Returns the words of `line`.
pub fn split(line: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\\' => {
                let escaped = rest.next().ok_or(SplitError::NoEscapedCharacter)?;
                word.get_or_insert_default().push(escaped);
            }
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or(SplitError::NoClosingQuotation)? {
                        '\'' => break,
                        inside => word.push(inside),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or(SplitError::NoClosingQuotation)? {
                        '"' => break,
                        '\\' => match rest.next().ok_or(SplitError::NoEscapedCharacter)? {
                            escaped @ ('"' | '\\') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        inside => word.push(inside),
                    }
                }
            }
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        for (line, words) in [
            ("echo hi", &["echo", "hi"][..]),
            ("  a\t b\nc ", &["a", "b", "c"]),
            ("sh -c 'echo \"$HOME\" | cat'", &["sh", "-c", "echo \"$HOME\" | cat"]),
            (r#"a "b c\" \\ \n" d"#, &["a", r#"b c" \ \n"#, "d"]),
            (r"a\ b '' c''d", &["a b", "", "cd"]),
            ("echo #not a comment", &["echo", "#not", "a", "comment"]),
            ("", &[]),
        ] {
            assert_eq!(
                split(line).as_deref(),
                Ok(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>().as_slice()),
                "{line:?}"
            );
        }
    }

    #[test]
    fn an_open_quote_is_an_error() {
        assert_eq!(split("echo 'a"), Err(SplitError::NoClosingQuotation));
        assert_eq!(split("echo \"a"), Err(SplitError::NoClosingQuotation));
        assert_eq!(split("echo \\"), Err(SplitError::NoEscapedCharacter));
    }
}
