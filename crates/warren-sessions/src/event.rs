//! Sessions and events, inside and on the wire.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Input of a terminal.
    #[serde(rename = "terminal:input")]
    TerminalInput,
    /// Output of a terminal or command.
    #[serde(rename = "terminal:output")]
    TerminalOutput,
    /// Error output of a command.
    #[serde(rename = "terminal:error")]
    TerminalError,
    /// An agent calls a tool; the data is JSON.
    #[serde(rename = "tool:invoke")]
    ToolInvoke,
    /// A tool has answered; the data is JSON.
    #[serde(rename = "tool:result")]
    ToolResult,
    /// The state of an agent or session; the data is JSON.
    #[serde(rename = "state")]
    State,
    /// A viewer came or went; the data is JSON.
    #[serde(rename = "presence")]
    Presence,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::TerminalInput,
        Kind::TerminalOutput,
        Kind::TerminalError,
        Kind::ToolInvoke,
        Kind::ToolResult,
        Kind::State,
        Kind::Presence,
    ];

    /// Returns the kind's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Kind::TerminalInput => "terminal:input",
            Kind::TerminalOutput => "terminal:output",
            Kind::TerminalError => "terminal:error",
            Kind::ToolInvoke => "tool:invoke",
            Kind::ToolResult => "tool:result",
            Kind::State => "state",
            Kind::Presence => "presence",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The source of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// An agent.
    Agent,
    /// A person.
    User,
    /// The service itself.
    #[default]
    System,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::Agent => "agent",
            Source::User => "user",
            Source::System => "system",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Source> {
        [Source::Agent, Source::User, Source::System].into_iter().find(|source| source.name() == name)
    }
}

/// An event to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Its kind.
    pub kind: Kind,
    /// Its source.
    pub source: Source,
    /// The bytes: of a terminal as they came, else JSON.
    pub data: Vec<u8>,
}

/// A stored event. On the wire its data is a string, and base64 with `"encoding": "base64"` if it is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place in the session.
    pub offset: u64,
    /// When it was appended.
    pub time: Timestamp,
    /// Its kind.
    pub kind: Kind,
    /// Its source.
    pub source: Source,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(&self.data);
        let mut fields = serializer.serialize_struct("Event", if text.is_ok() { 5 } else { 6 })?;
        fields.serialize_field("offset", &self.offset)?;
        fields.serialize_field("time", &self.time)?;
        fields.serialize_field("kind", &self.kind)?;
        fields.serialize_field("source", &self.source)?;
        match text {
            Ok(text) => fields.serialize_field("data", text)?,
            Err(_) => {
                fields.serialize_field("data", &STANDARD.encode(&self.data))?;
                fields.serialize_field("encoding", "base64")?;
            }
        }
        fields.end()
    }
}

/// A session to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewSession {
    /// Its title for people.
    pub title: String,
    /// The project it belongs to.
    pub project: Option<String>,
    /// The task it belongs to.
    pub task: Option<String>,
    /// The agent that works in it.
    pub agent: Option<String>,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its id.
    pub id: String,
    /// Its title for people.
    pub title: String,
    /// The project it belongs to.
    pub project: Option<String>,
    /// The task it belongs to.
    pub task: Option<String>,
    /// The agent that works in it.
    pub agent: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// When its last event was appended.
    pub changed: Timestamp,
    /// The first offset that is kept.
    pub first_offset: u64,
    /// The offset of the next event.
    pub next_offset: u64,
    /// The size of its events in bytes.
    pub bytes: u64,
}
