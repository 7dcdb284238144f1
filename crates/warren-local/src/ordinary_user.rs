//! The home of an ordinary user: the whole daemon lives in a user namespace, where it is root.
//!
//! The alternative, a daemon outside and only its zygote inside, would have to ask somebody inside for each file that
//! belongs to a further id of the user: to unpack, to hand over and to remove them.

use std::io;

use warren_oci::privileges::{EnterError, Privileges, become_namespace_root};

/// An ordinary user cannot have a home here.
#[derive(Debug, thiserror::Error)]
pub enum OrdinaryUserError {
    /// `/proc` could not be read.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// No user namespace.
    #[error(transparent)]
    Enter(#[from] EnterError),
}

/// Makes an ordinary user's process root of a user namespace of its own, and says that it has: then it has to run its program
/// anew before it is of any use. Root stays where it is.
///
/// To be called by a process with one thread.
pub fn enter_user_namespace() -> Result<bool, OrdinaryUserError> {
    if Privileges::of_this_process().map_err(OrdinaryUserError::Privileges)? != Privileges::Ordinary {
        return Ok(false);
    }
    become_namespace_root()?;
    Ok(true)
}
