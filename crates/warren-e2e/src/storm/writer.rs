//! A writer: creates, replaces, patches and deletes its own objects until the server is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, StatusCode};
use serde_json::json;

use super::ledger::Share;
use super::{Api, PATH, Seen, object};

/// Writes until a request gets no answer; returns the known state then.
pub(super) async fn write(
    api: Api,
    mut share: Share,
    mut random: fastrand::Rng,
    acknowledged: Arc<AtomicU64>,
) -> Result<Share, String> {
    let names: Vec<String> = share.objects.keys().cloned().collect();
    loop {
        let name = &names[random.usize(..names.len())];
        let known = share.objects.get_mut(name).ok_or("a name from the map")?;
        let uri = format!("{PATH}/{name}");
        let value = random.u64(..);
        let json_body = "application/json";
        let (method, uri, body, wanted) = match (known.acknowledged, random.u8(..4)) {
            (None, _) => {
                (Method::POST, PATH.to_owned(), Some((json_body, object(name, value, None))), Some(value))
            }
            (Some(_), 0) => (Method::DELETE, uri, None, None),
            (Some(seen), 1) => {
                (Method::PUT, uri, Some((json_body, object(name, value, Some(seen.version)))), Some(value))
            }
            (Some(seen), _) => {
                let patch = json!({
                    "metadata": {"resourceVersion": seen.version.to_string()},
                    "data": {"value": value.to_string()},
                });
                (Method::PATCH, uri, Some(("application/merge-patch+json", patch)), Some(value))
            }
        };
        let body = body.as_ref().map(|(content_type, body)| (*content_type, body));
        let Ok(answer) = api.send(method.clone(), &uri, body).await else {
            known.unanswered = Some(wanted);
            return Ok(share);
        };
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            tokio::task::yield_now().await;
            continue;
        }
        if !answer.status.is_success() {
            return Err(format!("{method} {uri}: {}", answer.body));
        }
        known.acknowledged = None;
        if let Some(value) = wanted {
            let (_, seen) =
                Seen::read(&answer.body).ok_or_else(|| format!("{method} {uri}: {}", answer.body))?;
            if seen.value != value {
                return Err(format!("{method} {uri}: wrote {value}, was answered {}", seen.value));
            }
            if seen.version <= share.highest {
                return Err(format!("{method} {uri}: version {} came after {}", seen.version, share.highest));
            }
            share.highest = seen.version;
            known.acknowledged = Some(seen);
        }
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}
