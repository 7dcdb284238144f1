//! The daemon's threads and their priorities on a busy machine.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// The number of worker threads. Two keep requests moving while one is busy; the machine's
/// processors are for sandboxes.
const WORKERS: usize = 2;

/// The priority of the API's threads over programs in sandboxes. Other essential services of a
/// machine have similar values.
const AHEAD: i32 = 10;

/// Makes the threads of a node, which wait for disks and for the kernel while pods start.
pub fn of_node() -> io::Result<Runtime> {
    workers("node")
}

/// Makes the threads of the API and the controllers. They get priority, if permitted: clients must
/// not wait for programs in sandboxes or for starts. Call it after the zygote and the node's
/// threads exist, which keep the normal priority, because a thread inherits that of its maker.
pub fn of_api() -> io::Result<Runtime> {
    let ahead = [
        rustix::process::nice(-AHEAD).map(drop).map_err(io::Error::from),
        session_ahead(),
        // A thread with priority still waits for the end of the running slice, which may be
        // milliseconds, unless its own slices are shorter.
        warren_sys::process::in_short_turns(),
        // Other programs may have the kernel write back thousands of files at once.
        warren_sys::process::first_at_disks(),
    ];
    for error in ahead.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "no priority over what runs in sandboxes");
    }
    workers("api")
}

/// Gives the daemon's session priority. If the kernel groups processes by session (`autogroup`),
/// sessions share the processors first. Each starting sandbox would then get as much as the whole
/// daemon, whatever their priorities. A session of a terminal is left alone.
fn session_ahead() -> io::Result<()> {
    match warren_sys::process::leads_its_session() {
        true => std::fs::write("/proc/self/autogroup", format!("-{AHEAD}")),
        false => Ok(()),
    }
}

fn workers(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(WORKERS).thread_name(name).enable_all().build()
}
