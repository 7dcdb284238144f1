//! Authentication: keys, logins, and protection from requests that a browser was tricked into.
//!
//! A key is shown once and stored as a hash. A browser exchanges it for a cookie. `Host` has to be a name of this service, so
//! that a page which resolves its own name to this address (DNS rebinding) gets nothing; a request with a cookie that changes
//! something has to come from a page of this service (`Origin`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::answer::Failure;

/// The cookie of a login.
pub const COOKIE_NAME: &str = "warren_session";

/// The lifetime of a login.
pub const LOGIN_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A hash of a key or of a login's token.
pub type Hash = [u8; 32];

/// Returns the hash of a secret. Secrets are 256 random bits, so no slow hash is needed.
pub fn hash(secret: &str) -> Hash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

/// Makes a secret with a prefix that says what it is.
pub fn secret(prefix: &str) -> Result<String, Failure> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Failure::internal("the system has no random bytes"))?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// The way that a request was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// By a key.
    Key,
    /// By a login's cookie, with this hash of its token.
    Login(Hash),
}

/// Keys and logins that are valid.
#[derive(Debug, Default)]
pub struct Access(Mutex<Valid>);

#[derive(Debug, Default)]
struct Valid {
    keys: Vec<Hash>,
    /// With the time at which each ends.
    logins: HashMap<Hash, Timestamp>,
}

impl Access {
    /// Takes up what is stored.
    pub fn new(keys: Vec<Hash>, logins: HashMap<Hash, Timestamp>) -> Self {
        Self(Mutex::new(Valid { keys, logins }))
    }

    fn valid(&self) -> std::sync::MutexGuard<'_, Valid> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether a key is valid.
    pub fn is_key(&self, key: &str) -> bool {
        self.valid().keys.contains(&hash(key))
    }

    /// Adds a login.
    pub fn add_login(&self, login: Hash, end: Timestamp) {
        self.valid().logins.insert(login, end);
    }

    /// Ends a login.
    pub fn remove_login(&self, login: &Hash) {
        self.valid().logins.remove(login);
    }

    /// Lets a request in, or says why not.
    pub fn admit(&self, method: &Method, headers: &HeaderMap, now: Timestamp) -> Result<Caller, Failure> {
        let refused = || {
            Failure::new(
                StatusCode::UNAUTHORIZED,
                "UNAUTHORIZED",
                "log in, or send `Authorization: Bearer KEY`",
            )
        };
        if let Some(value) = headers.get(AUTHORIZATION) {
            let key = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
            return match key.is_some_and(|key| self.is_key(key.trim())) {
                true => Ok(Caller::Key),
                false => Err(refused()),
            };
        }
        let token = cookie(headers).ok_or_else(refused)?;
        let login = hash(&token);
        match self.valid().logins.get(&login) {
            Some(end) if *end > now => {}
            _ => return Err(refused()),
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD);
        if changes && !is_same_origin(headers) {
            return Err(foreign_origin());
        }
        Ok(Caller::Login(login))
    }
}

/// Refuses a request from a page of another site.
pub fn foreign_origin() -> Failure {
    Failure::new(StatusCode::FORBIDDEN, "FOREIGN_ORIGIN", "the request comes from a page of another site")
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value.to_owned())
}

/// Tells whether `Origin` is there and names the host that the request was sent to.
pub fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(origin), Some(host)) = (text(ORIGIN), text(HOST)) else { return false };
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some_and(|named| named.eq_ignore_ascii_case(host))
}

/// Tells whether `Host` is a loopback name or one of those that were configured.
pub fn is_own_host(headers: &HeaderMap, configured: &[String]) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(name, _)| name),
        None => host.split(':').next(),
    };
    let Some(name) = name else { return false };
    if let Ok(address) = name.parse::<std::net::IpAddr>() {
        return address.is_loopback();
    }
    name.eq_ignore_ascii_case("localhost") || configured.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::HeaderName;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs =
            pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("a value")));
        pairs.collect()
    }

    #[test]
    fn host_is_loopback_or_configured() {
        let own = ["warren.example".to_owned()];
        for (host, expected) in [
            ("127.0.0.1:7340", true),
            ("127.1.2.3", true),
            ("localhost:1", true),
            ("LOCALHOST", true),
            ("[::1]:7340", true),
            ("Warren.example:443", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:7340", false),
            ("[::2]", false),
            ("[", false),
            ("", false),
        ] {
            assert_eq!(is_own_host(&headers(&[(HOST, host)]), &own), expected, "{host}");
        }
        assert!(!is_own_host(&HeaderMap::new(), &own));
        let mut two = headers(&[(HOST, "localhost")]);
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_own_host(&two, &own));
    }

    #[test]
    fn origin_has_to_be_the_host() {
        for (origin, expected) in [
            ("http://localhost:7340", true),
            ("https://localhost:7340", true),
            ("http://localhost:7341", false),
            ("http://evil.example", false),
            ("null", false),
            ("localhost:7340", false),
        ] {
            assert_eq!(
                is_same_origin(&headers(&[(HOST, "localhost:7340"), (ORIGIN, origin)])),
                expected,
                "{origin}"
            );
        }
        assert!(!is_same_origin(&headers(&[(HOST, "localhost:7340")])));
    }

    #[test]
    fn keys_and_logins_admit_and_everything_else_does_not() {
        let now = Timestamp::from_second(1000).expect("a time");
        let later = Timestamp::from_second(2000).expect("a time");
        let access = Access::new(vec![hash("k")], HashMap::from([(hash("t"), later)]));
        let host = (HOST, "localhost");
        let admit = |method: Method, pairs: &[(HeaderName, &str)], now| {
            access.admit(&method, &headers(pairs), now).map_err(|failure| failure.status.as_u16())
        };
        let login = Ok(Caller::Login(hash("t")));
        let mine = (COOKIE, "a=b; warren_session=t");
        assert_eq!(admit(Method::POST, &[host.clone(), (AUTHORIZATION, "Bearer k")], now), Ok(Caller::Key));
        assert_eq!(admit(Method::GET, &[host.clone(), (AUTHORIZATION, "Bearer x")], now), Err(401));
        assert_eq!(admit(Method::GET, &[host.clone(), (AUTHORIZATION, "Basic k")], now), Err(401));
        assert_eq!(admit(Method::GET, std::slice::from_ref(&host), now), Err(401));
        assert_eq!(admit(Method::GET, &[host.clone(), mine.clone()], now), login);
        assert_eq!(admit(Method::GET, &[host.clone(), mine.clone()], later), Err(401));
        assert_eq!(admit(Method::GET, &[host.clone(), (COOKIE, "warren_session=k")], now), Err(401));
        assert_eq!(admit(Method::POST, &[host.clone(), mine.clone()], now), Err(403));
        let foreign = (ORIGIN, "http://evil.example");
        assert_eq!(admit(Method::DELETE, &[host.clone(), mine.clone(), foreign], now), Err(403));
        let own = (ORIGIN, "http://localhost");
        assert_eq!(admit(Method::POST, &[host.clone(), mine.clone(), own], now), login);
        // A wrong key is not made good by a cookie.
        assert_eq!(admit(Method::GET, &[host, mine, (AUTHORIZATION, "Bearer x")], now), Err(401));
        access.remove_login(&hash("t"));
    }
}
