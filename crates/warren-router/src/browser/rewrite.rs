//! Translates between the URL that a browser sees and the one that a server in a sandbox believes to have.

use http::header::{CONTENT_LOCATION, LOCATION, ORIGIN, REFERER, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// Both sides of a translation.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Host and port under which the browser sees us.
    pub(crate) outside: String,
    /// The beginning of the path there; empty if the host names the sandbox.
    pub(crate) base: String,
    /// Host and port of the server in the sandbox.
    pub(crate) inside: String,
    /// The cookie with the token, which a sandbox may not set.
    pub(crate) cookie: Option<String>,
}

/// Translates a request. Servers compare `Origin` and `Referer` with their own name.
pub(crate) fn request(names: &Names, map: &mut HeaderMap) {
    map.remove(FORWARDED_PREFIX);
    if !names.base.is_empty() {
        map.extend(HeaderValue::from_str(&names.base).ok().map(|base| (FORWARDED_PREFIX, base)));
    }
    let outside = |value: &HeaderValue| -> Option<String> {
        let (scheme, rest) = value.to_str().ok()?.split_once("://")?;
        let rest = rest
            .get(..names.outside.len())?
            .eq_ignore_ascii_case(&names.outside)
            .then(|| rest.get(names.outside.len()..).unwrap_or_default())?;
        (rest.is_empty() || rest.starts_with('/')).then(|| format!("{scheme}\n{rest}"))
    };
    let inside = format!("http://{}", names.inside);
    let is_own = map.get(ORIGIN).is_some_and(|origin| outside(origin).is_some());
    if let (true, Ok(origin)) = (is_own, HeaderValue::from_str(&inside)) {
        map.insert(ORIGIN, origin);
    }
    let referer = map.get(REFERER).and_then(outside);
    if let Some(referer) = referer {
        let path = referer.split_once('\n').map_or("", |(_, path)| path);
        // A page of another sandbox at the same host is not for this one.
        let own = path.strip_prefix(&names.base).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        map.remove(REFERER);
        let translated = own.and_then(|rest| HeaderValue::from_str(&format!("{inside}{rest}")).ok());
        map.extend(translated.map(|referer| (REFERER, referer)));
    }
}

/// Translates an answer.
pub(crate) fn response(names: &Names, map: &mut HeaderMap) {
    for name in [LOCATION, CONTENT_LOCATION] {
        let location = map.get(&name).and_then(|value| value.to_str().ok());
        let translated = location.and_then(|location| self::location(names, location));
        if let Some(value) = translated.and_then(|location| HeaderValue::from_str(&location).ok()) {
            map.insert(name, value);
        }
    }
    if map.contains_key(SET_COOKIE) {
        let set: Vec<HeaderValue> = map.get_all(SET_COOKIE).iter().cloned().collect();
        map.remove(SET_COOKIE);
        for value in &set {
            // One that is not text could hide attributes.
            let translated = value.to_str().ok().and_then(|text| cookie(names, text));
            let translated = translated.and_then(|text| HeaderValue::from_str(&text).ok());
            map.extend(translated.map(|value| (SET_COOKIE, value)));
        }
    }
}

/// Returns where a location of the sandbox is for the browser. `None`: where it says, which is elsewhere or relative.
fn location(names: &Names, location: &str) -> Option<String> {
    let path = match location.split_once("//") {
        Some(("http:" | "https:" | "", rest)) => {
            let (host, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            let port = names.inside.rsplit_once(':').map_or("", |(_, port)| port);
            let is_own = host.eq_ignore_ascii_case(&names.inside)
                || host.eq_ignore_ascii_case(&names.outside)
                || ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"]
                    .iter()
                    .any(|name| host == format!("{name}:{port}"));
            if !is_own {
                return None;
            }
            if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
        }
        _ if location.starts_with('/') => location.to_owned(),
        _ => return None,
    };
    // Servers that know `X-Forwarded-Prefix` have it in their locations already.
    let rest = path.strip_prefix(&names.base).filter(|_| !names.base.is_empty());
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#'])) {
        return Some(path);
    }
    let path = format!("{}{path}", names.base);
    // A path of two slashes would be a host.
    Some(if path.starts_with("//") || path.starts_with("/\\") { format!("/.{path}") } else { path })
}

/// Returns a cookie of the sandbox for the browser: below the sandbox's path, and of our host alone. `None`: the
/// sandbox may not set it.
fn cookie(names: &Names, text: &str) -> Option<String> {
    let mut parts = text.split(';');
    let pair = parts.next()?.trim();
    let name = pair.split('=').next().unwrap_or_default().trim();
    if names.cookie.as_deref() == Some(name) {
        return None;
    }
    let mut translated = pair.to_owned();
    for attribute in parts.map(str::trim) {
        let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.eq_ignore_ascii_case("domain") {
            continue;
        }
        translated.push_str("; ");
        if key.eq_ignore_ascii_case("path") && !names.base.is_empty() {
            let has_it =
                value.strip_prefix(&names.base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            let path = if has_it {
                value.to_owned()
            } else {
                format!("{}/{}", names.base, value.trim_start_matches('/'))
            };
            translated.push_str(&format!("Path={path}"));
        } else {
            translated.push_str(attribute);
        }
    }
    Some(translated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(base: &str) -> Names {
        Names {
            outside: "router.example".to_owned(),
            base: base.to_owned(),
            inside: "10.0.0.1:8888".to_owned(),
            cookie: Some("warren".to_owned()),
        }
    }

    #[test]
    fn locations_of_the_sandbox_are_below_its_path() {
        let names = names("/s/ns/box/8888");
        for (sent, seen) in [
            ("/login?next=%2F", Some("/s/ns/box/8888/login?next=%2F")),
            ("/s/ns/box/8888/login", Some("/s/ns/box/8888/login")),
            ("/s/ns/box/88889", Some("/s/ns/box/8888/s/ns/box/88889")),
            ("http://10.0.0.1:8888/a", Some("/s/ns/box/8888/a")),
            ("http://localhost:8888", Some("/s/ns/box/8888/")),
            ("https://router.example/s/ns/box/8888/a", Some("/s/ns/box/8888/a")),
            ("//router.example?x", Some("/s/ns/box/8888/?x")),
            ("next", None),
            ("https://elsewhere.example/a", None),
            ("//elsewhere.example/a", None),
            ("http://localhost:22/", None),
            ("javascript://router.example/", None),
        ] {
            assert_eq!(location(&names, sent).as_deref(), seen, "{sent}");
        }
    }

    #[test]
    fn a_location_is_never_another_host_by_accident() {
        assert_eq!(
            location(&names(""), "http://10.0.0.1:8888//evil.example").as_deref(),
            Some("/.//evil.example")
        );
        assert_eq!(location(&names(""), "/\\evil.example").as_deref(), Some("/./\\evil.example"));
        assert_eq!(location(&names(""), "/a").as_deref(), Some("/a"));
    }

    #[test]
    fn cookies_of_the_sandbox_stay_below_its_path_and_its_host() {
        let path = names("/s/ns/box/80");
        for (sent, seen) in [
            ("a=1; Path=/; HttpOnly", Some("a=1; Path=/s/ns/box/80/; HttpOnly")),
            ("a=1; path=/s/ns/box/80/x", Some("a=1; Path=/s/ns/box/80/x")),
            ("a=1; Path=/s/ns/other/80", Some("a=1; Path=/s/ns/box/80/s/ns/other/80")),
            ("a=1; Domain=example; Max-Age=1", Some("a=1; Max-Age=1")),
            ("a=1;PATH = x ; DOMAIN = example", Some("a=1; Path=/s/ns/box/80/x")),
            ("a=1", Some("a=1")),
            ("warren=forged; Path=/", None),
            (" warren =forged", None),
        ] {
            assert_eq!(cookie(&path, sent).as_deref(), seen, "{sent}");
        }
        assert_eq!(cookie(&names(""), "a=1; Domain=x; Path=/").as_deref(), Some("a=1; Path=/"));
    }

    #[test]
    fn origin_and_referer_are_the_sandboxs_own() {
        let map = |origin: &str, referer: &str| {
            let mut map = HeaderMap::new();
            map.insert(ORIGIN, origin.parse().expect("a value"));
            map.insert(REFERER, referer.parse().expect("a value"));
            map.insert("x-forwarded-prefix", "/forged".parse().expect("a value"));
            request(&names("/s/ns/box/80"), &mut map);
            let text = |name: &str| map.get(name).map(|value| value.to_str().expect("text").to_owned());
            (text("origin"), text("referer"), text("x-forwarded-prefix"))
        };
        let prefix = Some("/s/ns/box/80".to_owned());
        let own = Some("http://10.0.0.1:8888".to_owned());
        assert_eq!(
            map("https://Router.example", "https://router.example/s/ns/box/80/page?q"),
            (own.clone(), Some("http://10.0.0.1:8888/page?q".to_owned()), prefix.clone())
        );
        assert_eq!(
            map("https://router.example", "https://router.example/s/ns/box/8080/secret"),
            (own, None, prefix.clone())
        );
        let elsewhere = "https://router.example.evil/x".to_owned();
        assert_eq!(
            map("https://router.example.evil", &elsewhere),
            (Some("https://router.example.evil".to_owned()), Some(elsewhere), prefix)
        );
    }
}
