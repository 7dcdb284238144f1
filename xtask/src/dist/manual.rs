//! The manual and the completions for shells, as the packaged binary writes them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::archive::{Entry, gzip};
use crate::workspace;

/// Shells, and where each looks for completions below `share/`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/warren"),
    ("fish", "fish/vendor_completions.d/warren.fish"),
    ("zsh", "zsh/site-functions/_warren"),
];

/// Files that a package installs below `share/`.
pub struct Manual {
    /// Paths below `share/`, with their content.
    files: Vec<(String, Vec<u8>)>,
}

impl Manual {
    /// Asks a binary for its manual and its completions.
    pub fn of(binary: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for (shell, path) in COMPLETIONS {
            let script = workspace::output(Command::new(binary).args(["completion", shell]))?;
            files.push((path.to_owned(), script.into_bytes()));
        }
        let directory = workspace::root().join("target/manual");
        // Pages of commands that are gone must not be packaged.
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.with_context(|| format!("remove `{}`", directory.display()))?,
        }
        workspace::output(Command::new(binary).arg("man").arg(&directory))?;
        let reading = || format!("read `{}`", directory.display());
        for entry in fs::read_dir(&directory).with_context(reading)? {
            let entry = entry.with_context(reading)?;
            let page = gzip(&fs::read(entry.path()).with_context(reading)?)?;
            files.push((format!("man/man1/{}.gz", entry.file_name().to_string_lossy()), page));
        }
        ensure!(files.len() > COMPLETIONS.len(), "`{} man` wrote no pages", binary.display());
        Ok(Self { files })
    }

    /// Returns the files and their directories below `base`, from `base/share/` on.
    pub fn entries(&self, base: &str) -> Result<Vec<Entry>> {
        let mut directories = std::collections::BTreeSet::new();
        let mut entries = Vec::new();
        for (path, content) in &self.files {
            let path = format!("{base}/share/{path}");
            let below = Path::new(&path).strip_prefix(base).context("name a file of the manual")?;
            for parent in below.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                directories.insert(format!("{base}/{}/", parent.display()));
            }
            entries.push(Entry::file(path, 0o644, content.clone()));
        }
        entries.extend(directories.into_iter().map(Entry::directory));
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_with_their_directories() {
        let manual = Manual { files: vec![("man/man1/warren.1.gz".to_owned(), vec![1])] };
        let mut paths: Vec<_> =
            manual.entries("./usr").unwrap().into_iter().map(|entry| entry.path).collect();
        paths.sort();
        let expected =
            ["./usr/share/", "./usr/share/man/", "./usr/share/man/man1/", "./usr/share/man/man1/warren.1.gz"];
        assert_eq!(paths, expected);
    }
}
