//! Downloads a blob from a registry into a file.

use std::io::SeekFrom;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_RANGE;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::fs::File;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};
use tracing::debug;
use warren_image::manifest::Descriptor;

use super::PullError;
use super::registry::{Ask, Registry};
use crate::worker::chain;

/// The time without data after which a connection counts as broken.
const STALL: Duration = Duration::from_secs(60);
/// The number of times that a broken download is continued. After that the pod's back-off tries
/// again later.
const MOST_ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The progress of a pull in bytes, readable at any time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) total: AtomicU64,
    pub(crate) done: AtomicU64,
}

/// Downloads a blob into an empty file. If a connection breaks, the next one continues there. The
/// length is correct when this returns; the reader checks the content.
pub(super) async fn download(
    registry: &Registry,
    blob: &Descriptor,
    file: &mut File,
    progress: &Progress,
) -> Result<(), PullError> {
    let mut have = 0;
    let mut pause = FIRST_PAUSE;
    for attempt in 1.. {
        let before = have;
        let result = go_on(registry, blob, file, &mut have).await;
        // A restart takes back the bytes that were counted.
        progress.done.fetch_add(have.wrapping_sub(before), Ordering::Relaxed);
        match result {
            Err(problem) if problem.may_pass() && attempt < MOST_ATTEMPTS => {
                debug!(blob = %blob.digest, have, error = %chain(&problem), "blob broke off; going on");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            result => return result,
        }
    }
    Ok(())
}

async fn go_on(
    registry: &Registry,
    blob: &Descriptor,
    file: &mut File,
    have: &mut u64,
) -> Result<(), PullError> {
    if *have == blob.size && blob.size > 0 {
        return Ok(());
    }
    let path = format!("blobs/{}", blob.digest);
    let response = registry.get(Ask { path: &path, from: *have, ..Ask::default() }).await;
    let response = match response {
        // The present bytes are not the beginning of the registry's blob.
        Err(PullError::Answer { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) if *have > 0 => {
            *have = 0;
            return Err(registry.unreachable("it does not have the rest of a blob".to_owned()));
        }
        response => response?,
    };
    let begins = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let begins =
        begins.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse::<u64>().ok());
    let goes_on = response.status() == StatusCode::PARTIAL_CONTENT && begins == Some(*have);
    if !goes_on {
        *have = 0;
    }
    let keep = |source| PullError::Keep { digest: blob.digest.clone(), source };
    file.set_len(*have).await.map_err(keep)?;
    file.seek(SeekFrom::Start(*have)).await.map_err(keep)?;
    let mut body = response.into_body();
    if body.size_hint().exact().is_some_and(|length| *have + length != blob.size) {
        return Err(registry.protocol("a blob has another length than announced"));
    }
    loop {
        let frame = match tokio::time::timeout(STALL, body.frame()).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(registry.unreachable(chain(&error))),
            Err(_) => return Err(registry.unreachable(format!("nothing came for {} s", STALL.as_secs()))),
        };
        let Ok(data) = frame.into_data() else { continue };
        if *have + data.len() as u64 > blob.size {
            return Err(registry.protocol("a blob has another length than announced"));
        }
        file.write_all(&data).await.map_err(keep)?;
        *have += data.len() as u64;
    }
    file.flush().await.map_err(keep)?;
    match *have == blob.size {
        true => Ok(()),
        false => Err(registry.unreachable(format!("a blob ended after {have} of {} bytes", blob.size))),
    }
}
