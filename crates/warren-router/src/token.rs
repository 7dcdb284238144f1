//! Scoped tokens, version 2, as agent-sandbox's router has them: a signed statement that its holder may send requests
//! to one sandbox until a time.
//!
//! A token is `v2.<kid>.<claims>.<signature>`, the last two in base64url without padding. The signature (Ed25519) is
//! over `agent-sandbox/scoped-token/v2.<kid>.<claims>`, so the key's name cannot be exchanged. The claims name the
//! namespace, the sandbox, its UID, port, method, escaped path and expiry. [`ANY`] in place of a method or a path, and
//! port 0, are ours: they allow every one. Agent-sandbox's router refuses such tokens.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// In place of a method or a path: every one.
pub const ANY: &str = "*";

const CONTEXT: &str = "agent-sandbox/scoped-token/v2.";
const VERSION: &str = "v2";
/// The longest name of a key, and the longest token that is looked at.
const LONGEST_KEY_ID: usize = 128;
const LONGEST_TOKEN: usize = 8 << 10;

/// The rights that a token gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The namespace of the Sandbox.
    pub ns: String,
    /// Its name.
    pub name: String,
    /// Its UID: a later Sandbox of the same name has another.
    pub uid: String,
    /// The port in its pod; 0 is every port.
    pub port: u16,
    /// The HTTP method, in capitals, or [`ANY`].
    pub method: String,
    /// The path as it is sent, with `%XX` in capitals, or [`ANY`].
    pub path: String,
    /// When the token expires, in seconds since 1970. It is not valid in that second any more.
    pub exp: i64,
}

/// A request, as tokens see it.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The namespace of the Sandbox.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The port in its pod.
    pub port: u16,
    /// The HTTP method.
    pub method: &'a str,
    /// The path that the sandbox gets, without the query.
    pub path: &'a str,
}

/// A token does not allow a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no token, is not signed by a known key, or has expired.
    #[error("The token is not valid.")]
    Invalid,
    /// It is for another sandbox or another request.
    #[error("The token is not for this request.")]
    AnotherTarget,
}

/// A key or a set of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The set is not JSON of the form `{"keys":[{"kid":…,"publicKey":…}]}`.
    #[error("the key set is not JSON of the form {{\"keys\":[{{\"kid\":…,\"publicKey\":…}}]}}")]
    Json(#[from] serde_json::Error),
    /// The set is empty.
    #[error("the key set has no keys")]
    Empty,
    /// A key has no usable name.
    #[error("`{0}` cannot be the name of a key: 1 to 128 letters, digits, `-` and `_`")]
    KeyId(String),
    /// Two keys have the same name.
    #[error("there are two keys `{0}`")]
    Twice(String),
    /// A public key is not 32 bytes in base64url without padding.
    #[error("`publicKey` of key `{0}` is not 32 bytes in base64url without padding")]
    PublicKey(String),
    /// A signing key is not an Ed25519 key as [`SigningKey::generate`] makes it.
    #[error("the signing key is not a line of the form `<kid> <PKCS#8 in base64url>`")]
    SigningKey,
    /// The machine gave no random numbers.
    #[error("no random numbers for a key")]
    Random,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    keys: Vec<KeyEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    kid: String,
    #[serde(rename = "publicKey")]
    public_key: String,
}

/// The keys whose tokens are believed, by name.
#[derive(Debug, Clone)]
pub struct KeySet {
    keys: HashMap<String, [u8; 32]>,
}

impl KeySet {
    /// Reads a set of keys.
    pub fn parse(json: &str) -> Result<KeySet, KeyError> {
        let file: KeyFile = serde_json::from_str(json)?;
        let mut keys = HashMap::new();
        for KeyEntry { kid, public_key } in file.keys {
            if !is_key_id(&kid) {
                return Err(KeyError::KeyId(kid));
            }
            let bytes = URL_SAFE_NO_PAD.decode(&public_key).ok().and_then(|bytes| bytes.try_into().ok());
            let Some(bytes) = bytes else { return Err(KeyError::PublicKey(kid)) };
            if keys.insert(kid.clone(), bytes).is_some() {
                return Err(KeyError::Twice(kid));
            }
        }
        if keys.is_empty() { Err(KeyError::Empty) } else { Ok(KeySet { keys }) }
    }

    /// Returns the claims of a token that allows a request now. The caller compares [`Claims::uid`] with the UID of
    /// the Sandbox that the request leads to.
    pub fn verify(&self, token: &str, target: &Target<'_>, now: i64) -> Result<Claims, Refused> {
        let claims = self.claims(token).filter(|claims| now < claims.exp).ok_or(Refused::Invalid)?;
        let is_for_it = claims.ns == target.namespace
            && claims.name == target.name
            && !claims.uid.is_empty()
            && (claims.port == 0 || claims.port == target.port)
            && (claims.method == ANY || claims.method == target.method.to_ascii_uppercase())
            && (claims.path == ANY || claims.path == normalised(target.path));
        if is_for_it { Ok(claims) } else { Err(Refused::AnotherTarget) }
    }

    /// Returns the claims of a token that one of the keys has signed.
    fn claims(&self, token: &str) -> Option<Claims> {
        if token.len() > LONGEST_TOKEN {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let mut parts = signed.split('.');
        let (version, kid, payload) = (parts.next()?, parts.next()?, parts.next()?);
        if version != VERSION || parts.next().is_some() {
            return None;
        }
        let key = self.keys.get(kid)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let input = format!("{CONTEXT}{kid}.{payload}");
        UnparsedPublicKey::new(&ED25519, key).verify(input.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }
}

/// A key that signs tokens.
pub struct SigningKey {
    kid: String,
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Makes a key and returns it as the text of its file: its name and its PKCS#8 form. The text is a secret.
    pub fn generate(kid: &str) -> Result<String, KeyError> {
        if !is_key_id(kid) {
            return Err(KeyError::KeyId(kid.to_owned()));
        }
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        Ok(format!("{kid} {}\n", URL_SAFE_NO_PAD.encode(document.as_ref())))
    }

    /// Reads the text of a key's file.
    pub fn parse(text: &str) -> Result<SigningKey, KeyError> {
        let (kid, document) = text.trim().split_once(' ').ok_or(KeyError::SigningKey)?;
        if !is_key_id(kid) {
            return Err(KeyError::KeyId(kid.to_owned()));
        }
        let document = URL_SAFE_NO_PAD.decode(document.trim()).map_err(|_| KeyError::SigningKey)?;
        let pair = Ed25519KeyPair::from_pkcs8(&document).map_err(|_| KeyError::SigningKey)?;
        Ok(SigningKey { kid: kid.to_owned(), pair })
    }

    /// Returns the key set that believes this key alone, as JSON.
    pub fn key_set(&self) -> String {
        let public_key = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        serde_json::json!({"keys": [{"kid": self.kid, "publicKey": public_key}]}).to_string()
    }

    /// Signs a token.
    pub fn sign(&self, claims: &Claims) -> Result<String, serde_json::Error> {
        let mut claims = claims.clone();
        claims.path = normalised(&claims.path);
        claims.method.make_ascii_uppercase();
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims)?);
        let signature = self.pair.sign(format!("{CONTEXT}{}.{payload}", self.kid).as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(signature.as_ref());
        Ok(format!("{VERSION}.{}.{payload}.{signature}", self.kid))
    }
}

/// Returns the second in which a token expires that is valid from `now` on. `None`: a lifetime below a second.
pub fn expiry(now: i64, lifetime: Duration) -> Option<i64> {
    let seconds = i64::try_from(lifetime.as_secs()).ok().filter(|seconds| *seconds > 0)?;
    now.checked_add(seconds)
}

fn is_key_id(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !text.is_empty() && text.len() <= LONGEST_KEY_ID && text.bytes().all(is_part)
}

/// Returns a path with the hexadecimal digits of `%XX` in capitals. Nothing is decoded.
fn normalised(path: &str) -> String {
    let mut normalised = String::with_capacity(path.len());
    let mut digits = 0;
    for character in path.chars() {
        let is_digit = digits > 0;
        digits = if is_digit { digits - 1 } else { i32::from(character == '%') * 2 };
        normalised.push(if is_digit { character.to_ascii_uppercase() } else { character });
    }
    normalised
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target<'_> =
        Target { namespace: "ns", name: "box", port: 8888, method: "POST", path: "/files/a%2fb" };

    fn claims() -> Claims {
        Claims {
            ns: "ns".to_owned(),
            name: "box".to_owned(),
            uid: "u1".to_owned(),
            port: 8888,
            method: "POST".to_owned(),
            path: "/files/a%2Fb".to_owned(),
            exp: 1000,
        }
    }

    fn keys() -> (SigningKey, KeySet) {
        let key = SigningKey::parse(&SigningKey::generate("k1").expect("make")).expect("parse");
        let set = KeySet::parse(&key.key_set()).expect("a set");
        (key, set)
    }

    #[test]
    fn a_token_allows_what_it_says_and_nothing_else() {
        let (key, set) = keys();
        let token = key.sign(&claims()).expect("sign");
        assert_eq!(set.verify(&token, &TARGET, 999), Ok(claims()));
        assert_eq!(set.verify(&token, &TARGET, 1000), Err(Refused::Invalid), "expired");
        for other in [
            Target { namespace: "other", ..TARGET },
            Target { name: "other", ..TARGET },
            Target { port: 22, ..TARGET },
            Target { method: "GET", ..TARGET },
            Target { path: "/files/a/b", ..TARGET },
            Target { path: "/files/a%252Fb", ..TARGET },
            Target { path: "/", ..TARGET },
        ] {
            assert_eq!(set.verify(&token, &other, 0), Err(Refused::AnotherTarget), "{other:?}");
        }
        let any = Claims { port: 0, method: ANY.to_owned(), path: ANY.to_owned(), ..claims() };
        let token = key.sign(&any).expect("sign");
        assert!(set.verify(&token, &Target { port: 1, method: "GET", path: "/x", ..TARGET }, 0).is_ok());
        assert!(set.verify(&token, &Target { name: "other", ..TARGET }, 0).is_err());
    }

    #[test]
    fn forged_and_damaged_tokens_are_refused() {
        let (key, set) = keys();
        let (other, _) = keys();
        assert_eq!(set.verify(&other.sign(&claims()).expect("sign"), &TARGET, 0), Err(Refused::Invalid));
        let token = key.sign(&claims()).expect("sign");
        let parts: Vec<&str> = token.split('.').collect();
        let wide = Claims { path: ANY.to_owned(), ..claims() };
        let wide = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wide).expect("JSON"));
        for forged in [
            format!("v2.k1.{wide}.{}", parts[3]),
            format!("v1.k1.{}.{}", parts[2], parts[3]),
            format!("v2.k2.{}.{}", parts[2], parts[3]),
            format!("v2.k1.{}.", parts[2]),
            format!("v2.k1.{}", parts[2]),
            format!("{token}.{}", parts[3]),
            "v2...".to_owned(),
            String::new(),
            "a".repeat(1 << 20),
        ] {
            assert_eq!(set.verify(&forged, &TARGET, 0), Err(Refused::Invalid), "{forged:.80}");
        }
    }

    /// Every token that differs from the signed one in some bytes is refused, and none panics.
    #[test]
    fn random_changes_of_a_token_are_refused() {
        let (key, set) = keys();
        let token = key.sign(&claims()).expect("sign").into_bytes();
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let mut changed = token.clone();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..changed.len());
                match random.u8(..3) {
                    0 => changed[place] = random.u8(32..127),
                    1 => drop(changed.remove(place)),
                    _ => changed.insert(place, random.u8(32..127)),
                }
            }
            let text = String::from_utf8(changed).expect("ASCII");
            let is_the_same = text.as_bytes() == token;
            assert_eq!(set.verify(&text, &TARGET, 0).is_ok(), is_the_same, "seed {seed}: {text}");
        }
    }

    #[test]
    fn key_sets_are_read_strictly() {
        let (key, _) = keys();
        let good = key.key_set();
        for bad in [
            "{}",
            "[]",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kid":"a b","publicKey":""}]}"#,
            r#"{"keys":[{"kid":"a","publicKey":"AAAA"}]}"#,
            r#"{"keys":[{"kid":"a","publicKey":"AAAA","alg":"none"}]}"#,
            &format!("{good} {good}"),
            &good.replace("]}", &format!(",{}]}}", &good[9..good.len() - 2])),
        ] {
            assert!(KeySet::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn percent_encodings_are_compared_without_case_and_never_decoded() {
        assert_eq!(normalised("/a%2fb%C3%a9%"), "/a%2Fb%C3%A9%");
        assert_eq!(normalised("/a%%2f"), "/a%%2f");
        assert_eq!(expiry(10, Duration::from_secs(5)), Some(15));
        assert_eq!(expiry(10, Duration::from_millis(999)), None);
    }
}
