//! Reviews: kinds that are questions. They are created and answered, but never stored.

use super::{Behaviour, PLAIN};

/// The question that a review asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Review {
    /// Which user does this token belong to?
    Token,
    /// Which user sends this request?
    Oneself,
    /// May a user do this?
    Access,
    /// May a user do this in this namespace?
    LocalAccess,
    /// May the sender do this?
    OwnAccess,
    /// Which rules hold for the sender in a namespace?
    OwnRules,
}

const REVIEW: Behaviour = Behaviour { verbs: &["create"], ..PLAIN };

pub(super) static TOKEN: Behaviour = Behaviour { review: Some(Review::Token), ..REVIEW };
pub(super) static ONESELF: Behaviour = Behaviour { review: Some(Review::Oneself), ..REVIEW };
pub(super) static ACCESS: Behaviour = Behaviour { review: Some(Review::Access), ..REVIEW };
pub(super) static LOCAL_ACCESS: Behaviour = Behaviour { review: Some(Review::LocalAccess), ..REVIEW };
pub(super) static OWN_ACCESS: Behaviour = Behaviour { review: Some(Review::OwnAccess), ..REVIEW };
pub(super) static OWN_RULES: Behaviour = Behaviour { review: Some(Review::OwnRules), ..REVIEW };
