use super::*;
use crate::Config;
use http::Uri;

fn config() -> BrowserConfig {
    BrowserConfig {
        cookie: Some("warren".to_owned()),
        query_param: Some("token".to_owned()),
        allowed_origins: vec!["https://app.example".to_owned()],
        ..BrowserConfig::default()
    }
}

fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
    list.iter().map(pair).collect()
}

fn target(path: &'static str) -> Target {
    let config = Config { path_routing_prefix: Some("/s".to_owned()), ..Config::default() };
    let map = headers(&[("host", "router.example"), ("x-sandbox-id", "box")]);
    Target::of(&config, &Uri::from_static(path), &map).expect("a target")
}

#[test]
fn tokens_are_found_in_header_query_and_cookie() {
    let found =
        |path, list: &[_]| config().credential(&headers(list), &target(path)).map(|it| (it.token, it.source));
    let url = "/s/ns/box/80/a?x=1&t%6Fken=q";
    let some = |token: &str, source| Some((token.to_owned(), source));
    assert_eq!(
        found(url, &[("authorization", "Bearer h"), ("cookie", "warren=c")]),
        some("h", Source::Header)
    );
    assert_eq!(found(url, &[("cookie", "warren=c")]), some("q", Source::Query));
    assert_eq!(found("/s/ns/box/80/a", &[("cookie", "a=1; warren=c")]), some("c", Source::Cookie));
    assert_eq!(found("/s/ns/box/80/a", &[("cookie", "xwarren=c")]), None);
    // Clients that can send routing headers can send the token in one, too.
    assert_eq!(found("/a?token=q", &[("cookie", "warren=c")]), None);
}

#[test]
fn the_first_request_moves_the_token_to_a_cookie() {
    let (config, target) = (config(), target("/s/ns/box/80/a%2Fb?x=%20&token=t.0-k&y"));
    let credential = config.credential(&HeaderMap::new(), &target).expect("a token");
    let answer = config.hand_over(&credential, &target, &Method::GET, false).expect("an answer");
    let text = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(answer.status(), StatusCode::FOUND);
    assert_eq!(text("location"), "/s/ns/box/80/a%2Fb?x=%20&y");
    assert_eq!(text("set-cookie"), "warren=t.0-k; Path=/s/ns/box/80/; HttpOnly; SameSite=Lax; Secure");
    assert_eq!((text("cache-control"), text("referrer-policy")), ("no-store".into(), "no-referrer".into()));
    assert!(config.hand_over(&credential, &target, &Method::POST, false).is_none());
    assert!(config.hand_over(&credential, &target, &Method::GET, true).is_none());
    let forged = Credential { token: "a; Domain=x".to_owned(), source: Source::Query };
    assert!(config.hand_over(&forged, &target, &Method::GET, false).is_none());
}

#[test]
fn the_sandbox_gets_neither_cookie_nor_parameter() {
    let strip = |list: &[_]| {
        let mut map = headers(list);
        config().strip_cookie(&mut map);
        map.get(COOKIE).map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(strip(&[("cookie", "a=1; warren=t; b=2")]).as_deref(), Some("a=1; b=2"));
    assert_eq!(strip(&[("cookie", "warren=t")]), None);
    assert_eq!(strip(&[("cookie", "a=1;  b=2")]).as_deref(), Some("a=1;  b=2"), "as it was");
    let query = |query| config().without_token(Some(query));
    assert_eq!(query("a=%20&t%6fken=x&b&token=y").as_deref(), Some("a=%20&b"));
    assert_eq!(query("token=x").as_deref(), Some(""));
    assert_eq!(query("xtoken=x&&").as_deref(), Some("xtoken=x&&"));
}

#[test]
fn pages_of_other_origins_are_refused() {
    let check = |list: &[_], source| {
        let strict = BrowserConfig { allowed_origins: Vec::new(), ..config() };
        let target = target("/s/ns/box/80/");
        let of = |config: &BrowserConfig| {
            config.check_origin(&headers(list), &target, &Method::GET, source).is_ok()
        };
        (of(&strict), of(&config()))
    };
    let cookie = Some(Source::Cookie);
    assert_eq!(check(&[], cookie), (true, true));
    assert_eq!(check(&[("origin", "https://router.example")], cookie), (true, true));
    assert_eq!(check(&[("origin", "https://app.example")], cookie), (false, true));
    for evil in
        ["https://evil.example", "null", "https://router.example.evil", "https://router.example:81", ""]
    {
        let mut map = HeaderMap::new();
        map.insert(ORIGIN, HeaderValue::from_str(evil).expect("a value"));
        for source in [cookie, None] {
            let checked = config().check_origin(&map, &target("/s/ns/box/80/"), &Method::GET, source);
            assert!(checked.is_err(), "{evil}");
        }
        // A page cannot forge these.
        for source in [Source::Header, Source::Query] {
            let checked = config().check_origin(&map, &target("/s/ns/box/80/"), &Method::GET, Some(source));
            assert!(checked.is_ok(), "{evil}");
        }
    }
    let image =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
    assert_eq!(check(&image, None), (false, true));
    let frame =
        [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
    assert_eq!(check(&frame, None), (false, true));
    let link =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    assert_eq!(check(&link, None), (true, true));
}
