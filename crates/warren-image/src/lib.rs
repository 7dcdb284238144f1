//! Container images on disk. Everything is named by the digest of its content and checked against it before it is
//! believed; a layer is unpacked once, into a directory that overlays of any number of containers share.
//!
//! This crate never talks to a network: whoever fetches gives it bytes, and learns from it which bytes are missing.
//! What it reads is hostile. An archive can fill no more than it may, can write nowhere but below its own directory, and an
//! entry that tries is refused by its name. A crash at any moment leaves either the old state or the new one; what was
//! unfinished is removed when the store is opened again.
//!
//! Start reading at [`store::Store`]; [`unpack`] holds the part that faces archives.

pub mod digest;
pub mod import;
pub mod manifest;
pub mod reference;
pub mod store;
pub mod unpack;
pub mod user;
