//! Keys of MCP clients over HTTP. A key is shown once; a file with its name holds its hash. The
//! file is read for every request, so that a key that was added or removed counts at once.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::serve::access::{self, Hash};

/// The prefix of a key; its name and the secret follow.
const PREFIX: &str = "warren_mcp_";

const LONGEST_NAME: usize = 32;

/// A directory of keys.
#[derive(Clone, Debug)]
pub struct Keys(PathBuf);

impl Keys {
    /// Opens the keys of a data directory.
    pub fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let path = data_dir.join("mcp-keys");
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.with_context(|| format!("create `{}`", path.display()))?;
        Ok(Self(path))
    }

    /// Makes a key and returns it.
    pub fn add(&self, name: &str) -> anyhow::Result<String> {
        let path = self.path(name)?;
        let secret = access::secret("").map_err(|failure| anyhow::Error::msg(failure.message))?;
        let key = format!("{PREFIX}{name}_{secret}");
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!("there is a key `{name}` already; `warren mcp key remove {name}` removes it")
            }
            opened => opened.with_context(|| format!("create `{}`", path.display()))?,
        };
        // A file that is not whole is the hash of nothing.
        let written = writeln!(file, "{}", hex(&access::hash(&key))).and_then(|()| file.sync_all());
        written.with_context(|| format!("write `{}`", path.display()))?;
        Ok(key)
    }

    /// Returns the names of the keys, in order.
    pub fn names(&self) -> anyhow::Result<Vec<String>> {
        let list = || -> io::Result<Vec<String>> {
            let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
            names.filter_map(Result::transpose).collect()
        };
        let mut names = list().with_context(|| format!("read `{}`", self.0.display()))?;
        names.retain(|name| is_name(name));
        names.sort();
        Ok(names)
    }

    /// Removes a key.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.path(name)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("there is no key `{name}`; `warren mcp key list` lists them")
            }
            removed => removed.with_context(|| format!("remove `{}`", path.display())),
        }
    }

    /// Returns the hash of a key that is valid.
    pub fn check(&self, key: &str) -> Option<Hash> {
        let (name, _) = key.strip_prefix(PREFIX)?.split_once('_')?;
        let hash = access::hash(key);
        self.read(name).is_some_and(|stored| are_equal(&stored, &hash)).then_some(hash)
    }

    /// Returns the hashes of all keys.
    pub fn hashes(&self) -> anyhow::Result<Vec<Hash>> {
        Ok(self.names()?.iter().filter_map(|name| self.read(name)).collect())
    }

    fn read(&self, name: &str) -> Option<Hash> {
        let text = fs::read_to_string(self.path(name).ok()?).ok()?;
        let text = text.trim_end();
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(hash)
    }

    fn path(&self, name: &str) -> anyhow::Result<PathBuf> {
        if !is_name(name) {
            bail!(
                "`{name}` cannot be the name of a key; it has at most {LONGEST_NAME} small letters, digits and `-`, and \
                 begins with a letter or a digit"
            );
        }
        Ok(self.0.join(name))
    }
}

fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with('-') && name.bytes().all(valid)
}

/// Compares hashes in a time that does not tell where they differ.
fn are_equal(one: &Hash, other: &Hash) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (one, other)| all | (one ^ other));
    std::hint::black_box(differences) == 0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_is_stored_as_a_hash_and_counts_until_it_is_removed() {
        let directory = tempfile::tempdir().expect("make a directory");
        let keys = Keys::open(directory.path()).expect("open");
        let key = keys.add("laptop").expect("a key");
        let file = directory.path().join("mcp-keys/laptop");
        let stored = fs::read_to_string(&file).expect("the file");
        assert!(!stored.contains(key.rsplit('_').next().expect("a secret")), "{stored}");
        assert_eq!(file.metadata().expect("metadata").permissions().mode() & 0o777, 0o600);
        assert_eq!(keys.check(&key), Some(access::hash(&key)));
        let error = keys.add("laptop").expect_err("there is one");
        assert!(error.to_string().contains("warren mcp key remove laptop"), "{error}");
        assert_eq!(keys.names().expect("names"), ["laptop"]);
        let other = keys.add("other").expect("a key");
        for wrong in [
            "",
            "warren_mcp_",
            "warren_mcp_laptop",
            "warren_mcp_laptop_",
            &key[..key.len() - 1],
            &format!("{key}x"),
            &key.replace("laptop", "other"),
            &other.replace("other", "laptop"),
            &key.replace("laptop", "../mcp-keys/laptop"),
        ] {
            assert_eq!(keys.check(wrong), None, "{wrong}");
        }
        keys.remove("laptop").expect("removed");
        assert_eq!(keys.check(&key), None);
        assert_eq!(keys.hashes().expect("hashes"), [access::hash(&other)]);
    }

    #[test]
    fn file_that_is_not_whole_is_no_key() {
        let directory = tempfile::tempdir().expect("make a directory");
        let keys = Keys::open(directory.path()).expect("open");
        let key = keys.add("a").expect("a key");
        for text in ["", "00", &"é".repeat(32), &"+1".repeat(32)] {
            fs::write(directory.path().join("mcp-keys/a"), text).expect("write");
            assert_eq!(keys.check(&key), None, "{text}");
        }
        for name in ["", "-a", "A", "a_b", "a/b", "..", &"a".repeat(33)] {
            assert!(keys.add(name).is_err(), "{name}");
        }
    }
}
