//! Reads a watch: newline-delimited JSON events from an endless body.

use http_body_util::BodyExt as _;
use serde_json::Value;

use super::target::{AnswerBody, TransportError};

/// The longest event. Those of scenarios are much shorter; a server without newlines must not fill
/// the memory.
const LONGEST_EVENT: usize = 16 << 20;

/// An open watch and the received bytes of its next event.
pub(crate) struct Watching {
    body: AnswerBody,
    buffer: Vec<u8>,
}

impl Watching {
    pub(crate) fn new(body: AnswerBody) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// Returns the next event; `None` when the server has closed the stream. Cancel-safe: no bytes
    /// are lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, TransportError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.buffer.len() > LONGEST_EVENT {
                return Err("an event without an end".into());
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                // The last event may come without its newline.
                None => self.buffer.push(b'\n'),
            }
        }
    }
}
