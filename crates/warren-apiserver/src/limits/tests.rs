//! Tests of the limits.

use http_body_util::{BodyExt, StreamBody};
use serde_json::json;

use super::*;

fn gate(limits: Limits) -> Arc<Gate> {
    Gate::new(limits)
}

#[test]
fn each_client_has_its_own_share_and_gets_it_back() {
    let gate = gate(Limits { requests_per_client: 2, watches_per_client: 1, ..Limits::default() });
    let first = gate.enter("alice", Class::Request).unwrap();
    let second = gate.enter("alice", Class::Request).unwrap();
    let refused = gate.enter("alice", Class::Request).err().unwrap();
    assert_eq!(
        (refused.code.as_u16(), refused.reason, refused.retry_after()),
        (429, "TooManyRequests", Some(1))
    );
    let _watch = gate.enter("alice", Class::Watch).unwrap();
    assert!(gate.enter("alice", Class::Watch).is_err());
    let other = gate.enter("bob", Class::Request).unwrap();
    drop((second, other));
    assert!(gate.enter("alice", Class::Request).is_ok());
    drop(first);
    drop(_watch);
    assert!(gate.clients.lock().unwrap().is_empty(), "who has nothing under way is forgotten");
}

#[test]
fn streams_are_told_from_requests() {
    for (method, uri, expected) in [
        ("GET", "/api/v1/pods", Class::Request),
        ("GET", "/api/v1/pods?watch=true", Class::Watch),
        ("GET", "/api/v1/pods?limit=5&watch=1", Class::Watch),
        ("GET", "/api/v1/pods?%77atch=t", Class::Watch),
        ("GET", "/api/v1/pods?watch=false", Class::Request),
        ("POST", "/api/v1/namespaces/a/pods?watch=true", Class::Request),
        ("POST", "/api/v1/namespaces/a/pods/b/exec?command=x", Class::Watch),
        ("GET", "/api/v1/namespaces/a/pods/b/log?follow=true", Class::Watch),
    ] {
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        assert_eq!(class(&request), expected, "{method} {uri}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
    assert!(check_depth(&nested(DEEPEST_OBJECT)).is_ok());
    assert_eq!(check_depth(&nested(DEEPEST_OBJECT + 1)).unwrap_err().code.as_u16(), 400);
    let text = nested(DEEPEST_OBJECT).to_string();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "what is stored can be read again");
}

#[test]
fn aliases_repeat_a_little_and_not_without_end() {
    let once: Value = read_yaml("a: &a {x: [1, 2]}\nb: *a\n").unwrap();
    assert_eq!(once, json!({"a": {"x": [1, 2]}, "b": {"x": [1, 2]}}));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = level - 1;
        bomb.push_str(&format!(
            "a{level}: &a{level} [*a{below}, *a{below}, *a{below}, *a{below}, *a{below}]\n"
        ));
    }
    assert!(read_yaml::<Value>(&bomb).is_err());
}

#[test]
fn expressions_are_flat_enough_to_be_parsed() {
    for good in [
        "self.size < 100 && (!has(self.a) || self.a.all(x, x.startsWith('(')))",
        "has(oldSelf.a) ? self.a - -1 == oldSelf.a : true",
    ] {
        assert!(expression_is_flat(good), "{good}");
    }
    for bad in [
        "(".repeat(10_000),
        "!".repeat(10_000),
        "- ".repeat(10_000),
        "a ? ".repeat(10_000),
        "[{".repeat(50),
        "a.".repeat(1000),
    ] {
        assert!(!expression_is_flat(&bad), "{}", &bad[..20]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let gate = gate(Limits::default());
    let never = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, BoxError>>());
    let error = PatientBody::new(never, Arc::clone(&gate), true).collect().await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&BodyRefused::Slow(gate.limits.body_time)));
}

#[tokio::test]
async fn bodies_share_what_memory_there_is_for_them() {
    let gate = gate(Limits { unread_body_bytes: 10, ..Limits::default() });
    let body = |size: usize| http_body_util::Full::new(Bytes::from(vec![b'x'; size]));
    let mut first = PatientBody::new(body(8), Arc::clone(&gate), true);
    first.frame().await.unwrap().unwrap();
    let error = PatientBody::new(body(8), Arc::clone(&gate), true).collect().await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&BodyRefused::Crowded));
    drop(first);
    assert!(PatientBody::new(body(8), Arc::clone(&gate), true).collect().await.is_ok());
    assert_eq!(gate.unread_body_bytes.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (_silent, far) = tokio::io::duplex(64);
    let mut stream = FirstByteInTime::new(far, Duration::from_secs(30));
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);

    let (mut near, far) = tokio::io::duplex(64);
    let mut stream = FirstByteInTime::new(far, Duration::from_secs(30));
    near.write_u8(1).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 1);
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(100)).await;
        near.write_u8(2).await
    });
    assert_eq!(stream.read_u8().await.unwrap(), 2, "after the first byte this deadline is gone");
    later.await.unwrap().unwrap();
}
