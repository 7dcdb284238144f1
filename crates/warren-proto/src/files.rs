//! sandboxd's REST API, on port 8080: files, health and metadata.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::runtime::EntryKind;

/// The port that the REST API is served on.
pub const PORT: u16 = 8080;

/// Answer to `GET /v1/files/{path}` where the path is a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// The directory, as seen from the base directory.
    pub path: String,
    /// The entries in it, by name.
    pub entries: Vec<Entry>,
}

/// One entry of a [`Directory`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// When its content last changed: RFC 3339, whole seconds, UTC.
    pub modified_at: String,
    /// Its permissions, as four octal digits.
    pub mode: String,
}

/// Answer to `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// For how long the daemon has been running.
    pub uptime_seconds: u64,
}

/// Answer to `GET /v1/metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Environment variables that are for clients to see.
    pub env: BTreeMap<String, String>,
}

/// Answer to a request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// `NOT_FOUND`, `PERMISSION_DENIED`, `INVALID_ARGUMENT`, `CONFLICT`, `INTERNAL`.
    pub code: String,
    /// For people.
    pub message: String,
}
