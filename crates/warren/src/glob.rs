//! Matches patterns for paths: `*` and `?` within a name, `**` across directories.

use std::path::Path;

/// A pattern. It must match the whole path; a directory includes everything in it.
#[derive(Clone, Debug)]
pub struct Glob(Vec<String>);

impl Glob {
    /// Parses a pattern. Every text is valid.
    pub fn new(pattern: &str) -> Self {
        Self(pattern.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect())
    }

    /// Returns true if it matches a relative path, or a directory above it.
    pub fn matches(&self, path: &Path) -> bool {
        let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        (1..=parts.len()).any(|length| across(&self.0, &parts[..length]))
    }
}

fn across(pattern: &[String], parts: &[&str]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first == "**" => {
            (0..=parts.len()).any(|skipped| across(rest, &parts[skipped..]))
        }
        (Some((first, rest)), Some((part, others))) => {
            let letters: Vec<char> = part.chars().collect();
            within(&first.chars().collect::<Vec<_>>(), &letters) && across(rest, others)
        }
        _ => false,
    }
}

fn within(pattern: &[char], letters: &[char]) -> bool {
    match (pattern.split_first(), letters.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), _) => (0..=letters.len()).any(|skipped| within(rest, &letters[skipped..])),
        (Some(('?', rest)), Some((_, others))) => within(rest, others),
        (Some((first, rest)), Some((letter, others))) => first == letter && within(rest, others),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_files_and_everything_in_directories() {
        for (pattern, path, expected) in [
            ("dist/**", "dist/a/b", true),
            ("dist", "dist/a/b", true),
            ("./dist/", "dist/a", true),
            ("*.rs", "lib.rs", true),
            ("*.rs", "src/lib.rs", false),
            ("**/*.rs", "lib.rs", true),
            ("**/*.rs", "a/b/lib.rs", true),
            ("a/?.txt", "a/b.txt", true),
            ("a/?.txt", "a/bc.txt", false),
            ("report.xml", "other.xml", false),
            ("", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(Path::new(path)), expected, "{pattern} {path}");
        }
    }
}
