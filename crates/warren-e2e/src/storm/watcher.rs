//! A watcher that survives kills: it resumes from the last version it saw, or lists again when it
//! has to.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::{Api, DEADLINE, MARKER, PATH, SELECTOR, Seen};
use crate::conformance::target::Target as _;

/// The state of a watcher.
#[derive(Debug, Default)]
pub(super) struct Watcher {
    view: BTreeMap<String, Seen>,
    /// The version up to which it has seen everything; `None` before the first list.
    version: Option<u64>,
    /// The number of resumed watches.
    pub resumed: u64,
    /// The number of watches that could not be resumed.
    pub expired: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The awaited version has come.
    Reached,
    /// The connection is gone.
    Lost,
    /// 410: list again.
    Expired,
}

impl Watcher {
    pub fn version(&self) -> u64 {
        self.version.unwrap_or(0)
    }

    /// Watches until the server is gone.
    pub async fn follow(mut self, api: Api) -> Result<Watcher, String> {
        loop {
            if self.version.is_none() && self.list(&api).await.is_err() {
                return Ok(self);
            }
            match self.watch(&api, u64::MAX).await? {
                End::Expired => self.version = None,
                // Disconnected for being slow: the server is still there.
                End::Lost if api.list().await.is_ok() => {}
                End::Lost | End::Reached => return Ok(self),
            }
        }
    }

    /// Watches until it has seen everything up to `version`, resuming from before the kill.
    pub async fn catch_up(&mut self, api: &Api, version: u64) -> Result<(), String> {
        let before = self.version;
        let watching = async {
            loop {
                if self.version.is_none() {
                    self.list(api).await?;
                }
                if self.version() >= version {
                    return Ok(());
                }
                match self.watch(api, version).await? {
                    End::Reached => {
                        self.resumed += u64::from(before.is_some());
                        return Ok(());
                    }
                    End::Lost => return Err("a watch on a running server ended".to_owned()),
                    End::Expired => {
                        self.expired += 1;
                        self.version = None;
                    }
                }
            }
        };
        match tokio::time::timeout(DEADLINE, watching).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("a watch from {before:?} never came to {version}")),
        }
    }

    /// Checks that its state matches the list.
    pub fn compare(&self, found: &[(String, Seen)]) -> Result<(), String> {
        let found: BTreeMap<String, Seen> = found.iter().cloned().collect();
        if self.view != found {
            return Err(format!("the watcher believes {:?}, and there is {found:?}", self.view));
        }
        Ok(())
    }

    async fn list(&mut self, api: &Api) -> Result<(), String> {
        let (version, found) = api.list().await?;
        if version < self.version() {
            return Err(format!("a list is older than what was seen: {version} after {}", self.version()));
        }
        self.view = found.into_iter().collect();
        self.version = Some(version);
        Ok(())
    }

    async fn watch(&mut self, api: &Api, until: u64) -> Result<End, String> {
        let uri = format!(
            "{PATH}?{SELECTOR}&watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.version()
        );
        let request = Request::get(uri).body(Bytes::new()).map_err(|error| error.to_string())?;
        let Ok(response) = api.target.call(request).await else { return Ok(End::Lost) };
        if response.status() == http::StatusCode::GONE {
            return Ok(End::Expired);
        }
        let mut body = response.into_body();
        let mut buffer = BytesMut::new();
        while let Some(Ok(frame)) = body.frame().await {
            buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                let event: Value = serde_json::from_slice(&line).map_err(|error| error.to_string())?;
                if !self.take(&event)? {
                    return Ok(End::Expired);
                }
                if self.version() >= until {
                    return Ok(End::Reached);
                }
            }
        }
        Ok(End::Lost)
    }

    /// Applies an event; returns false if the event says that the version is too old.
    fn take(&mut self, event: &Value) -> Result<bool, String> {
        let object = &event["object"];
        if event["type"] == "ERROR" {
            return match object["code"].as_u64() {
                Some(410) => Ok(false),
                _ => Err(format!("watch: {object}")),
            };
        }
        let version =
            object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
        let version = version.ok_or_else(|| format!("an event without a version: {event}"))?;
        let bookmark = event["type"] == "BOOKMARK";
        if version < self.version() || (version == self.version() && !bookmark) {
            return Err(format!("an event of version {version} came after {}: {event}", self.version()));
        }
        self.version = Some(version);
        let Some((name, seen)) = Seen::read(object).filter(|(name, _)| !bookmark && name != MARKER) else {
            return Ok(true);
        };
        match event["type"].as_str() {
            Some("DELETED") => {
                self.view.remove(&name);
            }
            _ => {
                self.view.insert(name, seen);
            }
        }
        Ok(true)
    }
}
