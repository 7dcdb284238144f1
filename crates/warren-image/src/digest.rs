//! The digest of a piece of content, which is its name.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A SHA-256 digest: `sha256:` and 64 hexadecimal digits. No other algorithm is in use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(String);

/// The error for a text that is no digest.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a digest such as `sha256:` and 64 hexadecimal digits")]
pub struct ParseError(String);

const ALGORITHM: &str = "sha256:";

impl Digest {
    /// Computes the digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(bytes);
        Self::finished(hash)
    }

    /// Returns the digits, which are safe as a file name.
    pub fn hex(&self) -> &str {
        &self.0[ALGORITHM.len()..]
    }

    fn finished(hash: Context) -> Self {
        let hex: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{ALGORITHM}{hex}"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let digits = text.strip_prefix(ALGORITHM).filter(|digits| {
            digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        });
        // The text comes from outside and may be long.
        digits
            .map_or_else(|| Err(ParseError(text.chars().take(100).collect())), |_| Ok(Self(text.to_owned())))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A reader that computes the digest and length of the bytes that pass through it.
pub struct Hashing<R> {
    inner: R,
    hash: Context,
    length: u64,
}

impl<R: Read> Hashing<R> {
    /// Starts to count here.
    pub fn new(inner: R) -> Self {
        Self { inner, hash: Context::new(&SHA256), length: 0 }
    }

    /// Reads to the end, and returns the digest and length of all bytes, including those read
    /// before.
    pub fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::finished(self.hash), self.length))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.length += count as u64;
        Ok(count)
    }
}

impl<R> fmt::Debug for Hashing<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Hashing").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_NOTHING: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn only_lower_case_sha256_is_a_digest() {
        assert_eq!(Digest::of(b"").to_string(), OF_NOTHING);
        assert_eq!(OF_NOTHING.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in
            ["", "sha256:", "sha512:00", &OF_NOTHING.to_uppercase(), &OF_NOTHING[1..], "sha256:../../etc"]
        {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reader_tells_what_went_through_it_to_the_end() {
        let mut reader = Hashing::new(&b"some content"[..]);
        reader.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(reader.finish().unwrap(), (Digest::of(b"some content"), 12));
    }
}
