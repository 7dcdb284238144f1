//! Container images on disk. All content is named by its digest and verified before use. Each layer
//! is unpacked once, into a directory that the overlays of any number of containers share.
//!
//! This crate has no network access: its caller fetches bytes and learns from it which ones are
//! missing. All input is hostile. An archive cannot exceed its size limit or write outside its
//! directory. A violating entry is refused, and the error has its name. After a crash at any moment
//! there is either the old state or the new one. Unfinished files are removed when the store is
//! opened again.
//!
//! Start reading at [`store::Store`]. [`unpack`] reads archives.

pub mod digest;
pub mod import;
pub mod manifest;
pub mod reference;
pub mod store;
pub mod unpack;
pub mod user;
