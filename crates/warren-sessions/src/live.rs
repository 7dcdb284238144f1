//! Viewers that follow a session live.
//!
//! A viewer pulls; nothing is queued for it. The newest events are in memory while a session has viewers, and one that has
//! fallen behind them reads from disk.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use crate::error::SessionError;
use crate::event::Event;
use crate::store::Store;

/// The bytes of a session's newest events that are kept in memory for its viewers.
const RECENT: usize = 256 << 10;

/// The most bytes that a viewer gets at a time.
const MOST_AT_ONCE: usize = 256 << 10;

/// The end of a session that was deleted.
const DELETED: u64 = u64::MAX;

/// The sessions that have viewers.
#[derive(Debug, Default)]
pub(crate) struct Rooms(Mutex<HashMap<String, Weak<Room>>>);

/// The viewers of one session.
#[derive(Debug)]
pub(crate) struct Room {
    /// The offset after the last event on disk.
    end: watch::Sender<u64>,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    events: VecDeque<Event>,
    bytes: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rooms {
    /// Tells viewers of events that are on disk.
    pub(crate) fn publish(&self, session: &str, events: Vec<Event>) {
        let Some(room) = lock(&self.0).get(session).and_then(Weak::upgrade) else { return };
        let Some(end) = events.last().map(|event| event.offset + 1) else { return };
        {
            let mut recent = lock(&room.recent);
            for event in events {
                recent.bytes += event.data.len();
                recent.events.push_back(event);
            }
            while recent.bytes > RECENT
                && let Some(event) = recent.events.pop_front()
            {
                recent.bytes -= event.data.len();
            }
        }
        room.end.send_replace(end);
    }

    /// Ends the viewers of a session that was deleted. A later one of the same id has a room of its own.
    pub(crate) fn close(&self, session: &str) {
        if let Some(room) = lock(&self.0).remove(session).and_then(|room| room.upgrade()) {
            room.end.send_replace(DELETED);
        }
    }

    fn enter(&self, session: &str) -> Arc<Room> {
        let mut rooms = lock(&self.0);
        if let Some(room) = rooms.get(session).and_then(Weak::upgrade) {
            return room;
        }
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Room { end: watch::Sender::new(0), recent: Mutex::default() });
        rooms.insert(session.to_owned(), Arc::downgrade(&room));
        room
    }
}

impl Room {
    /// Returns events from an offset on, if they are still in memory.
    fn recent(&self, from: u64) -> Option<Vec<Event>> {
        let recent = lock(&self.recent);
        let first = recent.events.front()?.offset;
        let skip = usize::try_from(from.checked_sub(first)?).ok()?;
        let mut bytes = 0;
        let fits = |event: &&Event| {
            bytes += event.data.len();
            bytes <= MOST_AT_ONCE
        };
        let events: Vec<Event> = recent.events.iter().skip(skip).take_while(fits).cloned().collect();
        (!events.is_empty()).then_some(events)
    }
}

/// A viewer's place in a session.
#[derive(Debug)]
pub struct Tail {
    store: Store,
    session: String,
    next: u64,
    room: Arc<Room>,
    end: watch::Receiver<u64>,
}

impl Tail {
    pub(crate) async fn new(store: &Store, session: &str, from: u64) -> Result<Self, SessionError> {
        // Entered before the end is read: an event that is stored in between is announced.
        let room = store.rooms().enter(session);
        let end = room.end.subscribe();
        let known = store.session(session).await?;
        if from > known.next_offset {
            return Err(SessionError::Invalid {
                field: "from",
                problem: format!("is {from}; the session's next offset is {}", known.next_offset),
            });
        }
        room.end.send_if_modified(|end| {
            let newer = known.next_offset > *end;
            *end = known.next_offset.max(*end);
            newer
        });
        Ok(Self { store: store.clone(), session: session.to_owned(), next: from, room, end })
    }

    /// Returns the next events, at least one, as soon as there are any. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Event>, SessionError> {
        let next = self.next;
        match self.end.wait_for(|end| *end > next).await {
            Ok(end) if *end == DELETED => return Err(SessionError::NotFound(self.session.clone())),
            Ok(_) => {}
            Err(_) => return Err(SessionError::Closed),
        }
        let events = match self.room.recent(self.next) {
            Some(events) => events,
            None => self.store.read(&self.session, self.next, MOST_AT_ONCE).await?,
        };
        match events.last() {
            Some(last) => self.next = last.offset + 1,
            // Announced and not there: the session was deleted just now.
            None => return Err(SessionError::NotFound(self.session.clone())),
        }
        Ok(events)
    }
}
