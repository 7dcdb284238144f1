//! Measures fan-out: one client creates sandboxes and many watch. The result is the time until a
//! change reaches each watcher.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::load::Outcome;
use super::{collection, sandbox};
use crate::connection::{Endpoint, Lines};

/// The longest time that the last watcher may lag behind the last create.
const PATIENCE: Duration = Duration::from_secs(60);
/// The prefix of the name of every sandbox that is created here, followed by its number. Nothing
/// else in an object looks like this.
const NAME: &[u8] = b"\"name\":\"fan-";

/// Creates sandboxes for a given time, and waits until every watcher has seen all of them.
pub async fn run(
    endpoint: &Endpoint,
    namespace: &str,
    watchers: usize,
    duration: Duration,
) -> anyhow::Result<Outcome> {
    let path = collection(namespace);
    let sent: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let (announce, total) = watch::channel(None::<usize>);
    let mut tasks = JoinSet::new();
    for _ in 0..watchers {
        // Watch from "any version": the collection is empty, so there are no initial objects.
        let lines = endpoint.connect().await?.stream(&format!("{path}?watch=1&resourceVersion=0")).await?;
        tasks.spawn(follow(lines, Arc::clone(&sent), total.clone()));
    }
    let mut writer = endpoint.connect().await?;
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < duration {
        sent.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        writer.create(&path, sandbox(&format!("fan-{number}"))).await?;
        number += 1;
    }
    announce.send_replace(Some(number));
    let mut times = Vec::with_capacity(number * watchers);
    let everybody = async {
        while let Some(watcher) = tasks.join_next().await {
            times.extend(watcher??);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, everybody).await.context("a watcher never saw everything")??;
    Ok(Outcome { times, took: began.elapsed() })
}

/// Reads as many events as there were creates, and returns the latency of each.
async fn follow(
    mut lines: Lines,
    sent: Arc<Mutex<Vec<Instant>>>,
    mut total: watch::Receiver<Option<usize>>,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        if *total.borrow_and_update() == Some(times.len()) {
            return Ok(times);
        }
        let chunk = tokio::select! {
            chunk = lines.next() => chunk?.context("the server ended a watch")?,
            changed = total.changed() => {
                changed.context("the writer failed")?;
                continue;
            }
        };
        let arrived = Instant::now();
        let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
        for number in numbers(&chunk) {
            times.extend(sent.get(number).map(|sent| arrived - *sent));
        }
    }
}

/// Returns the numbers of the sandboxes in some events.
fn numbers(events: &[u8]) -> impl Iterator<Item = usize> {
    events.split(|byte| *byte == b'\n').filter_map(|line| {
        let start = line.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
        let digits = line[start..].iter().take_while(|byte| byte.is_ascii_digit());
        Some(digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn events_are_told_apart_by_the_number_in_the_name() {
        let events = br#"{"type":"ADDED","object":{"metadata":{"name":"fan-7"}}}
{"type":"ADDED","object":{"metadata":{"name":"fan-12","labels":{}}}}
{"type":"BOOKMARK","object":{}}
"#;
        assert_eq!(numbers(events).collect::<Vec<_>>(), [7, 12]);
    }
}
