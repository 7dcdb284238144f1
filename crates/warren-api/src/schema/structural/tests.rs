//! Tests of structural schemas.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{Definitions, SchemaError, structural};

fn own(definitions: Value) -> Definitions {
    Definitions::of_document(&json!({ "$defs": definitions }))
}

fn check(schema: Value, expected: Expect) {
    let definitions = own(json!({
        "Colour": { "oneOf": [
            { "const": "Red", "type": "string", "description": "warm" },
            { "enum": ["Blue", "Green"], "type": "string" },
        ] },
        "Point": { "type": "object", "description": "A point.",
            "properties": { "y": { "type": ["integer", "null"], "format": "int32" }, "x": { "type": "integer" } },
            "required": ["x"] },
    }));
    let schema = structural(&schema, &definitions).expect("a schema");
    expected.assert_eq(&serde_json::to_string_pretty(&schema).unwrap());
}

#[test]
fn an_optional_reference_is_inlined_and_keeps_the_fields_own_description() {
    check(
        json!({ "anyOf": [{ "$ref": "#/$defs/Point" }, { "type": "null" }], "description": "Where\nit is." }),
        expect![[r#"
            {
              "description": "Where it is.",
              "type": "object",
              "properties": {
                "y": {
                  "format": "int32",
                  "type": "integer"
                },
                "x": {
                  "type": "integer"
                }
              },
              "required": [
                "x"
              ]
            }"#]],
    );
}

#[test]
fn documented_variants_become_one_enum() {
    check(
        json!({ "$ref": "#/$defs/Colour", "default": "Red" }),
        expect![[r#"
            {
              "default": "Red",
              "enum": [
                "Red",
                "Blue",
                "Green"
              ],
              "type": "string"
            }"#]],
    );
}

#[test]
fn quantities_and_ports_accept_numbers_and_text() {
    check(
        json!({ "$ref": "io.k8s.api.core.v1.HTTPGetAction" }),
        expect![[r#"
            {
              "description": "HTTPGetAction describes an action based on HTTP Get requests.",
              "type": "object",
              "properties": {
                "host": {
                  "description": "Host name to connect to, defaults to the pod IP. You probably want to set \"Host\" in httpHeaders instead.",
                  "type": "string"
                },
                "httpHeaders": {
                  "description": "Custom headers to set in the request. HTTP allows repeated headers.",
                  "x-kubernetes-list-type": "atomic",
                  "type": "array",
                  "items": {
                    "description": "HTTPHeader describes a custom header to be used in HTTP probes",
                    "type": "object",
                    "properties": {
                      "name": {
                        "description": "The header field name. This will be canonicalized upon output, so case-variant names will be understood as the same header.",
                        "type": "string"
                      },
                      "value": {
                        "description": "The header field value",
                        "type": "string"
                      }
                    },
                    "required": [
                      "name",
                      "value"
                    ]
                  }
                },
                "path": {
                  "description": "Path to access on the HTTP server.",
                  "type": "string"
                },
                "port": {
                  "anyOf": [
                    {
                      "type": "integer"
                    },
                    {
                      "type": "string"
                    }
                  ],
                  "x-kubernetes-int-or-string": true,
                  "description": "Name or number of the port to access on the container. Number must be in the range 1 to 65535. Name must be an IANA_SVC_NAME."
                },
                "protocol": {
                  "description": "Protocol selects the wire protocol for the probe connection. Nil defaults to HTTP/1.1.",
                  "type": "string"
                },
                "scheme": {
                  "description": "Scheme to use for connecting to the host. Defaults to HTTP.",
                  "type": "string"
                }
              },
              "required": [
                "port"
              ]
            }"#]],
    );
    let list = structural(
        &json!({ "type": "object", "additionalProperties": { "$ref": "io.k8s.apimachinery.pkg.api.resource.Quantity" } }),
        &Definitions::default(),
    )
    .unwrap();
    assert_eq!(list["additionalProperties"]["x-kubernetes-int-or-string"], true);
    assert!(list["additionalProperties"]["pattern"].as_str().unwrap().contains("[KMGTPE]i"));
}

#[test]
fn mistakes_name_the_place() {
    let schema =
        json!({ "type": "object", "properties": { "a": { "items": { "$ref": "#/$defs/Nowhere" } } } });
    assert_eq!(
        structural(&schema, &Definitions::default()),
        Err(SchemaError::Unresolved { path: "a.[]".to_owned(), name: "Nowhere".to_owned() })
    );
    let endless =
        own(json!({ "List": { "type": "object", "properties": { "next": { "$ref": "#/$defs/List" } } } }));
    assert_eq!(
        structural(&json!({ "$ref": "#/$defs/List" }), &endless),
        Err(SchemaError::Recursive { path: "next".to_owned(), name: "List".to_owned() })
    );
}
