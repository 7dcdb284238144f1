//! Kills the writing process at a random moment and checks that every acknowledged write is still
//! there.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;
use warren_store::{Action, Expect, Key, Storage, Store, Write};

const FILE_VARIABLE: &str = "WARREN_STORE_RECOVERY_FILE";

/// The child process: writes from many tasks and prints each acknowledged name. It does nothing
/// unless the parent starts it.
#[test]
#[ignore = "started by `acknowledged_writes_survive_a_kill`"]
fn child_that_is_killed() {
    let file = std::env::var_os(FILE_VARIABLE).expect("set by the parent test");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&Storage::File(file.into())).unwrap();
        println!("version {}", store.version());
        // The tasks write until the process is killed. A task that ends has failed.
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let store = store.clone();
            writers.spawn(async move {
                loop {
                    let name = format!("o-{:016x}", random());
                    let body = json!({"metadata": {"name": name, "uid": name}, "data": "x".repeat(3000)});
                    let key = Key::new("things", "a", name.as_str());
                    let write = Write { key, expect: Expect::Absent, action: Action::Put(body.into()) };
                    let object = store.write_one(write).await.unwrap();
                    println!("ack {} {}", object.key.name, object.version);
                }
            });
        }
        let _: Result<(), _> = writers.join_next().await.unwrap();
    });
}

/// Returns a random number from the only source of randomness in the standard library.
fn random() -> u64 {
    std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0)
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.db");
    let mut acknowledged = Vec::new();
    let mut newest = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--ignored", "--nocapture"])
            .env(FILE_VARIABLE, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Kill after a number of acknowledgements and not after a time. The number differs in each
        // round.
        let enough = 20 + round * 37;
        let mut seen = 0;
        for line in lines.by_ref() {
            let line = line.unwrap();
            // The harness prints "test … " without a line break before the child's first line.
            if let Some(version) = line.split("version ").nth(1).filter(|_| !line.contains("ack")) {
                let version: u64 = version.trim().parse().unwrap();
                assert!(version >= newest, "the version went back from {newest} to {version}");
            }
            if seen == enough {
                child.kill().unwrap();
            }
            if let Some((name, version)) = line.split("ack ").nth(1).and_then(|rest| rest.split_once(' ')) {
                seen += 1;
                acknowledged.push(name.to_owned());
                newest = newest.max(version.parse().unwrap());
            }
        }
        child.wait().unwrap();
        assert!(seen >= enough, "the child ended early");
    }
    let store = Store::open(&Storage::File(file)).unwrap();
    assert!(store.version() >= newest);
    for name in &acknowledged {
        assert!(
            store.get(&Key::new("things", "a", name.as_str())).is_some(),
            "{name} was acknowledged and is gone"
        );
    }
}
