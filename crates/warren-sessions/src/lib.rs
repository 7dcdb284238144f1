//! Durable event streams. A session is an ordered list of events: what a terminal showed, what an agent did.
//!
//! An event is on disk before any viewer sees it, and has an offset that only grows within its session. Viewers read
//! from any offset and follow live; a slow one reads from disk and holds up nothing. It knows nothing about sandboxes, HTTP
//! or clocks. Start reading at [`Store`].

mod error;
mod event;
pub mod export;
mod live;
mod store;
mod writer;

pub use error::SessionError;
pub use event::{Event, Kind, NewEvent, NewSession, Session, Source};
pub use live::Tail;
pub use store::{Limits, Store, Turn};
