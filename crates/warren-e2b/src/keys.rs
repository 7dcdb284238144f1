//! The API key, and the tokens of sandboxes that are derived from it. Nothing else is kept: a token is made anew when it
//! is needed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac};

/// E2B's tools expect keys to begin so.
const PREFIX: &str = "e2b_";

/// The secret that clients send with every request of the control API.
pub struct ApiKey {
    text: String,
    key: hmac::Key,
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ApiKey(..)")
    }
}

impl ApiKey {
    /// Reads the key from a file that only its owner may read, or makes both. Two processes that do so at the same time
    /// have the same key afterwards.
    pub fn load_or_make(path: &Path) -> io::Result<ApiKey> {
        loop {
            match fs::read_to_string(path) {
                Ok(text) => {
                    let text = text.trim();
                    let is_key = text.len() >= 32 && text.starts_with(PREFIX) && text.is_ascii();
                    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the file holds no API key");
                    return is_key.then(|| ApiKey::of(text)).ok_or_else(wrong);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let mut random = [0; 20];
            SystemRandom::new().fill(&mut random).map_err(|_| io::Error::other("no randomness"))?;
            let text = format!("{PREFIX}{}\n", hex(&random));
            // The file has its name only when it is whole.
            let unfinished = path.with_extension(format!("{}", std::process::id()));
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            let linked = fs::hard_link(&unfinished, path);
            fs::remove_file(&unfinished)?;
            match linked {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
    }

    fn of(text: &str) -> ApiKey {
        ApiKey { text: text.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()) }
    }

    /// Returns the key as clients send it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a client has sent the key, in a time that does not tell how much of it was right.
    pub fn is(&self, given: &[u8]) -> bool {
        self.are_equal(given, self.text.as_bytes())
    }

    fn are_equal(&self, given: &[u8], expected: &[u8]) -> bool {
        let tag = hmac::sign(&self.key, expected);
        hmac::verify(&self.key, given, tag.as_ref()).is_ok()
    }

    /// Returns the token with which clients reach a sandbox's envd API.
    pub(crate) fn token(&self, id: &str, uid: &str) -> String {
        hex(hmac::sign(&self.key, format!("envd {id} {uid}").as_bytes()).as_ref())
    }

    /// Returns whether a client has sent a sandbox's token.
    pub(crate) fn is_token(&self, given: &[u8], token: &str) -> bool {
        self.are_equal(given, token.as_bytes())
    }

    /// Checks the signature of a link to a file. A link that was signed with an expiration holds until then.
    pub(crate) fn is_signed(&self, link: &Link<'_>, token: &str, now: i64) -> bool {
        let Link { path, operation, user, expiration, signature } = link;
        let mut text = format!("{path}:{operation}:{user}:{token}");
        if let Some(expiration) = expiration {
            if expiration.parse::<i64>().is_ok_and(|end| end < now) {
                return false;
            }
            text.push_str(&format!(":{expiration}"));
        }
        let digest = digest::digest(&digest::SHA256, text.as_bytes());
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(digest));
        self.are_equal(signature.as_bytes(), expected.as_bytes())
    }
}

/// A signed link to a file.
#[derive(Debug)]
pub(crate) struct Link<'a> {
    pub(crate) path: &'a str,
    /// `read` or `write`.
    pub(crate) operation: &'a str,
    pub(crate) user: &'a str,
    pub(crate) expiration: Option<&'a str>,
    pub(crate) signature: &'a str,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a name for the sandbox of a request that its client may send again.
pub(crate) fn name_of_request(idempotency_key: &str) -> String {
    let digest = digest::digest(&digest::SHA256, idempotency_key.as_bytes());
    format!("i{}", hex(&digest.as_ref()[..10]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn key_is_made_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().expect("make a directory");
        let path = directory.path().join("e2b-api-key");
        let made = ApiKey::load_or_make(&path).expect("made");
        let read = ApiKey::load_or_make(&path).expect("read");
        assert_eq!(made.text(), read.text());
        assert!(made.text().starts_with("e2b_") && made.text().len() == 44, "{}", made.text());
        assert_eq!(path.metadata().expect("metadata").permissions().mode() & 0o777, 0o600);
        assert_eq!(directory.path().read_dir().expect("list").count(), 1);
        assert!(read.is(made.text().as_bytes()));
        assert!(!read.is(b"e2b_") && !read.is(b""));
        fs::write(&path, "short").expect("write");
        assert!(ApiKey::load_or_make(&path).is_err());
    }

    #[test]
    fn signature_is_that_of_the_published_clients() {
        let key = ApiKey::of("e2b_0000000000000000000000000000000000000000");
        // Made by `get_signature` of e2b 2.63.0.
        let link =
            |signature, expiration| Link { path: "/a b", operation: "read", user: "", expiration, signature };
        let made = "v1_tjfYa0S6gGZxITz1BilX5UtLirKYatBKVyM/AGdo2UQ";
        assert!(key.is_signed(&link(made, None), "token", 0));
        assert!(!key.is_signed(&link(made, None), "another", 0));
        let digest = digest::digest(&digest::SHA256, b"/a b:read::token:100");
        let signature = format!("v1_{}", STANDARD_NO_PAD.encode(digest));
        assert!(key.is_signed(&link(&signature, Some("100")), "token", 100));
        assert!(!key.is_signed(&link(&signature, Some("100")), "token", 101));
        assert!(!key.is_signed(&link(&signature, Some("200")), "token", 100));
        assert!(!key.is_signed(&link(&signature, None), "token", 100));
    }

    #[test]
    fn tokens_differ_between_sandboxes_and_keys() {
        let (one, other) = (ApiKey::of("e2b_one"), ApiKey::of("e2b_other"));
        let token = one.token("i1", "u1");
        assert_eq!(token, one.token("i1", "u1"));
        assert!(one.is_token(token.as_bytes(), &token));
        for different in [one.token("i2", "u1"), one.token("i1", "u2"), other.token("i1", "u1")] {
            assert_ne!(token, different);
        }
    }
}
