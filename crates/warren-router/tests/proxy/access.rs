//! Authorization of requests, and the ways that a browser shows its token.

use std::sync::atomic::Ordering;

use warren_router::token::{ANY, Claims, KeySet, SigningKey};
use warren_router::{Authorization, BrowserConfig, Config, TokenReviews};

use crate::{HEAD, OK, Setting, detail};

fn claims() -> Claims {
    Claims {
        ns: "default".to_owned(),
        name: "box".to_owned(),
        uid: "sandbox-default-box".to_owned(),
        port: 8888,
        method: ANY.to_owned(),
        path: ANY.to_owned(),
        exp: i64::MAX,
    }
}

fn key() -> SigningKey {
    SigningKey::parse(&SigningKey::generate("test").expect("make a key")).expect("a key")
}

fn believes(key: &SigningKey) -> impl FnOnce(&mut Config) + use<> {
    let keys = KeySet::parse(&key.key_set()).expect("a set of keys");
    |config| {
        config.authorization = Authorization::ScopedToken(keys);
        config.path_routing_prefix = Some("/s".to_owned());
        config.browser = BrowserConfig {
            cookie: Some("sandbox".to_owned()),
            query_param: Some("token".to_owned()),
            ..BrowserConfig::default()
        };
    }
}

fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: router\r\nConnection: close\r\n{headers}\r\n")
}

#[tokio::test]
async fn a_scoped_token_opens_its_sandbox_and_stays_at_the_router() {
    let key = key();
    let setting = Setting::new(believes(&key)).await;
    let token = key.sign(&claims()).expect("sign");
    // Published clients always send these headers. They lead to the same sandbox, and are no reason
    // to refuse.
    let asked = format!(
        "GET /a HTTP/1.1\r\n{HEAD}Authorization: Bearer {token}\r\nX-Sandbox-Pod-IP: 10.9.8.7\r\n\
         X-Sandbox-UID: sandbox-default-box\r\n\r\n"
    );
    let (answer, head) = setting.exchange(&asked, OK).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(!head.contains(&token) && !head.contains("authorization"), "{head}");
}

#[tokio::test]
async fn missing_expired_forged_and_replayed_tokens_are_refused() {
    let (signing, other) = (key(), key());
    let setting = Setting::new(believes(&signing)).await;
    let sign = |claims: Claims| signing.sign(&claims).expect("sign");
    let (invalid, another) = ("The token is not valid.", "The token is not for this request.");
    for (token, status, told) in [
        (String::new(), 401, "A bearer token is required."),
        ("nonsense".to_owned(), 401, invalid),
        (other.sign(&claims()).expect("sign"), 401, invalid),
        (sign(Claims { exp: 1, ..claims() }), 401, invalid),
        (sign(Claims { name: "two".to_owned(), ..claims() }), 403, another),
        (sign(Claims { ns: "other".to_owned(), ..claims() }), 403, another),
        (sign(Claims { port: 22, ..claims() }), 403, another),
        (sign(Claims { method: "POST".to_owned(), ..claims() }), 403, another),
        (sign(Claims { path: "/b".to_owned(), ..claims() }), 403, another),
        // A sandbox of the same name that was there before.
        (sign(Claims { uid: "sandbox-before".to_owned(), ..claims() }), 403, another),
    ] {
        for route in ["/a", "/s/default/box/8888/a"] {
            let answer = setting
                .ask(&get(route, &format!("X-Sandbox-ID: box\r\nAuthorization: Bearer {token}\r\n")))
                .await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token}: {answer}");
            assert_eq!(detail(&answer), told, "{token}");
            assert_eq!(status == 401, answer.contains("www-authenticate: Bearer\r\n"), "{answer}");
        }
    }
    // Neither are tokens in places where no browser puts them.
    let token = sign(claims());
    for headers in
        [format!("X-Sandbox-ID: box\r\nCookie: sandbox={token}\r\n"), "X-Sandbox-ID: box\r\n".to_owned()]
    {
        let answer = setting.ask(&get(&format!("/a?token={token}"), &headers)).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_token_for_one_escaped_path_opens_no_other_spelling_of_it() {
    let key = key();
    let setting = Setting::new(believes(&key)).await;
    let token = key.sign(&Claims { path: "/a%2fb".to_owned(), ..claims() }).expect("sign");
    let asked = |path: &str| get(path, &format!("X-Sandbox-ID: box\r\nAuthorization: Bearer {token}\r\n"));
    let (answer, head) = setting.exchange(&asked("/a%2Fb?any"), OK).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && head.starts_with("GET /a%2Fb?any "), "{head}");
    for other in ["/a/b", "/a%252Fb", "/a%2Fb/", "/a%2Fb/../c", "/./a%2Fb", "//a%2Fb", "/%61%2Fb"] {
        let answer = setting.ask(&asked(other)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{other}: {answer}");
    }
}

#[tokio::test]
async fn a_browser_gets_a_cookie_for_its_token() {
    let key = key();
    let setting = Setting::new(believes(&key)).await;
    let token = key.sign(&claims()).expect("sign");
    let page = "/s/default/box/8888/page";
    let answer = setting.ask(&get(&format!("{page}?a=1&token={token}&b"), "")).await;
    assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
    assert!(answer.contains(&format!("location: {page}?a=1&b\r\n")), "{answer}");
    let cookie =
        format!("set-cookie: sandbox={token}; Path=/s/default/box/8888/; HttpOnly; SameSite=Lax; Secure\r\n");
    assert!(answer.contains(&cookie), "{answer}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0, "the sandbox sees nothing of it");

    let cookies = format!("Cookie: own=1; sandbox={token}\r\n");
    let forged = "HTTP/1.1 200 OK\r\nSet-Cookie: sandbox=forged\r\nContent-Length: 2\r\n\r\nok";
    let (answer, head) = setting.exchange(&get(page, &cookies), forged).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("forged"), "{answer}");
    assert!(head.contains("cookie: own=1\r\n") && !head.contains(&token), "{head}");

    let post = format!(
        "POST {page}?x&token={token} HTTP/1.1\r\nHost: router\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    let (_, head) = setting.exchange(&post, OK).await;
    assert!(head.starts_with("POST /page?x HTTP/1.1\r\n"), "{head}");

    // The cookie is not for pages of others, nor for other sandboxes.
    let evil = setting.ask(&get(page, &format!("{cookies}Origin: https://evil.example\r\n"))).await;
    assert!(evil.starts_with("HTTP/1.1 403 "), "{evil}");
    let other = setting.ask(&get("/s/default/two/8888/", &cookies)).await;
    assert!(other.starts_with("HTTP/1.1 403 "), "{other}");
}

#[tokio::test]
async fn users_of_the_cluster_need_the_right_on_the_sandbox() {
    let setting =
        Setting::new(|config| config.authorization = Authorization::TokenReview(TokenReviews::default()))
            .await;
    let asked = |token: &str, id: &str, namespace: &str| {
        get(
            "/a",
            &format!(
                "X-Sandbox-ID: {id}\r\nX-Sandbox-Namespace: {namespace}\r\nAuthorization: Bearer {token}\r\n"
            ),
        )
    };
    let (answer, head) = setting.exchange(&asked("alice-token", "box", "default"), OK).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && !head.contains("alice"), "{head}");
    let reviews = setting.reviews.load(Ordering::SeqCst);
    let (answer, _) = setting.exchange(&asked("alice-token", "box", "default"), OK).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!((reviews, setting.reviews.load(Ordering::SeqCst)), (2, 2), "the answers are remembered");
    for (token, id, namespace, status) in [
        ("alice-token", "two", "default", 403),
        ("alice-token", "box", "other", 403),
        ("mallory-token", "box", "default", 403),
        ("nobody-token", "box", "default", 401),
        ("", "box", "default", 401),
        // One that is not there, to a client without rights, is as one that is there.
        ("mallory-token", "nothing", "default", 403),
    ] {
        let answer = setting.ask(&asked(token, id, namespace)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{token} {id} {namespace}: {answer}");
    }
    // A terminal is more than reading.
    let upgrade = "GET / HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: box\r\nAuthorization: Bearer alice-token\r\n\
                   Connection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut client = setting.client().await;
    client.say(upgrade).await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "));
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn another_user_of_the_machine_needs_a_token_where_its_owner_needs_none() {
    let key = key();
    let token = key.sign(&claims()).expect("sign");
    let asked = |headers: &str| get("/", &format!("X-Sandbox-ID: box\r\n{headers}"));
    for (is_owner, headers, status) in [
        (true, String::new(), 200),
        (false, String::new(), 403),
        (false, format!("Authorization: Bearer {token}\r\n"), 200),
        (false, "Authorization: Bearer forged\r\n".to_owned(), 401),
    ] {
        let check = std::sync::Arc::new(move |_, _| is_owner);
        let setting = Setting::with(believes(&key), |listener| listener.check = Some(check)).await;
        let answer = match status {
            200 => setting.exchange(&asked(&headers), OK).await.0,
            _ => setting.ask(&asked(&headers)).await,
        };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
    }
}

/// A page of another origin can add a query to a URL. Where no token is needed, that must not stand for one.
#[tokio::test]
async fn a_made_up_token_in_the_query_is_no_way_around_the_check_of_origins() {
    let key = key();
    let check = std::sync::Arc::new(|_, _| true);
    let setting = Setting::with(believes(&key), |listener| listener.check = Some(check)).await;
    let page = "/s/default/box/8888/page?token=x";
    let evil = setting.ask(&get(page, "Origin: https://evil.example\r\n")).await;
    assert!(evil.starts_with("HTTP/1.1 403 "), "{evil}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
    // For the owner's own browser there is nothing to hand over.
    let (own, _) = setting.exchange(&get(page, ""), OK).await;
    assert!(own.starts_with("HTTP/1.1 200 ") && !own.contains("set-cookie"), "{own}");
}
