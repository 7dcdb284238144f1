//! Who owns which field of an object, and server-side apply, which is decided by that.
//!
//! A write of any kind makes its manager the owner of what it changed ([`Tracker::update`]). An apply
//! ([`Tracker::apply`]) says everything that its manager wants to own: what the manager owned before and no longer says
//! is removed, and what another manager owns with another value is a conflict. Nothing here reads or writes the store;
//! sets of fields are in `fields`, the meaning of schemas for them in `shape`.

mod apply;
mod compare;
mod element;
mod entries;
mod fields;
mod merge;
mod shape;
mod tracker;
mod validate;
mod zero;

pub(crate) use entries::same_but_for_time;
pub(crate) use tracker::{Tracker, check_options};

#[cfg(test)]
mod tests;
