//! The web page, carried in the program.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::answer::{Body, bytes_response, set};

/// The page's files by their paths.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/ui.rs"));

const POLICY: &str = "default-src 'self'; connect-src 'self'; img-src 'self' data:; \
    style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Returns a file, or the page itself for a path that is one of the page's own.
pub fn file(path: &str) -> Response<Body> {
    let name = path.trim_start_matches('/');
    let found = FILES.iter().find(|(file, _)| *file == name);
    // A missing file below `assets/` is not answered with the page.
    let is_asset = name.starts_with("assets/");
    let page = || FILES.iter().find(|(file, _)| *file == "index.html").filter(|_| !is_asset);
    let mut response = match found.or_else(page) {
        Some((name, bytes)) => {
            let mut response = bytes_response(StatusCode::OK, media_type(name), Bytes::from_static(bytes));
            if is_asset {
                // Their names have a hash of their content.
                set(&mut response, CACHE_CONTROL, "public, max-age=31536000, immutable");
            }
            response
        }
        None => bytes_response(StatusCode::NOT_FOUND, "text/plain", Bytes::from_static(b"not found\n")),
    };
    set(&mut response, CONTENT_SECURITY_POLICY, POLICY);
    set(&mut response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(&mut response, REFERRER_POLICY, "no-referrer");
    response
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript",
        "css" => "text/css",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_client_are_the_page_and_missing_assets_are_not() {
        for path in ["/", "/sandboxes/a", "/../../etc/passwd"] {
            let response = file(path);
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
            assert!(response.headers().contains_key("content-security-policy"));
        }
        assert_eq!(file("/assets/none.js").status(), StatusCode::NOT_FOUND);
    }
}
