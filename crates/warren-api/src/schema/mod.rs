//! Schemas: Kubernetes' own definitions, and how they and our types become the structural schema of a CRD.
//!
//! [`definitions`] loads what Kubernetes publishes; [`structural`] resolves references and rewrites JSON Schema
//! into the subset that a CRD may use, in the form that controller-gen gives it; [`check`] holds a manifest against the result.

pub mod check;
pub mod definitions;
pub mod structural;

pub use definitions::Definitions;
pub use structural::{SchemaError, structural};
