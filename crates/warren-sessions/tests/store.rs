//! Sessions on disk: offsets, replay, following, limits.

use jiff::Timestamp;
use warren_sessions::{Event, Kind, Limits, NewEvent, NewSession, SessionError, Source, Store, Turn};

fn output(text: &str) -> NewEvent {
    NewEvent { kind: Kind::TerminalOutput, source: Source::Agent, data: text.as_bytes().to_vec() }
}

fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8_lossy(&event.data).into_owned()).collect()
}

async fn store(limits: Limits) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("make a directory");
    let store = Store::open(&directory.path().join("sessions.db"), limits).expect("open");
    store.create("s", NewSession::default(), Timestamp::now()).await.expect("create");
    (directory, store)
}

#[tokio::test]
async fn events_have_consecutive_offsets_and_are_read_from_any_of_them_after_a_restart() {
    let (directory, store) = store(Limits::default()).await;
    let now = Timestamp::now();
    assert_eq!(store.append("s", vec![output("a"), output("b")], None, now).await, Ok(0));
    assert_eq!(store.append("s", vec![output("c")], None, now).await, Ok(2));
    let error = store.append("none", vec![output("x")], None, now).await;
    assert_eq!(error, Err(SessionError::NotFound("none".to_owned())));
    drop(store);
    let store = Store::open(&directory.path().join("sessions.db"), Limits::default()).expect("open again");
    assert_eq!(texts(&store.read("s", 1, 1 << 20).await.expect("read")), ["b", "c"]);
    assert_eq!(texts(&store.read("s", 0, 1).await.expect("read")), ["a"], "at least one");
    let session = store.session("s").await.expect("the session");
    assert_eq!((session.next_offset, session.bytes), (3, 3));
    let again = store.create("s", NewSession::default(), now).await;
    assert_eq!(again, Err(SessionError::Exists("s".to_owned())));
}

#[tokio::test]
async fn append_that_is_sent_again_is_stored_once() {
    let (_directory, store) = store(Limits::default()).await;
    let now = Timestamp::now();
    let turn = |number| Some(Turn { writer: "w".to_owned(), number });
    assert_eq!(store.append("s", vec![output("a")], turn(1), now).await, Ok(0));
    assert_eq!(store.append("s", vec![output("other")], None, now).await, Ok(1));
    assert_eq!(store.append("s", vec![output("a")], turn(1), now).await, Ok(0));
    assert_eq!(store.append("s", vec![output("b")], turn(2), now).await, Ok(2));
    let stale = store.append("s", vec![output("a")], turn(1), now).await;
    assert!(matches!(stale, Err(SessionError::Invalid { field: "turn", .. })), "{stale:?}");
    assert_eq!(texts(&store.read("s", 0, 1 << 20).await.expect("read")), ["a", "other", "b"]);
}

#[tokio::test]
async fn viewer_that_fell_behind_memory_reads_on_from_disk() {
    let (_directory, store) = store(Limits::default()).await;
    let mut slow = store.tail("s", 0).await.expect("follow");
    // Far more than is kept in memory for viewers.
    for number in 0..200 {
        let text = format!("{number:03}").repeat(3000);
        store.append("s", vec![output(&text)], None, Timestamp::now()).await.expect("append");
    }
    let mut quick = store.tail("s", 199).await.expect("follow");
    assert_eq!(quick.next().await.expect("the last")[0].offset, 199);
    let mut seen = Vec::new();
    while seen.len() < 200 {
        seen.extend(slow.next().await.expect("events").into_iter().map(|event| event.offset));
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    let ahead = store.tail("s", 201).await;
    assert!(matches!(ahead, Err(SessionError::Invalid { field: "from", .. })), "{ahead:?}");
}

#[tokio::test]
async fn session_beyond_its_limit_loses_its_oldest_events_and_says_so() {
    let limits = Limits { event_bytes: 100, session_bytes: 1000 };
    let (_directory, store) = store(limits).await;
    for _ in 0..50 {
        store.append("s", vec![output(&"x".repeat(100))], None, Timestamp::now()).await.expect("append");
    }
    let session = store.session("s").await.expect("the session");
    assert!(session.bytes <= 1000 && session.first_offset >= 40, "{session:?}");
    let first = session.first_offset;
    let trimmed = SessionError::Trimmed { session: "s".to_owned(), first };
    assert_eq!(store.read("s", 0, 1 << 20).await, Err(trimmed));
    assert_eq!(
        store.read("s", first, 1 << 20).await.expect("read").last().map(|event| event.offset),
        Some(49)
    );
    let large = store.append("s", vec![output(&"x".repeat(101))], None, Timestamp::now()).await;
    assert!(matches!(large, Err(SessionError::Invalid { field: "data", .. })), "{large:?}");
}

#[tokio::test]
async fn sessions_without_events_since_a_time_are_deleted() {
    let (_directory, store) = store(Limits::default()).await;
    let old = Timestamp::UNIX_EPOCH;
    store.create("old", NewSession::default(), old).await.expect("create");
    store.append("old", vec![output("x")], None, old).await.expect("append");
    let mut viewer = store.tail("old", 1).await.expect("follow");
    assert_eq!(store.expire(Timestamp::from_second(10).expect("a time")).await, Ok(1));
    let ids: Vec<String> =
        store.list(10).await.expect("list").into_iter().map(|session| session.id).collect();
    assert_eq!(ids, ["s"]);
    let gone = viewer.next().await;
    assert_eq!(gone, Err(SessionError::NotFound("old".to_owned())), "its viewers end");
    // A later session of the same id starts anew.
    store.create("old", NewSession::default(), Timestamp::now()).await.expect("create again");
    assert_eq!(store.append("old", vec![output("y")], None, Timestamp::now()).await, Ok(0));
}
