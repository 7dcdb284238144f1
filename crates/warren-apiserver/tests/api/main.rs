//! The server as clients see it, through real clients.

mod exec;
mod listeners;
mod objects;
mod support;
mod watches;
