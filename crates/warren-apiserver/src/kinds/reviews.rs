//! Kinds that are questions: they are created, answered and never stored.

use super::{Behaviour, PLAIN};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Review {
    /// Whose token is this?
    Token,
    /// Who am I?
    Oneself,
    /// May somebody do something?
    Access,
    /// May somebody do something in this namespace?
    LocalAccess,
    /// May I do something?
    OwnAccess,
    /// What may I do in a namespace?
    OwnRules,
}

const REVIEW: Behaviour = Behaviour { verbs: &["create"], ..PLAIN };

pub(super) static TOKEN: Behaviour = Behaviour { review: Some(Review::Token), ..REVIEW };
pub(super) static ONESELF: Behaviour = Behaviour { review: Some(Review::Oneself), ..REVIEW };
pub(super) static ACCESS: Behaviour = Behaviour { review: Some(Review::Access), ..REVIEW };
pub(super) static LOCAL_ACCESS: Behaviour = Behaviour { review: Some(Review::LocalAccess), ..REVIEW };
pub(super) static OWN_ACCESS: Behaviour = Behaviour { review: Some(Review::OwnAccess), ..REVIEW };
pub(super) static OWN_RULES: Behaviour = Behaviour { review: Some(Review::OwnRules), ..REVIEW };
