//! Queues events: decides which is written next, and when.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::{Happening, Told};

/// The most warnings that wait. Beyond that the oldest are dropped.
const MOST_URGENT: usize = 256;
/// The most ordinary events that wait. Beyond that the oldest are dropped.
const MOST_ORDINARY: usize = 1024;
/// The shortest delay of an ordinary event: it must not slow down a pod that is started and used at
/// once.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most ordinary events per second (kubelet's `eventRecordQPS`). While more arrive, none is
/// written.
const PER_SECOND: usize = 50;
/// The number of pods that are remembered as having written events.
const MOST_TOLD: usize = 4096;

/// The next action.
#[derive(Debug)]
pub(super) enum Next {
    /// Write this event.
    Write(Box<Happening>),
    /// Ask again at this time, unless an event arrives before.
    Wait(Instant),
    /// The queue is empty.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Backlog {
    urgent: VecDeque<Happening>,
    ordinary: VecDeque<(Instant, Happening)>,
    /// The arrival times of the last [`PER_SECOND`] ordinary events.
    arrivals: VecDeque<Instant>,
    /// The time from which the next ordinary event may be written.
    free_at: Instant,
    /// The uids of pods with a written event.
    told: HashSet<String>,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            urgent: VecDeque::new(),
            ordinary: VecDeque::new(),
            arrivals: VecDeque::new(),
            free_at: Instant::now(),
            told: HashSet::new(),
        }
    }

    pub(super) fn take(&mut self, told: Told, now: Instant) {
        match told {
            Told::Now(happening) => push(&mut self.urgent, happening, MOST_URGENT),
            Told::Later(happening) => {
                push(&mut self.ordinary, (now, happening), MOST_ORDINARY);
                push(&mut self.arrivals, now, PER_SECOND);
            }
            // This message may come more than once, so the uid is kept.
            Told::Gone(uid) => {
                if !self.told.contains(&uid) {
                    self.ordinary.retain(|(_, happening)| happening.uid() != uid);
                }
            }
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Next {
        if let Some(happening) = self.urgent.pop_front() {
            return self.write(happening);
        }
        let Some((came, _)) = self.ordinary.front() else { return Next::Nothing };
        let mut due = (*came + PATIENCE).max(self.free_at);
        if let (PER_SECOND, Some(earliest)) = (self.arrivals.len(), self.arrivals.front()) {
            due = due.max(*earliest + Duration::from_secs(1));
        }
        if due > now {
            return Next::Wait(due);
        }
        self.free_at = now + Duration::from_secs(1) / PER_SECOND as u32;
        match self.ordinary.pop_front() {
            Some((_, happening)) => self.write(happening),
            None => Next::Nothing,
        }
    }

    fn write(&mut self, happening: Happening) -> Next {
        if self.told.len() >= MOST_TOLD {
            self.told.clear();
        }
        self.told.insert(happening.uid().to_owned());
        Next::Write(Box::new(happening))
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::ObjectReference;
    use tokio::time::Instant;

    use super::super::{Happening, KUBELET, Severity, Told};
    use super::{Backlog, MOST_ORDINARY, Next, PATIENCE, PER_SECOND};

    fn happening(uid: &str, reason: &'static str) -> Happening {
        let about = ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
        let (severity, message) = (Severity::Normal, String::new());
        Happening { about, component: KUBELET, severity, reason, message, at: Timestamp::UNIX_EPOCH }
    }

    fn later(uid: &str, reason: &'static str) -> Told {
        Told::Later(happening(uid, reason))
    }

    /// Returns the events that are written by `until`. The clock advances to each wake-up.
    fn written(backlog: &mut Backlog, mut now: Instant, until: Instant) -> Vec<String> {
        let mut written = Vec::new();
        loop {
            match backlog.next(now) {
                Next::Write(happening) => written.push(format!("{} {}", happening.uid(), happening.reason)),
                Next::Wait(time) if time <= until => now = time,
                Next::Wait(_) | Next::Nothing => return written,
            }
        }
    }

    #[test]
    fn trouble_is_written_at_once_and_an_ordinary_life_a_moment_later() {
        let (mut backlog, start) = (Backlog::new(), Instant::now());
        backlog.take(later("a", "Started"), start);
        backlog.take(Told::Now(happening("a", "BackOff")), start);
        assert_eq!(written(&mut backlog, start, start), ["a BackOff"]);
        assert_eq!(written(&mut backlog, start, start + PATIENCE / 2), Vec::<String>::new());
        assert_eq!(written(&mut backlog, start, start + PATIENCE), ["a Started"]);
        assert!(matches!(backlog.next(start + PATIENCE), Next::Nothing));
    }

    #[test]
    fn a_pod_that_is_gone_before_anything_was_written_of_it_leaves_no_event() {
        let (mut backlog, start) = (Backlog::new(), Instant::now());
        backlog.take(later("short", "Started"), start);
        backlog.take(later("long", "Started"), start);
        backlog.take(Told::Gone("short".to_owned()), start);
        let end = start + PATIENCE;
        assert_eq!(written(&mut backlog, start, end), ["long Started"]);
        backlog.take(later("long", "Killing"), end);
        backlog.take(Told::Gone("long".to_owned()), end);
        assert_eq!(written(&mut backlog, end, end + PATIENCE), ["long Killing"]);
    }

    #[test]
    fn while_many_pods_start_nothing_ordinary_is_written_and_the_oldest_is_dropped() {
        let (mut backlog, start) = (Backlog::new(), Instant::now());
        let names: Vec<String> = (0..2 * MOST_ORDINARY).map(|number| number.to_string()).collect();
        let mut now = start;
        for name in &names {
            now += Duration::from_secs(1) / (2 * PER_SECOND) as u32;
            backlog.take(later(name, "Started"), now);
            assert!(matches!(backlog.next(now), Next::Wait(_)), "one was written beside the starts");
        }
        let end = now + Duration::from_secs(3600);
        let left = written(&mut backlog, now, end);
        assert_eq!(left.len(), MOST_ORDINARY);
        assert_eq!(left[0], format!("{MOST_ORDINARY} Started"));
        let Next::Nothing = backlog.next(end) else { panic!("something is left") };
    }
}
