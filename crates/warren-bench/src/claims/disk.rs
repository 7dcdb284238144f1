//! What the disk alone would take: a warm claim is a create and three writes, each on the disk before the next begins. The same chain of
//! plain writes, at the times of the claims of the part `steady`, says how much of a claim's time is the disk's.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::summary::Summary;

/// A create, the assignment in two writes, and the status.
const WRITES: usize = 4;
/// About what the log of the store grows by in each.
const BYTES: usize = 24 << 10;
/// The length of the log, more or less.
const LENGTH: usize = 4 << 20;

/// Makes the chains at their times, one after the other.
#[expect(clippy::disallowed_methods, reason = "what is waited for is the time of the next chain")]
pub fn measure(arrivals: &[Duration]) -> anyhow::Result<Option<Summary>> {
    eprintln!("disk: {} chains of plain writes", arrivals.len());
    let file: File = tempfile::tempfile()?;
    let bytes = vec![0x55; BYTES];
    // As the log of a store, the file has its length, and is written from the beginning again and again.
    let places = (0..LENGTH).step_by(BYTES).map(|place| place as u64);
    for place in places.clone() {
        file.write_all_at(&bytes, place)?;
    }
    file.sync_all()?;
    let mut places = places.cycle();
    let began = Instant::now();
    let mut times = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        // A chain that is late because of the one before counts from when it should have begun, as a claim does.
        let at = began + *arrival;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        for place in places.by_ref().take(WRITES) {
            file.write_all_at(&bytes, place)?;
            file.sync_data()?;
        }
        times.push(at.elapsed());
    }
    Ok(Summary::of("four plain writes on the disk", times))
}
