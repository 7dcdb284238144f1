//! Runs `warren down`.
//!
//! It resembles switching a machine off: the daemon and all processes of all sandboxes end, the
//! objects and files stay, and the next `warren up` starts what should run. With `--keep` only the
//! daemon ends.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use crate::cli::{self, Format};
use crate::home;

/// The time limit for the daemon's end. It needs well under a second; a busy machine may need more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stops the daemon and, unless they are to be kept, the processes of its sandboxes.
pub fn down(arguments: &cli::Down) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    // Wait for a daemon that is starting: otherwise it would be up a moment later.
    warren_local::wait_for_start(data_dir.path())?;
    let holder = warren_local::holder(data_dir.path())?;
    if let Some(holder) = &holder {
        end(holder.pid)?;
    }
    let ended = match arguments.keep {
        true => 0,
        false => warren_local::end_pods(data_dir.path(), &data_dir.home_id())?,
    };
    match arguments.output.output {
        Format::Json => {
            let line = json!({ "stopped": holder.is_some(), "pid": holder.map(|holder| holder.pid), "podsEnded": ended });
            println!("{line}");
        }
        Format::Text => {
            let directory = data_dir.path().display();
            match holder {
                Some(holder) => {
                    eprint!("The local home in `{directory}` (process {}) has stopped", holder.pid)
                }
                None => eprint!("No local home was running in `{directory}`"),
            }
            match (arguments.keep, ended) {
                (true, _) => eprintln!("; its sandboxes run on."),
                (false, 0) => eprintln!("."),
                (false, 1) => eprintln!("; the processes of 1 sandbox were ended."),
                (false, count) => eprintln!("; the processes of {count} sandboxes were ended."),
            }
        }
    }
    Ok(())
}

/// Ends a process and waits until it has ended, by its pidfd: a reused number is never signalled.
fn end(pid: u32) -> anyhow::Result<()> {
    let context = || format!("stop the daemon (process {pid})");
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).with_context(context)?;
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        process => process.with_context(context)?,
    };
    match pidfd_send_signal(&process, Signal::TERM) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        sent => sent.with_context(context)?,
    }
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)).with_context(context)?;
    ensure!(ended == 1, "the daemon (process {pid}) did not end within {} s", PATIENCE.as_secs());
    Ok(())
}
