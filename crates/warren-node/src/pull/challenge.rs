//! Parses a registry's request for authentication: the header `WWW-Authenticate`.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// A requested kind of authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and a password.
    Basic,
    /// A token of the service at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Returns the strongest challenge that we support.
pub(super) fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let mut basic = false;
    for value in values {
        let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            let parameters = parameters(rest);
            let get = |name: &str| {
                parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            };
            if let Some(realm) = get("realm") {
                return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
            }
        }
        basic |= scheme.eq_ignore_ascii_case("basic");
    }
    basic.then_some(Challenge::Basic)
}

/// Parses `name=value` or `name="value"`, with commas between. Anything else ends the list.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while let Some((name, after)) = rest.split_once('=') {
        let (value, behind) = match after.strip_prefix('"') {
            Some(quoted) => match quoted_text(quoted) {
                Some(found) => found,
                None => break,
            },
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((name.trim().to_ascii_lowercase(), value));
        rest = behind.trim_start_matches([' ', ',']);
    }
    found
}

/// Returns the text up to the closing quote, and the rest.
fn quoted_text(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            character => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<Challenge> {
        let pairs = values.iter().map(|value| (WWW_AUTHENTICATE, value.parse().unwrap()));
        challenge(&pairs.collect())
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: "https://auth.example/token".to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        let text = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull,push""#;
        assert_eq!(of(&[text]), Some(bearer(Some("registry.example"), Some("repository:a/b:pull,push"))));
        assert_eq!(of(&["bearer Realm=https://auth.example/token"]), Some(bearer(None, None)));
        let both = ["Basic realm=\"x\"", r#"Bearer realm="https://auth.example/token", service="a\"b""#];
        assert_eq!(of(&both), Some(bearer(Some("a\"b"), None)));
        assert_eq!(of(&["Basic realm=\"x\""]), Some(Challenge::Basic));
        for nothing in ["", "Negotiate", "Bearer", "Bearer realm=\"unclosed", "Bearer service=x"] {
            assert_eq!(of(&[nothing]), None, "{nothing}");
        }
    }
}
