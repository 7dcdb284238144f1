//! Tests of the store's public interface, in memory and on a file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers as well")]

use std::sync::Arc;

use serde_json::{Value, json};
use warren_store::{
    Action, ChangeKind, Expect, Filter, Key, LabelSelector, ListError, ListRequest, Object, Storage, Store,
    Urgency, WatchFrom, Write, WriteError,
};

fn pods() -> Arc<str> {
    "pods".into()
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new(pods(), namespace, name)
}

fn body(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels}})
}

async fn create(store: &Store, namespace: &str, name: &str, labels: Value) -> Arc<Object> {
    let write = Write {
        key: key(namespace, name),
        expect: Expect::Absent,
        action: Action::Put(body(name, labels).into()),
    };
    store.write_one(write).await.unwrap()
}

async fn update(store: &Store, object: &Object, labels: Value) -> Result<Arc<Object>, WriteError> {
    let write = Write {
        key: object.key.clone(),
        expect: Expect::Version(object.version),
        action: Action::Put(body(&object.key.name, labels).into()),
    };
    store.write_one(write).await
}

async fn delete(store: &Store, object: &Object) -> Result<Arc<Object>, WriteError> {
    let expect = Expect::Version(object.version);
    store.write_one(Write { key: object.key.clone(), expect, action: Action::Delete }).await
}

fn names(items: &[Arc<Object>]) -> Vec<&str> {
    items.iter().map(|object| &*object.key.name).collect()
}

fn file_store(directory: &tempfile::TempDir) -> Store {
    Store::open(&Storage::File(directory.path().join("store.db"))).unwrap()
}

#[tokio::test]
async fn preconditions_and_versions() {
    let store = Store::open(&Storage::Memory).unwrap();
    let first = create(&store, "a", "one", json!({})).await;
    assert_eq!(first.value()["metadata"]["resourceVersion"], first.version.to_string());

    let again = Write { key: key("a", "one"), expect: Expect::Absent, action: Action::Put(json!({}).into()) };
    assert!(matches!(store.write_one(again).await, Err(WriteError::Exists(_))));

    let second = update(&store, &first, json!({"n": "2"})).await.unwrap();
    assert!(second.version > first.version);
    let stale = update(&store, &first, json!({})).await;
    assert!(matches!(stale, Err(WriteError::Conflict { actual, .. }) if actual == second.version));

    let gone = delete(&store, &second).await.unwrap();
    assert!(gone.version > second.version);
    assert_eq!(gone.value()["metadata"]["labels"], json!({"n": "2"}), "a deletion shows the last state");
    assert!(store.get(&key("a", "one")).is_none());
    assert!(matches!(delete(&store, &second).await, Err(WriteError::Missing(_))));
}

#[tokio::test]
async fn several_writes_are_one() {
    let store = Store::open(&Storage::Memory).unwrap();
    let first = create(&store, "a", "one", json!({})).await;
    let writes = vec![
        Write {
            key: key("a", "two"),
            expect: Expect::Absent,
            action: Action::Put(body("two", json!({})).into()),
        },
        Write { key: key("a", "one"), expect: Expect::Version(first.version + 100), action: Action::Delete },
    ];
    assert!(store.write(writes).await.is_err());
    assert!(store.get(&key("a", "two")).is_none(), "the good half of a refused write is not applied");
    assert_eq!(store.version(), first.version);
}

#[tokio::test]
async fn lists_are_ordered_selected_and_paged_at_one_version() {
    let store = Store::open(&Storage::Memory).unwrap();
    for name in ["d", "b", "a", "c"] {
        create(&store, "x", name, json!({"side": if name < "c" { "left" } else { "right" }})).await;
    }
    create(&store, "y", "e", json!({})).await;
    let resource = pods();
    let all = Filter::default();
    let request = ListRequest { resource: &resource, filter: &all, limit: Some(2), after: None, at: None };
    let page = store.list(&request).unwrap();
    assert_eq!((names(&page.items), page.more, page.remaining), (vec!["a", "b"], true, Some(3)));

    // The remaining objects change between two pages. The second page shows the state of the first.
    let c = store.get(&key("x", "c")).unwrap();
    update(&store, &c, json!({"changed": "yes"})).await.unwrap();
    delete(&store, &store.get(&key("x", "d")).unwrap()).await.unwrap();
    create(&store, "x", "bb", json!({})).await;
    let request = ListRequest { limit: None, after: Some(("x", "b")), at: Some(page.version), ..request };
    let rest = store.list(&request).unwrap();
    assert_eq!((names(&rest.items), rest.more, rest.version), (vec!["c", "d", "e"], false, page.version));
    assert_eq!(rest.items[0].version, c.version);

    let left = Filter { labels: LabelSelector::parse("side=left").unwrap(), ..Filter::default() };
    let request = ListRequest { resource: &resource, filter: &left, limit: None, after: None, at: None };
    assert_eq!(names(&store.list(&request).unwrap().items), ["a", "b"]);
    let y = Filter { namespace: Some("y".to_owned()), ..Filter::default() };
    assert_eq!(names(&store.list(&ListRequest { filter: &y, ..request }).unwrap().items), ["e"]);

    let request =
        ListRequest { resource: &resource, filter: &all, limit: None, after: None, at: Some(10_000) };
    assert!(matches!(store.list(&request), Err(ListError::Future { requested: 10_000, .. })));
}

#[tokio::test]
async fn a_watch_sees_every_change_once_and_resumes() {
    let store = Store::open(&Storage::Memory).unwrap();
    let before = create(&store, "a", "one", json!({})).await;
    let mut watch = store.watch(&pods(), Filter::default(), WatchFrom::Start).unwrap();
    assert_eq!(names(&watch.initial), ["one"]);
    let changed = update(&store, &before, json!({"n": "1"})).await.unwrap();
    delete(&store, &changed).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(watch.next().await.unwrap().kind);
    }
    assert_eq!(seen, [ChangeKind::Modified, ChangeKind::Deleted]);

    let mut resumed = store.watch(&pods(), Filter::default(), WatchFrom::Version(changed.version)).unwrap();
    assert_eq!(resumed.next().await.unwrap().kind, ChangeKind::Deleted);
    assert!(resumed.next_ready().is_none());
}

#[tokio::test]
async fn selection_turns_changes_into_additions_and_deletions() {
    let store = Store::open(&Storage::Memory).unwrap();
    let filter = Filter { labels: LabelSelector::parse("on").unwrap(), ..Filter::default() };
    let mut watch = store.watch(&pods(), filter, WatchFrom::Start).unwrap();
    let object = create(&store, "a", "one", json!({})).await;
    let object = update(&store, &object, json!({"on": "1"})).await.unwrap();
    let object = update(&store, &object, json!({"on": "2"})).await.unwrap();
    let object = update(&store, &object, json!({"off": "3"})).await.unwrap();
    delete(&store, &object).await.unwrap();
    let mut seen = Vec::new();
    while let Some(change) = watch.next_ready() {
        seen.push((
            change.kind,
            change.object.value()["metadata"]["labels"]["on"].clone(),
            change.object.version,
        ));
    }
    let version = object.version;
    assert_eq!(
        seen,
        [
            (ChangeKind::Added, json!("1"), version - 2),
            (ChangeKind::Modified, json!("2"), version - 1),
            (ChangeKind::Deleted, json!("2"), version),
        ]
    );
}

#[tokio::test]
async fn a_watch_by_name_hears_only_of_its_object() {
    let store = Store::open(&Storage::Memory).unwrap();
    let filter =
        Filter { name: Some("two".to_owned()), namespace: Some("a".to_owned()), ..Filter::default() };
    let mut watch = store.watch(&pods(), filter, WatchFrom::Start).unwrap();
    create(&store, "a", "one", json!({})).await;
    create(&store, "b", "two", json!({})).await;
    create(&store, "a", "two", json!({})).await;
    let change = watch.next().await.unwrap();
    assert_eq!((&*change.object.key.namespace, &*change.object.key.name), ("a", "two"));
    assert!(watch.next_ready().is_none());
}

#[tokio::test]
async fn history_is_bounded() {
    let store = Store::open(&Storage::Memory).unwrap();
    let first = create(&store, "a", "one", json!({})).await;
    let mut object = Arc::clone(&first);
    for n in 0..5000 {
        object = update(&store, &object, json!({"n": n.to_string()})).await.unwrap();
    }
    let expired = store.watch(&pods(), Filter::default(), WatchFrom::Version(first.version)).unwrap_err();
    assert_eq!(expired.requested, first.version);
    let mut recent = store.watch(&pods(), Filter::default(), WatchFrom::Version(expired.oldest)).unwrap();
    assert_eq!(recent.next().await.unwrap().object.version, expired.oldest + 1);
}

#[tokio::test]
async fn a_slow_watcher_is_cut_off_and_nobody_else() {
    let store = Store::open(&Storage::Memory).unwrap();
    let mut slow = store.watch(&pods(), Filter::default(), WatchFrom::Start).unwrap();
    let mut object = create(&store, "a", "one", json!({})).await;
    for n in 0..3000 {
        object = update(&store, &object, json!({"n": n.to_string()})).await.unwrap();
    }
    let mut last = 0;
    while let Some(change) = slow.next().await {
        assert!(change.object.version > last);
        last = change.object.version;
    }
    let mut resumed = store.watch(&pods(), Filter::default(), WatchFrom::Version(last)).unwrap();
    assert_eq!(resumed.next().await.unwrap().object.version, last + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_no_update() {
    let directory = tempfile::tempdir().unwrap();
    let store = file_store(&directory);
    create(&store, "a", "counter", json!({"n": "0"})).await;
    let writers: Vec<_> = (0..32)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                create(&store, "a", &format!("own-{writer}"), json!({})).await;
                let mut done = 0;
                while done < 10 {
                    let current = store.newest(&key("a", "counter")).unwrap();
                    let n: u32 = current.meta.label("n").unwrap().parse().unwrap();
                    match update(&store, &current, json!({"n": (n + 1).to_string()})).await {
                        Ok(_) => done += 1,
                        Err(WriteError::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(store.get(&key("a", "counter")).unwrap().meta.label("n"), Some("320"));
    let version = store.version();
    store.close();
    assert!(matches!(
        update(&store, &store.get(&key("a", "counter")).unwrap(), json!({})).await,
        Err(WriteError::Closed)
    ));
    drop(store);

    let reopened = file_store(&directory);
    assert_eq!(reopened.version(), version);
    assert_eq!(reopened.get(&key("a", "counter")).unwrap().meta.label("n"), Some("320"));
    let resource = pods();
    let filter = Filter::default();
    let request = ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
    assert_eq!(reopened.list(&request).unwrap().items.len(), 33);
}

#[tokio::test]
async fn versions_never_go_back_after_the_newest_object_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let store = file_store(&directory);
    let object = create(&store, "a", "one", json!({})).await;
    let gone = delete(&store, &object).await.unwrap();
    store.close();
    drop(store);
    let store = file_store(&directory);
    assert_eq!(store.version(), gone.version);
    assert!(create(&store, "a", "one", json!({})).await.version > gone.version);
    let expired = store.watch(&pods(), Filter::default(), WatchFrom::Version(object.version));
    assert!(expired.is_err(), "what happened before the restart is in no history");
}

fn relabelled(object: &Object, labels: Value) -> Vec<Write> {
    let write = Write {
        key: object.key.clone(),
        expect: Expect::Version(object.version),
        action: Action::Put(body(&object.key.name, labels).into()),
    };
    vec![write]
}

fn only(written: Result<Vec<Arc<Object>>, WriteError>) -> Arc<Object> {
    written.unwrap().pop().unwrap()
}

/// Opens a store whose disk refuses every object with a label `refused`.
fn store_that_refuses(directory: &tempfile::TempDir) -> Store {
    file_store(directory).close();
    let file = rusqlite::Connection::open(directory.path().join("store.db")).unwrap();
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON object WHEN instr(NEW.body, '\"refused\"') > 0
                   BEGIN SELECT RAISE(ABORT, 'refused'); END";
    file.execute_batch(trigger).unwrap();
    drop(file);
    file_store(directory)
}

#[tokio::test]
async fn who_writes_ahead_of_the_disk_goes_on_from_the_answer_and_others_see_it_from_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    for store in [Store::open(&Storage::Memory).unwrap(), file_store(&directory)] {
        let created = create(&store, "a", "one", json!({})).await;
        let mut watch = store.watch(&pods(), Filter::default(), WatchFrom::Start).unwrap();
        let ahead = store.ahead();
        let first = only(ahead.write(relabelled(&created, json!({"n": "1"})), Urgency::CanWait).await);
        assert_eq!(store.newest(&created.key).unwrap().version, first.version, "others write behind it");
        let overtaken = ahead.write(relabelled(&created, json!({"n": "2"})), Urgency::Shown).await;
        assert!(matches!(overtaken, Err(WriteError::Conflict { .. })), "its order is that of everybody");
        let second = only(ahead.write(relabelled(&first, json!({"n": "2"})), Urgency::Shown).await);
        store.reaches_disk(second.version).await.unwrap();
        assert_eq!(store.get(&created.key).unwrap().version, second.version);
        for version in [first.version, second.version] {
            assert_eq!(watch.next().await.unwrap().object.version, version);
        }
    }
    let reopened = {
        let store = file_store(&directory);
        let object = store.get(&key("a", "one")).unwrap();
        let last = only(store.ahead().write(relabelled(&object, json!({"n": "3"})), Urgency::CanWait).await);
        store.close();
        assert_eq!(store.version(), last.version, "what was answered is written before the store closes");
        file_store(&directory)
    };
    assert_eq!(reopened.get(&key("a", "one")).unwrap().meta.label("n"), Some("3"));
}

#[tokio::test]
async fn nothing_is_taken_that_may_follow_from_a_lost_write() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_that_refuses(&directory);
    let one = create(&store, "a", "one", json!({})).await;
    let two = create(&store, "a", "two", json!({})).await;
    let ahead = store.ahead();
    ahead.write(relabelled(&one, json!({"refused": "yes"})), Urgency::CanWait).await.unwrap();
    ahead.lost().await;
    let later = ahead.write(relabelled(&two, json!({"owner": "one"})), Urgency::Shown).await;
    assert!(matches!(later, Err(WriteError::Unfounded)), "{later:?}");
    let delete = Write { key: two.key.clone(), expect: Expect::Present, action: Action::Delete };
    let later = ahead.write(vec![delete], Urgency::Awaited).await;
    assert!(matches!(later, Err(WriteError::Unfounded)), "{later:?}");

    assert_eq!(store.newest(&one.key).unwrap().version, one.version, "it is as it was");
    let one = update(&store, &one, json!({"n": "1"})).await.unwrap();
    let again = store.ahead();
    let two = only(again.write(relabelled(&two, json!({"n": "1"})), Urgency::Shown).await);
    store.reaches_disk(two.version).await.unwrap();
    assert!(matches!(update(&store, &one, json!({"refused": "yes"})).await, Err(WriteError::Commit(_))));
    let later = again.write(relabelled(&two, json!({"n": "2"})), Urgency::Shown).await;
    assert!(later.is_ok(), "nobody had counted on what was refused: {later:?}");
}
