//! Features for browsers that other clients do not need: a cookie in place of a header, a check
//! that the request comes from a page that may send it, and answers whose locations and cookies fit
//! the URL that the browser sees.

mod rewrite;

use http::header::{CACHE_CONTROL, COOKIE, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

pub(crate) use self::rewrite::{Names, request, response};

use crate::answer::{Body, Failure, page};
use crate::authz::bearer;
use crate::target::{Target, Via};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The settings for the authorization of browsers. A browser cannot add headers to a navigation or
/// to the handshake of a WebSocket.
#[derive(Debug, Clone, Default)]
pub struct BrowserConfig {
    /// The name of the cookie that holds a token; `None`: no cookie is read or set.
    pub cookie: Option<String>,
    /// The query parameter in which the first request has the token.
    pub query_param: Option<String>,
    /// When browsers send the cookie.
    pub same_site: SameSite,
    /// The cookie is also for connections without TLS.
    pub insecure: bool,
    /// Other origins whose pages may use the cookie, such as `https://app.example`.
    pub allowed_origins: Vec<String>,
}

/// The attribute `SameSite` of the cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameSite {
    /// Also with navigations from other sites.
    #[default]
    Lax,
    /// Never from other sites.
    Strict,
    /// Always.
    None,
}

/// The part of a request that a token was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Header,
    Query,
    Cookie,
}

/// A token of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credential {
    pub(crate) token: String,
    pub(crate) source: Source,
}

impl BrowserConfig {
    /// Finds the token of a request: in its header, in the query, in the cookie, in this order.
    pub(crate) fn credential(&self, map: &HeaderMap, target: &Target) -> Option<Credential> {
        let found = |token: &str, source| Some(Credential { token: token.to_owned(), source });
        if let Some(token) = bearer(map) {
            return found(token, Source::Header);
        }
        if target.via == Via::Headers {
            return None;
        }
        if let (Some(name), Some(query)) = (&self.query_param, target.path.query()) {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            if let Some((_, token)) = pairs.find(|(key, token)| *key == **name && !token.is_empty()) {
                return found(&token, Source::Query);
            }
        }
        let name = self.cookie.as_deref()?;
        let mut cookies = cookies(map).filter_map(|cookie| cookie.split_once('='));
        cookies.find(|(key, _)| *key == name).and_then(|(_, token)| found(token, Source::Cookie))
    }

    /// Refuses requests that a page of another origin has made the browser send. Only what a browser adds by itself
    /// can be abused like that: a cookie, and the right of everybody where no token is asked for.
    pub(crate) fn check_origin(
        &self,
        map: &HeaderMap,
        target: &Target,
        method: &Method,
        source: Option<Source>,
    ) -> Result<(), Failure> {
        if target.via == Via::Headers || matches!(source, Some(Source::Header | Source::Query)) {
            return Ok(());
        }
        let refused = Err(Failure::Forbidden("Pages of this origin may not send requests to the sandbox."));
        let text = |name: &HeaderName| map.get(name).map(|value| value.to_str().unwrap_or("null"));
        if map.get_all(ORIGIN).iter().count() > 1 {
            return refused;
        }
        if let Some(origin) = text(&ORIGIN) {
            let same =
                origin.split_once("://").is_some_and(|(_, host)| host.eq_ignore_ascii_case(&target.host));
            let allowed = self.allowed_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin));
            return if same || allowed { Ok(()) } else { refused };
        }
        // Images, scripts and frames of another page have no `Origin`, but newer browsers say where they come from.
        let is_foreign = matches!(text(&FETCH_SITE), Some("cross-site" | "same-site"));
        let is_navigation = text(&FETCH_MODE) == Some("navigate")
            && text(&FETCH_DEST) == Some("document")
            && (method == Method::GET || method == Method::HEAD);
        if is_foreign && !is_navigation && self.allowed_origins.is_empty() { refused } else { Ok(()) }
    }

    /// Answers the first request of a browser: the token moves from the URL to a cookie, and the browser asks again.
    /// `None`: there is nothing to move.
    pub(crate) fn hand_over(
        &self,
        credential: &Credential,
        target: &Target,
        method: &Method,
        is_upgrade: bool,
    ) -> Option<Response<Body>> {
        let name = self.cookie.as_deref()?;
        let is_first = credential.source == Source::Query
            && !is_upgrade
            && (method == Method::GET || method == Method::HEAD);
        let fits =
            credential.token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte));
        if !is_first || !fits {
            return None;
        }
        let same_site = match self.same_site {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        };
        let secure = if self.insecure { "" } else { "; Secure" };
        // The path ends with a slash: the cookie of port 80 is not for port 8080.
        let cookie = format!(
            "{name}={}; Path={}/; HttpOnly; SameSite={same_site}{secure}",
            credential.token, target.base
        );
        let query = self.without_token(target.path.query());
        let mut answer = page(StatusCode::FOUND, "text/plain", String::new());
        let headers = answer.headers_mut();
        headers.insert(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
        headers.insert(LOCATION, HeaderValue::from_str(&target.inbound(query.as_deref())).ok()?);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        Some(answer)
    }

    /// Returns a query without the token. All else stays as it was sent.
    pub(crate) fn without_token(&self, query: Option<&str>) -> Option<String> {
        let (query, Some(name)) = (query?, &self.query_param) else { return query.map(str::to_owned) };
        let is_token =
            |pair: &&str| form_urlencoded::parse(pair.as_bytes()).next().is_some_and(|(key, _)| key == *name);
        let kept: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
        Some(kept.join("&"))
    }

    /// Removes the token from the cookies that the sandbox gets.
    pub(crate) fn strip_cookie(&self, map: &mut HeaderMap) {
        let Some(name) = &self.cookie else { return };
        let is_ours = |cookie: &str| cookie.split('=').next() == Some(name);
        if !cookies(map).any(is_ours) {
            return;
        }
        let kept: Vec<&str> = cookies(map).filter(|cookie| !is_ours(cookie)).collect();
        let kept = HeaderValue::from_str(&kept.join("; ")).ok().filter(|value| !value.is_empty());
        map.remove(COOKIE);
        map.extend(kept.map(|kept| (COOKIE, kept)));
    }
}

/// Returns the cookies of a request. One that is not text is left out.
fn cookies(map: &HeaderMap) -> impl Iterator<Item = &str> {
    let headers = map.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    headers.flat_map(|value| value.split(';')).map(str::trim).filter(|cookie| !cookie.is_empty())
}

#[cfg(test)]
mod tests;
