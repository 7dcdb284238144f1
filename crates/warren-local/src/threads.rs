//! The daemon's threads, and who goes first when there is more to do than processors.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Two keep requests moving while one of them waits; the machine's processors are for sandboxes.
const WORKERS: usize = 2;

/// So far ahead of what runs in sandboxes are those who answer, as other services are that a machine's work waits for.
const AHEAD: i32 = 10;

/// The threads of a node, which waits for disks and for the kernel while it starts pods.
pub fn of_node() -> io::Result<Runtime> {
    workers("node")
}

/// The threads of those who answer: the API and the controllers. They go first, if that may be: whatever runs in sandboxes, and however
/// many are being started, clients must not wait for it. To be made when the zygote and the threads of the node exist, which stay
/// where they are: each thread begins as its maker.
pub fn of_api() -> io::Result<Runtime> {
    let ahead = [
        rustix::process::nice(-AHEAD).map(drop).map_err(io::Error::from),
        session_ahead(),
        // What is ahead still waits until the turn of whoever runs is over, which may be milliseconds, unless its own turns are shorter.
        warren_sys::process::in_short_turns(),
        // Others have the kernel write thousands of files at once, and leave it to it when.
        warren_sys::process::first_at_disks(),
    ];
    for error in ahead.into_iter().filter_map(Result::err) {
        tracing::debug!(%error, "no priority over what runs in sandboxes");
    }
    workers("api")
}

/// Sessions share the processors before their processes do, where the kernel groups processes by session (`autogroup`): without this, each
/// sandbox that is being started has as much as the whole daemon, whatever their priorities. Not for a session that is somebody's
/// terminal.
fn session_ahead() -> io::Result<()> {
    match warren_sys::process::leads_its_session() {
        true => std::fs::write("/proc/self/autogroup", format!("-{AHEAD}")),
        false => Ok(()),
    }
}

fn workers(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(WORKERS).thread_name(name).enable_all().build()
}
