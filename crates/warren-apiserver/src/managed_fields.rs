//! Ownership of fields by managers, and server-side apply.
//!
//! A write makes its manager the owner of the fields that it changed ([`Tracker::update`]). An
//! apply ([`Tracker::apply`]) lists all fields that its manager wants to own. Fields that the
//! manager owned before and no longer lists are removed. A field that another manager owns with
//! another value is a conflict. Nothing here accesses the store. Sets of fields are in `fields`;
//! `shape` interprets schemas for them.

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
