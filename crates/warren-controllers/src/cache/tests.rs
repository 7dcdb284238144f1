//! Tests the cache: the order of answers, lists and watch events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::runtime::watcher::Event;

use warren_decide::step::Kind;

use super::{Cache, Index, Keeping, key_of};
use crate::clock::SystemClock;
use crate::queue::WorkQueue;

fn pod(name: &str, version: u64, owner: &str) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            uid: Some("first".to_owned()),
            resource_version: Some(version.to_string()),
            owner_references: Some(vec![OwnerReference {
                uid: owner.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    }
}

/// Builds another pod of that name, in place of the first.
fn next_pod(name: &str, version: u64) -> Pod {
    let mut next = pod(name, version, "x");
    next.metadata.uid = Some("next".to_owned());
    next
}

/// Builds a pod with the label `tracked`, to which the watch is limited.
fn tracked_pod(name: &str, version: u64) -> Pod {
    let mut tracked = pod(name, version, "x");
    tracked.metadata.labels = Some([("tracked".to_owned(), String::new())].into());
    tracked
}

fn cache() -> (Cache<Pod>, Arc<Mutex<Vec<String>>>) {
    let (cache, log, _) = cache_with_doubts();
    (cache, log)
}

fn cache_with_doubts() -> (Cache<Pod>, Arc<Mutex<Vec<String>>>, WorkQueue<Kind>) {
    let keeping = Keeping::<Pod> {
        trim: |_| {},
        indices: |pod| {
            let owners = pod.metadata.owner_references.iter().flatten();
            owners.map(|owner| Index::Controller("default".to_owned(), owner.uid.clone())).collect()
        },
    };
    let doubts = WorkQueue::new("doubt", Arc::new(SystemClock::start()));
    let cache = Cache::with_answers(keeping, Kind::Pod, doubts.clone());
    let log = Arc::new(Mutex::new(Vec::new()));
    let sink = log.clone();
    cache.listen(
        |_| {},
        move |change| {
            let version = |pod: &Arc<Pod>| pod.metadata.resource_version.clone().unwrap();
            sink.lock().unwrap().push(format!(
                "{} {}->{}",
                change.key.name,
                change.before.map(version).unwrap_or_default(),
                change.after.map(version).unwrap_or_default()
            ));
        },
    );
    (cache, log, doubts)
}

#[test]
fn our_own_write_is_seen_at_once_and_its_echo_is_silent() {
    let (cache, log) = cache();
    cache.remember(Arc::new(pod("a", 5, "x")));
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Apply(pod("a", 4, "x")));
    assert_eq!(*log.lock().unwrap(), ["a ->5"]);
}

#[test]
fn a_late_answer_does_not_bring_back_the_dead() {
    let (cache, log) = cache();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Delete(pod("a", 6, "x")));
    cache.remember(Arc::new(pod("a", 5, "x")));
    assert!(cache.get(&key_of(&pod("a", 5, "x"))).is_none());
    assert_eq!(*log.lock().unwrap(), ["a ->5", "a 5->"]);
}

#[test]
fn a_new_list_takes_out_what_is_gone() {
    let (cache, log) = cache();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Apply(pod("b", 6, "x")));
    cache.observe(Event::Init);
    cache.observe(Event::InitApply(pod("b", 6, "x")));
    cache.observe(Event::InitApply(pod("c", 8, "x")));
    cache.observe(Event::InitDone);
    assert_eq!(*log.lock().unwrap(), ["a ->5", "b ->6", "c ->8", "a 5->"]);
}

#[test]
fn an_index_follows_the_object() {
    let (cache, _) = cache();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Apply(pod("b", 6, "x")));
    cache.observe(Event::Apply(pod("a", 7, "y")));
    let names = |owner: &str| -> Vec<String> {
        let found = cache.find(&Index::Controller("default".to_owned(), owner.to_owned()));
        found.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
    };
    assert_eq!((names("x"), names("y")), (vec!["b".to_owned()], vec!["a".to_owned()]));
}

#[test]
fn what_only_an_answer_has_brought_survives_a_list_that_lacks_it_and_is_asked_for() {
    let (cache, log, doubts) = cache_with_doubts();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.remember(Arc::new(pod("b", 7, "x")));
    // The list was taken at version 6.
    cache.observe(Event::Init);
    cache.observe(Event::InitApply(pod("a", 6, "x")));
    cache.observe(Event::InitDone);
    let key = key_of(&pod("b", 7, "x"));
    assert_eq!(doubts.begin(), Some(Kind::Pod));
    assert_eq!(cache.doubtful(Duration::from_secs(1)).0, vec![key.clone()]);
    // The server confirms it: it is in doubt again, and is asked about later.
    assert!(cache.is_still_doubtful(&key, Duration::from_secs(2)));
    let (due, next) = cache.doubtful(Duration::from_secs(12));
    assert!(due.is_empty());
    assert_eq!(next, Some(Duration::from_secs(20)));
    // The watch shows it, and nothing is in doubt.
    cache.observe(Event::Apply(pod("b", 7, "x")));
    assert_eq!(cache.doubtful(Duration::from_secs(100)), (vec![], None));
    assert_eq!(*log.lock().unwrap(), ["a ->5", "b ->7", "a 5->6"]);
}

#[test]
fn a_late_not_found_does_not_take_out_the_next_of_that_name() {
    let (cache, _) = cache();
    let key = key_of(&pod("a", 5, "x"));
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Delete(pod("a", 6, "x")));
    cache.observe(Event::Apply(next_pod("a", 7)));
    cache.forget(&key, "first");
    assert!(cache.get(&key).is_some());
    cache.forget(&key, "next");
    assert!(cache.get(&key).is_none());
}

#[test]
fn a_watch_that_is_behind_does_not_bring_back_what_the_server_has_said_is_gone() {
    let (cache, log) = cache();
    let key = key_of(&pod("a", 9, "x"));
    cache.remember(Arc::new(pod("a", 9, "x")));
    cache.forget(&key, "first");
    cache.observe(Event::Apply(pod("a", 8, "x")));
    cache.observe(Event::Apply(pod("a", 9, "x")));
    cache.remember(Arc::new(pod("a", 9, "x")));
    // It had changed once more before its deletion, which was not seen.
    cache.observe(Event::Apply(pod("a", 10, "x")));
    assert!(cache.get(&key).is_none());
    cache.observe(Event::Delete(pod("a", 11, "x")));
    cache.observe(Event::Apply(next_pod("a", 12)));
    assert_eq!(*log.lock().unwrap(), ["a ->9", "a 9->", "a ->12"]);
}

#[test]
fn what_is_gone_is_forgotten_also_if_the_watch_has_brought_more_of_its_past_meanwhile() {
    let (cache, log) = cache();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    let key = key_of(&pod("a", 5, "x"));
    let asked_about = cache.uid_of(&key).unwrap();
    cache.observe(Event::Apply(pod("a", 7, "x")));
    cache.forget(&key, &asked_about);
    assert_eq!(*log.lock().unwrap(), ["a ->5", "a 5->7", "a 7->"]);
}

#[test]
fn who_has_lost_a_child_is_bereft_once_and_only_while_it_is_there() {
    let (cache, _) = cache();
    let key = key_of(&pod("a", 5, "x"));
    cache.mark_child_lost(&key);
    cache.observe(Event::Apply(pod("a", 5, "x")));
    assert!(!cache.is_newly_bereft(&key), "it was not there then");
    cache.mark_child_lost(&key);
    // The watch's next event may still be older.
    cache.observe(Event::Apply(pod("a", 6, "x")));
    assert!(cache.is_newly_bereft(&key));
    assert!(!cache.is_newly_bereft(&key));
    cache.mark_child_lost(&key);
    cache.observe(Event::Delete(pod("a", 7, "x")));
    cache.observe(Event::Apply(next_pod("a", 8)));
    assert!(!cache.is_newly_bereft(&key), "the next of that name has lost nothing");
}

#[test]
fn an_end_is_told_while_the_object_is_still_there() {
    let cache = Arc::new(Cache::new(Keeping { trim: |_| {}, indices: |_| vec![] }));
    let (inside, log) = (Arc::downgrade(&cache), Arc::new(Mutex::new(Vec::new())));
    let heard = log.clone();
    let ending = move |gone: &Pod| {
        let is_there = inside.upgrade().unwrap().holds(&key_of(gone));
        heard.lock().unwrap().push((gone.metadata.uid.clone().unwrap(), is_there));
    };
    cache.listen(ending, |_| {});
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.observe(Event::Apply(pod("a", 6, "x")));
    cache.observe(Event::Apply(next_pod("a", 7)));
    cache.observe(Event::Delete(next_pod("a", 8)));
    assert_eq!(*log.lock().unwrap(), [("first".to_owned(), true), ("next".to_owned(), true)]);
}

#[test]
fn the_end_of_an_older_object_does_not_take_out_the_next_of_that_name() {
    let (cache, log) = cache();
    cache.remember(Arc::new(pod("a", 9, "x")));
    cache.observe(Event::Delete(pod("a", 7, "x")));
    assert!(cache.get(&key_of(&pod("a", 9, "x"))).is_some());
    assert_eq!(*log.lock().unwrap(), ["a ->9"]);
}

#[test]
fn one_that_took_the_name_of_another_is_told_as_an_end_and_a_beginning() {
    let (cache, log) = cache();
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.remember(Arc::new(next_pod("a", 9)));
    assert_eq!(*log.lock().unwrap(), ["a ->5", "a 5->", "a ->9"]);
}

#[test]
fn a_doubt_about_what_the_watch_has_brought_is_settled_by_one_answer() {
    let (cache, _, doubts) = cache_with_doubts();
    let key = key_of(&pod("a", 5, "x"));
    cache.observe(Event::Apply(pod("a", 5, "x")));
    cache.doubt(&key);
    assert_eq!(doubts.begin(), Some(Kind::Pod));
    assert_eq!(cache.doubtful(Duration::ZERO).0, vec![key.clone()]);
    assert!(!cache.is_still_doubtful(&key, Duration::ZERO));
    assert_eq!(cache.doubtful(Duration::from_secs(100)), (vec![], None));
}

#[test]
fn an_answer_that_comes_while_a_list_is_under_way_is_taken_in() {
    let (cache, log) = cache();
    cache.observe(Event::Init);
    cache.observe(Event::InitApply(pod("a", 9, "x")));
    cache.remember(Arc::new(pod("b", 7, "x")));
    assert!(cache.get(&key_of(&pod("b", 7, "x"))).is_some());
    cache.observe(Event::InitApply(pod("b", 7, "x")));
    cache.observe(Event::InitDone);
    // From here on the list decides about objects that are older than its newest.
    cache.remember(Arc::new(pod("c", 8, "x")));
    assert_eq!(*log.lock().unwrap(), ["a ->9", "b ->7"]);
}

#[test]
fn what_the_watch_leaves_out_is_taken_from_an_answer_however_old_and_is_asked_for_now_and_then() {
    let (cache, log, doubts) = cache_with_doubts();
    cache.watch_only("tracked");
    cache.observe(Event::Apply(tracked_pod("a", 9)));
    cache.remember(Arc::new(tracked_pod("b", 5)));
    cache.remember(Arc::new(pod("c", 5, "x")));
    assert_eq!(*log.lock().unwrap(), ["a ->9", "c ->5"], "the watch has told the end of b");
    // No list contains it, which proves nothing.
    cache.observe(Event::Init);
    cache.observe(Event::InitApply(tracked_pod("a", 9)));
    cache.observe(Event::InitDone);
    let key = key_of(&pod("c", 5, "x"));
    assert_eq!(doubts.begin(), Some(Kind::Pod));
    assert_eq!(cache.doubtful(Duration::from_secs(1)).0, vec![key.clone()]);
    cache.remember(Arc::new(pod("c", 5, "x")));
    assert!(cache.is_still_doubtful(&key, Duration::from_secs(1)));
    assert_eq!(cache.doubtful(Duration::from_secs(2)), (vec![], Some(Duration::from_secs(29))));
    // Once it has the label, the watch shows it.
    cache.observe(Event::Apply(tracked_pod("c", 10)));
    assert_eq!(cache.doubtful(Duration::from_secs(100)), (vec![], None));
}

#[test]
fn one_that_has_lost_the_label_of_the_watch_is_not_gone() {
    let (cache, log) = cache();
    cache.watch_only("tracked");
    // The watch shows the loss as a deletion, before or after an answer that shows the object
    // without the label.
    cache.observe(Event::Apply(tracked_pod("a", 5)));
    cache.observe(Event::Delete(tracked_pod("a", 6)));
    cache.remember(Arc::new(pod("a", 6, "x")));
    cache.observe(Event::Apply(tracked_pod("b", 7)));
    cache.remember(Arc::new(pod("b", 8, "x")));
    cache.observe(Event::Delete(tracked_pod("b", 8)));
    assert_eq!(*log.lock().unwrap(), ["a ->5", "a 5->", "a ->6", "b ->7", "b 7->8"]);
}

#[test]
fn whoever_has_an_answer_finds_it_also_when_the_watch_brings_it_just_then() {
    let (cache, _) = cache();
    let versions = 1..20_000;
    let now = AtomicU64::new(0);
    let missed = std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in versions.clone() {
                let event = Arc::new(pod("a", version, "x"));
                while now.load(Ordering::Acquire) < version {
                    std::thread::yield_now();
                }
                cache.apply(event);
            }
        });
        let is_missed = |version: &u64| {
            let answer = Arc::new(pod("a", *version, "x"));
            let key = key_of(&*answer);
            now.store(*version, Ordering::Release);
            cache.remember(answer);
            crate::object::version(&cache.get(&key).unwrap().metadata) < Some(*version)
        };
        versions.clone().filter(is_missed).count()
    });
    assert_eq!(missed, 0);
}
