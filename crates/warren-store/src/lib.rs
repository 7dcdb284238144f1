//! Versioned JSON objects in SQLite or in memory: one increasing resourceVersion, optimistic
//! concurrency, consistent lists, watches with a bounded history, selectors, finalizers and garbage
//! collection by owner references.
//!
//! Reads are served from memory. One writer thread commits all queued writes in one transaction. A
//! write is acknowledged after its commit is synced, and becomes visible to readers and watchers at
//! that moment, in version order. After a crash all acknowledged writes are there; a write in
//! progress may or may not be.
//!
//! A client that writes [`Ahead`] of the disk is answered earlier, and is told if one of its writes
//! is lost. Other clients see no difference.
//!
//! The crate knows the shape of Kubernetes metadata and nothing else: no HTTP, no kinds, no
//! schemas. Start reading at [`Store`].

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
