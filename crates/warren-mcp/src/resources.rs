//! Files of sandboxes as resources, by addresses such as `warren://mcp-abc/tmp/plot.png`.

use rmcp::model::ResourceTemplate;

/// The largest file that is read as a resource. Resources have no parts.
pub const LARGEST: u64 = 4_000_000;

const SCHEME: &str = "warren://";

/// Returns the form of the addresses.
pub fn template() -> ResourceTemplate {
    ResourceTemplate::new("warren://{sandbox_claim_name}/{+path}", "file").with_description(
        "A file of a sandbox. `path` is absolute, without its first `/`. For files beyond 4000000 bytes and for parts, \
         use `download_file`.",
    )
}

/// Reads an address: the sandbox, and the absolute path of the file.
pub fn parse(uri: &str) -> Result<(String, String), String> {
    let invalid = |why: &str| format!("resource `{uri}`: {why}; the form is `warren://SANDBOX/PATH`");
    let rest = uri.strip_prefix(SCHEME).ok_or_else(|| invalid("it does not begin with `warren://`"))?;
    if rest.contains(['?', '#']) {
        return Err(invalid("`?` and `#` in a path have to be `%3F` and `%23`"));
    }
    let (sandbox, path) = rest.split_once('/').ok_or_else(|| invalid("it names no path"))?;
    let path = decode(path)
        .ok_or_else(|| invalid("its path has a `%` without two hexadecimal digits, or is not UTF-8"))?;
    if path.is_empty() {
        return Err(invalid("it names no path"));
    }
    Ok((sandbox.to_owned(), format!("/{path}")))
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'%' => {
                let (digits, after) = after.split_at_checked(2)?;
                let digit =
                    |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                bytes.push(digit(digits[0])? << 4 | digit(digits[1])?);
                after
            }
            other => {
                bytes.push(*other);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

/// Returns the media type of a file by its first bytes.
pub fn media_type(bytes: &[u8], is_text: bool) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'%', b'P', b'D', b'F', b'-', ..] => "application/pdf",
        _ if is_text => "text/plain",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_sandbox_and_an_absolute_path() {
        let valid = |uri| parse(uri).expect(uri);
        assert_eq!(valid("warren://box/tmp/a.txt"), ("box".to_owned(), "/tmp/a.txt".to_owned()));
        assert_eq!(valid("warren://box/a%20b%2F%C3%B6%3F").1, "/a b/ö?");
        for (uri, word) in [
            ("file:///etc/passwd", "warren://"),
            ("warren://box", "no path"),
            ("warren://box/", "no path"),
            ("warren://box/a?b", "%3F"),
            ("warren://box/a%2", "hexadecimal"),
            ("warren://box/a%+1", "hexadecimal"),
            ("warren://box/%ff", "UTF-8"),
        ] {
            let error = parse(uri).expect_err(uri);
            assert!(error.contains(word), "{error}");
        }
    }
}
