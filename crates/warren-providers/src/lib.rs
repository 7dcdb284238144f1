//! Sandboxes behind one trait, whatever runs them: [`WarrenProvider`] for the local home and
//! clusters, [`DockerProvider`] for a Docker engine, [`LocalProvider`] for direct execution on a
//! developer's machine.
//!
//! It validates what it is given, has one vocabulary for states and errors, and tells subscribers
//! what happens. It serves nothing and stores nothing but the local provider's directories. Start
//! reading at [`Provider`].

mod by_exec;
mod docker;
mod error;
mod limits;
mod local;
mod process;
mod provider;
mod warren;

pub use docker::{DockerOptions, DockerProvider};
pub use error::{Code, ProviderError};
pub use limits::{
    BLOCKED_VARIABLES, Network, Wanted, check_environment, check_identifier, check_image, check_path,
};
pub use local::LocalProvider;
pub use process::{Command, ExecResult, MOST_OUTPUT, Process, TerminalSize};
pub use provider::{
    Answer, CleanUp, Connect, Entry, Explanation, FileKind, FileStream, Happening, Health, Info,
    LARGEST_WRITE, Metrics, Provider, ProviderEvent, Reason, Status, Step,
};
pub use warren::{Options, WarrenProvider};
