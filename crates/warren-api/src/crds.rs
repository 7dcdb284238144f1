//! The five CustomResourceDefinitions, generated from the types.
//!
//! Names, columns and subresources come from the `#[kube(…)]` attributes. The schema of our fields
//! is generated from the Rust types and their documentation. Kubernetes' fields use its own
//! definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::CustomResourceExt;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::schema::{Definitions, SchemaError, structural};
use crate::{
    AgentTask, AgentTaskSpec, AgentTaskStatus, Sandbox, SandboxClaim, SandboxClaimSpec, SandboxClaimStatus,
    SandboxSpec, SandboxStatus, SandboxTemplate, SandboxTemplateSpec, SandboxWarmPool, SandboxWarmPoolSpec,
    SandboxWarmPoolStatus,
};

/// Returns the complete definitions of the five resources. `deploy/crds/` is generated from them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        definition::<Sandbox, SandboxSpec>(
            "Sandbox is one isolated, stateful pod with a stable identity.",
            Some(schema_of::<SandboxStatus>),
        ),
        definition::<SandboxClaim, SandboxClaimSpec>(
            "SandboxClaim asks for a sandbox: a waiting one from a warm pool, or else a new one.",
            Some(schema_of::<SandboxClaimStatus>),
        ),
        definition::<SandboxTemplate, SandboxTemplateSpec>(
            "SandboxTemplate is what the sandboxes of a warm pool, or of a claim, are made from.",
            None,
        ),
        definition::<SandboxWarmPool, SandboxWarmPoolSpec>(
            "SandboxWarmPool keeps sandboxes of one template running, ready for the next claim.",
            Some(schema_of::<SandboxWarmPoolStatus>),
        ),
        definition::<AgentTask, AgentTaskSpec>(
            "AgentTask is a command that runs once, to its end, in a sandbox of its own.",
            Some(schema_of::<AgentTaskStatus>),
        ),
    ]
}

fn definition<Kind: CustomResourceExt, Spec: JsonSchema>(
    description: &str,
    status: Option<fn() -> Result<Value, SchemaError>>,
) -> CustomResourceDefinition {
    let schema = root_schema::<Spec>(description, status)
        .expect("our types refer only to what is defined: checked by the test of crds()");
    let mut crd = Kind::crd();
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        if let Some(validation) = &mut version.schema {
            validation.open_api_v3_schema = Some(schema.clone());
        }
    }
    crd
}

fn root_schema<Spec: JsonSchema>(
    description: &str,
    status: Option<fn() -> Result<Value, SchemaError>>,
) -> Result<JSONSchemaProps, SchemaError> {
    let mut properties = Map::from_iter([
        (
            "apiVersion".to_owned(),
            json!({ "type": "string", "description": "apiVersion is the group and version of this object's schema." }),
        ),
        (
            "kind".to_owned(),
            json!({ "type": "string", "description": "kind is the name of this object's resource type." }),
        ),
        ("metadata".to_owned(), json!({ "type": "object" })),
        ("spec".to_owned(), schema_of::<Spec>()?),
    ]);
    if let Some(status) = status {
        properties.insert("status".to_owned(), status()?);
    }
    let root = json!({ "type": "object", "description": description, "properties": properties, "required": ["spec"] });
    Ok(serde_json::from_value(root).expect("a structural schema is made of the keywords that a CRD knows"))
}

/// Returns the structural schema of one of our types.
fn schema_of<T: JsonSchema>() -> Result<Value, SchemaError> {
    let document = SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    structural(&document, &Definitions::of_document(&document))
}
