//! Sessions as files: JSON lines with everything, and asciicast for terminal players.

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::json;

use crate::event::{Event, Kind, Session};

/// Writes events as JSON, one on each line.
pub fn json_lines<'a>(
    output: &mut impl Write,
    events: impl IntoIterator<Item = &'a Event>,
) -> io::Result<()> {
    for event in events {
        serde_json::to_writer(&mut *output, event)?;
        output.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes what a terminal showed as asciicast, version 2. Events are given in order, in as many calls as there are parts.
#[derive(Debug)]
pub struct Asciicast {
    start: Timestamp,
    /// The beginning of a character whose rest is in the next event.
    incomplete: Vec<u8>,
    last: u8,
}

impl Asciicast {
    /// Writes the header.
    pub fn begin(output: &mut impl Write, session: &Session, columns: u16, rows: u16) -> io::Result<Self> {
        let header = json!({
            "version": 2, "width": columns, "height": rows,
            "timestamp": session.created.as_second(), "title": session.title,
        });
        writeln!(output, "{header}")?;
        Ok(Self { start: session.created, incomplete: Vec::new(), last: 0 })
    }

    /// Writes a part. Events that are not of a terminal are left out.
    pub fn events<'a>(
        &mut self,
        output: &mut impl Write,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> io::Result<()> {
        for event in events {
            let (code, text) = match event.kind {
                Kind::TerminalOutput | Kind::TerminalError => ("o", self.output_text(&event.data)),
                Kind::TerminalInput => ("i", String::from_utf8_lossy(&event.data).into_owned()),
                _ => continue,
            };
            if text.is_empty() {
                continue;
            }
            let seconds = event.time.duration_since(self.start).as_secs_f64().max(0.0);
            writeln!(output, "{}", json!([seconds, code, text]))?;
        }
        Ok(())
    }

    /// Returns output as text, with `\r\n` where a command wrote `\n`: players show it as a terminal would.
    fn output_text(&mut self, data: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.incomplete);
        bytes.extend_from_slice(data);
        let end = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // Bytes that are not UTF-8 in the middle are replaced; an incomplete end may follow them.
            _ => bytes.utf8_chunks().last().map_or(bytes.len(), |chunk| {
                let invalid = chunk.invalid();
                let incomplete = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
                if incomplete { bytes.len() - invalid.len() } else { bytes.len() }
            }),
        };
        self.incomplete = bytes.split_off(end);
        let mut text = String::new();
        for character in String::from_utf8_lossy(&bytes).chars() {
            if character == '\n' && self.last != b'\r' {
                text.push('\r');
            }
            self.last = if character == '\r' { b'\r' } else { 0 };
            text.push(character);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Source;

    fn event(offset: u64, kind: Kind, data: &[u8]) -> Event {
        let time = Timestamp::from_millisecond(1_000_000 + offset.cast_signed() * 500).expect("a time");
        Event { offset, time, kind, source: Source::Agent, data: data.to_vec() }
    }

    #[test]
    fn json_lines_keep_bytes_that_are_not_text() {
        let mut output = Vec::new();
        let events =
            [event(0, Kind::TerminalOutput, "ö\n".as_bytes()), event(1, Kind::TerminalOutput, b"\xff\x00")];
        json_lines(&mut output, &events).expect("written");
        let text = String::from_utf8(output).expect("text");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines[0]["data"], "ö\n");
        assert_eq!(lines[0]["kind"], "terminal:output");
        assert_eq!((&lines[1]["data"], &lines[1]["encoding"]), (&json!("/wA="), &json!("base64")));
    }

    #[test]
    fn asciicast_joins_a_character_that_two_events_share() {
        let session = Session {
            id: "s".to_owned(),
            title: "t".to_owned(),
            project: None,
            task: None,
            agent: None,
            created: Timestamp::from_millisecond(1_000_000).expect("a time"),
            changed: Timestamp::UNIX_EPOCH,
            first_offset: 0,
            next_offset: 0,
            bytes: 0,
        };
        let mut output = Vec::new();
        let mut cast = Asciicast::begin(&mut output, &session, 80, 24).expect("header");
        let euro = "€".as_bytes();
        cast.events(&mut output, &[event(1, Kind::TerminalOutput, &[b"a\n", &euro[..1]].concat())])
            .expect("part");
        cast.events(
            &mut output,
            &[
                event(2, Kind::TerminalOutput, &[&euro[1..], b"\xffb\r\n"].concat()),
                event(3, Kind::State, b"{}"),
                event(4, Kind::TerminalInput, b"ls"),
            ],
        )
        .expect("part");
        let text = String::from_utf8(output).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("\"version\":2"), "{text}");
        let parts: Vec<serde_json::Value> =
            lines[1..].iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(
            parts,
            [json!([0.5, "o", "a\r\n"]), json!([1.0, "o", "€\u{fffd}b\r\n"]), json!([2.0, "i", "ls"])]
        );
    }
}
