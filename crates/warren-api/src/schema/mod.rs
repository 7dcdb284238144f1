//! Schemas: converts our types and Kubernetes' own definitions into the structural schema of a CRD.
//!
//! [`definitions`] loads Kubernetes' published definitions. [`structural`] resolves references and
//! rewrites JSON Schema into the subset that a CRD may use, in controller-gen's form. [`check`]
//! validates a manifest with the result.

pub mod check;
pub mod definitions;
pub mod structural;

pub use definitions::Definitions;
pub use structural::{SchemaError, structural};
