//! The home of an ordinary user: the whole daemon runs in a user namespace, as its root.
//!
//! The alternative is a daemon outside with only its zygote inside. It would need a helper inside
//! for each file that belongs to a further id of the user: to unpack, to pass and to remove it.

use std::io;

use warren_oci::privileges::{EnterError, Privileges, become_namespace_root};

/// The error if an ordinary user cannot have a home here.
#[derive(Debug, thiserror::Error)]
pub enum OrdinaryUserError {
    /// `/proc` could not be read.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// No user namespace could be made.
    #[error(transparent)]
    Enter(#[from] EnterError),
}

/// Makes an ordinary user's process root of its own user namespace. Returns true if it did; the
/// process must then execute its program again before any other use. For root it does nothing.
///
/// The process must be single-threaded.
pub fn enter_user_namespace() -> Result<bool, OrdinaryUserError> {
    if Privileges::of_this_process().map_err(OrdinaryUserError::Privileges)? != Privileges::Ordinary {
        return Ok(false);
    }
    become_namespace_root()?;
    Ok(true)
}
