//! Connections to pods that wait for their next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use tokio::time::Instant;

use crate::body::RequestBody;

/// A connection that a request can be sent on.
pub(crate) type Connection = http1::SendRequest<RequestBody>;
/// A connection that several requests can be sent on at the same time.
pub(crate) type SharedConnection = http2::SendRequest<RequestBody>;

/// The longest time that a connection waits, as in agent-sandbox's router.
const LONGEST_WAIT: Duration = Duration::from_secs(90);
/// The interval of the search for connections that have waited too long, while any wait.
const SWEEP: Duration = Duration::from_secs(15);
/// The most that wait for one port of one pod, and for all.
const MOST_PER_PORT: usize = 16;
const MOST: usize = 512;

/// A port of a pod. By the pod's UID: another pod may get its address.
pub(crate) type PortOfPod = (String, u16);

/// The connections that wait.
#[derive(Default)]
pub(crate) struct Pool {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    connections: HashMap<PortOfPod, Vec<(Connection, Instant)>>,
    /// Those of HTTP/2, and when each was last used.
    shared: HashMap<PortOfPod, (SharedConnection, Instant)>,
    /// The number of connections in `connections`.
    count: usize,
    is_swept: bool,
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Takes the connection that has waited least, if there is one.
    pub(crate) fn take(&self, key: &PortOfPod) -> Option<Connection> {
        let mut waiting = lock(&self.waiting);
        loop {
            let (connection, _) = waiting.connections.get_mut(key)?.pop()?;
            waiting.count -= 1;
            if connection.is_ready() {
                return Some(connection);
            }
        }
    }

    /// Returns the connection of HTTP/2, if there is one.
    pub(crate) fn shared(&self, key: &PortOfPod) -> Option<SharedConnection> {
        let mut waiting = lock(&self.waiting);
        let (connection, used) = waiting.shared.get_mut(key)?;
        if connection.is_closed() {
            waiting.shared.remove(key);
            return None;
        }
        *used = Instant::now();
        Some(connection.clone())
    }

    /// Lets further requests use a connection. One that there is no room for ends with its last request.
    pub(crate) fn share(&self, key: PortOfPod, connection: SharedConnection) {
        let mut waiting = lock(&self.waiting);
        if waiting.shared.len() < MOST {
            waiting.shared.insert(key, (connection, Instant::now()));
            begin_to_sweep(&self.waiting, &mut waiting);
        }
    }

    /// Keeps a connection as soon as the answer on it has been read to its end. One that is closed, or
    /// that there is no room for, is dropped.
    pub(crate) fn give_back(&self, key: PortOfPod, mut connection: Connection) {
        let waiting = Arc::clone(&self.waiting);
        tokio::spawn(async move {
            if connection.ready().await.is_ok() {
                keep(&waiting, key, connection);
            }
        });
    }
}

fn keep(shared: &Arc<Mutex<Waiting>>, key: PortOfPod, connection: Connection) {
    let mut waiting = lock(shared);
    if waiting.count >= MOST {
        return;
    }
    let of_port = waiting.connections.entry(key).or_default();
    if of_port.len() >= MOST_PER_PORT {
        return;
    }
    of_port.push((connection, Instant::now()));
    waiting.count += 1;
    begin_to_sweep(shared, &mut waiting);
}

fn begin_to_sweep(shared: &Arc<Mutex<Waiting>>, waiting: &mut Waiting) {
    if !std::mem::replace(&mut waiting.is_swept, true) {
        tokio::spawn(sweep(Arc::clone(shared)));
    }
}

/// Drops connections that are closed or have waited for too long, until none is left.
async fn sweep(shared: Arc<Mutex<Waiting>>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let mut waiting = lock(&shared);
        waiting.connections.retain(|_, of_port| {
            of_port.retain(|(connection, since)| connection.is_ready() && since.elapsed() < LONGEST_WAIT);
            !of_port.is_empty()
        });
        // Calls that are under way go on without the pool.
        waiting
            .shared
            .retain(|_, (connection, used)| !connection.is_closed() && used.elapsed() < LONGEST_WAIT);
        waiting.count = waiting.connections.values().map(Vec::len).sum();
        if waiting.count == 0 && waiting.shared.is_empty() {
            waiting.is_swept = false;
            return;
        }
    }
}
