//! Versioned JSON objects: one increasing resourceVersion, optimistic concurrency, consistent lists, watches with a
//! bounded history, selectors, finalizers and owner-reference garbage collection, kept in SQLite or in memory.
//!
//! Reads are served from memory. Writes go through one writer thread that commits everything queued in one
//! transaction; a write is acknowledged after its commit has been synced, and becomes visible to readers and
//! watchers at that moment, in version order. After a crash, everything acknowledged is there; a write that was
//! under way may or may not be. Who writes [`Ahead`] of the disk is answered sooner, and is told when something of it was lost; to
//! everybody else there is no difference.
//!
//! The crate knows the shape of Kubernetes metadata and nothing else: no HTTP, no kinds, no schemas. Start
//! reading at [`Store`].

mod ahead;
mod body;
mod committed;
mod database;
pub mod deletion;
pub mod garbage;
mod key;
mod object;
mod selector;
mod store;
mod timing;
mod watch;
mod writer;

pub use ahead::Ahead;
pub use body::Body;
pub use database::OpenError;
pub use key::Key;
pub use object::{Meta, Object, Owner};
pub use selector::{FieldSelector, Filter, LabelSelector, Requirement, SelectorError};
pub use store::{
    Action, Expect, List, ListError, ListRequest, Storage, Store, WRITER_THREAD, Write, WriteError,
};
pub use watch::{Change, ChangeKind, Expired, Watch, WatchFrom};
pub use writer::{CommitError, Urgency};
