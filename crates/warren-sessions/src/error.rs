//! Errors of reading and writing sessions.

/// An operation on sessions failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no such session.
    #[error("there is no session `{0}`")]
    NotFound(String),
    /// There is one of that id already.
    #[error("there is a session `{0}` already")]
    Exists(String),
    /// Events from this offset on were removed by the session's size limit.
    #[error(
        "events of session `{session}` before offset {first} were removed by its size limit; read from {first}"
    )]
    Trimmed {
        /// The session.
        session: String,
        /// The first offset that is left.
        first: u64,
    },
    /// The request is not valid.
    #[error("`{field}` {problem}")]
    Invalid {
        /// The name of the field that is wrong.
        field: &'static str,
        /// The problem with it.
        problem: String,
    },
    /// The database failed. Nothing of the request is stored.
    #[error("session database: {0}")]
    Database(String),
    /// The store was closed.
    #[error("the session store is closed")]
    Closed,
}

impl From<rusqlite::Error> for SessionError {
    fn from(error: rusqlite::Error) -> Self {
        SessionError::Database(error.to_string())
    }
}
