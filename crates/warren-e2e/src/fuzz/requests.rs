//! Generates whole requests, by kind.

use std::sync::LazyLock;

use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};

use super::mutate::{self, pick, word};
use super::{Kind, Sent, protobuf, seeds, text};

static OBJECTS: LazyLock<Vec<(String, Value)>> = LazyLock::new(seeds::objects);
static BODIES: LazyLock<Vec<Value>> =
    LazyLock::new(|| OBJECTS.iter().map(|(_, body)| body.clone()).collect());

/// Returns one request.
pub(super) fn make(kind: Kind, random: &mut Rng) -> Sent {
    match kind {
        Kind::Bodies => body(random),
        Kind::Patches => patch(random),
        Kind::Selectors => {
            let (labels, fields) = (text::label_selector(random), text::field_selector(random));
            let (labels, fields) = (text::encode(random, &labels), text::encode(random, &fields));
            let mut query = format!("labelSelector={labels}");
            if random.u8(..3) == 0 {
                query.push_str(&format!("&fieldSelector={fields}"));
            }
            let method = if random.u8(..12) == 0 { Method::DELETE } else { Method::GET };
            request(method, format!("{}?{query}", pick(random, seeds::collections())), "", Vec::new())
        }
        Kind::WatchParameters => {
            let uri = format!("{}?watch=1&{}", pick(random, seeds::collections()), text::list_query(random));
            let mut sent = request(Method::GET, uri, "", Vec::new());
            sent.headers.extend(accept(random));
            sent
        }
        Kind::Yaml => yaml(random),
        Kind::Protobuf => {
            let (path, object) = pick(random, &OBJECTS);
            let word = |field: &str| object[field].as_str().unwrap_or_default();
            let mut body = match random.u8(..30) {
                0 => protobuf::deep(random.usize(1..5000)),
                _ => protobuf::envelope(random, word("apiVersion"), word("kind")),
            };
            if random.bool() {
                mutate::bytes(random, &mut body);
            }
            request(Method::POST, path.clone(), "application/vnd.kubernetes.protobuf", body)
        }
        Kind::Paths => path(random),
    }
}

fn request(method: Method, uri: String, content_type: &'static str, body: Vec<u8>) -> Sent {
    let mut sent = Sent { method, uri, headers: Vec::new(), body };
    if !content_type.is_empty() {
        sent.headers.push(("content-type", content_type.to_owned()));
    }
    sent
}

fn accept(random: &mut Rng) -> Option<(&'static str, String)> {
    const FORMS: &[&str] = &[
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "*/*",
        ";;;,,as=",
    ];
    (random.u8(..3) == 0).then(|| ("accept", (*pick(random, FORMS)).to_owned()))
}

/// Returns a mutated valid body.
fn body(random: &mut Rng) -> Sent {
    let (path, object) = pick(random, &OBJECTS);
    let mut object = object.clone();
    mutate::tree(random, &mut object, &BODIES);
    let name = object["metadata"]["name"].as_str().unwrap_or("x").to_owned();
    let mut body = object.to_string().into_bytes();
    if random.u8(..5) == 0 {
        mutate::bytes(random, &mut body);
    }
    let query = match random.u8(..8) {
        0 => format!("?{}", text::list_query(random)),
        1 => "?fieldValidation=Strict".to_owned(),
        2 => "?dryRun=All".to_owned(),
        _ => String::new(),
    };
    let name = text::encode(random, &name);
    let (method, uri) = match random.u8(..6) {
        0 => (Method::PUT, format!("{path}/{name}{query}")),
        1 => (Method::PUT, format!("{path}/{name}/status{query}")),
        2 => (Method::DELETE, format!("{path}/{name}{query}")),
        _ => (Method::POST, format!("{path}{query}")),
    };
    if method == Method::DELETE {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": word(random),
            "gracePeriodSeconds": mutate::value(random), "preconditions": {"uid": word(random)}});
        let mut options = options;
        mutate::tree(random, &mut options, &[]);
        body = options.to_string().into_bytes();
    }
    let mut sent = request(method, uri, "application/json", body);
    sent.headers.extend(accept(random));
    sent
}

/// Returns a pointer into an object, possibly invalid.
fn pointer(random: &mut Rng, object: &Value) -> String {
    let mut path = String::new();
    let mut node = object;
    for _ in 0..random.usize(..7) {
        let (step, next) = match node {
            Value::Object(fields) if !fields.is_empty() => {
                let index = random.usize(..fields.len());
                match fields.iter().nth(index) {
                    Some((name, field)) => (name.replace('~', "~0").replace('/', "~1"), field),
                    None => break,
                }
            }
            Value::Array(items) if !items.is_empty() => {
                let index = random.usize(..items.len());
                (index.to_string(), &items[index])
            }
            _ => break,
        };
        path.push('/');
        path.push_str(&step);
        node = next;
    }
    match random.u8(..5) {
        0 => format!("{path}/-"),
        1 => format!("{path}/{}", word(random)),
        _ => path,
    }
}

fn json_patch(random: &mut Rng, object: &Value) -> Value {
    const OPERATIONS: &[&str] = &["add", "remove", "replace", "move", "copy", "test", "add", "copy", "bad"];
    let operations = (0..random.usize(1..12)).map(|_| {
        let mut operation = json!({"op": pick(random, OPERATIONS), "path": pointer(random, object)});
        if random.bool() {
            operation["value"] = mutate::value(random);
        }
        if random.bool() {
            operation["from"] = pointer(random, object).into();
        }
        operation
    });
    operations.collect()
}

fn patch(random: &mut Rng) -> Sent {
    let (path, object) = pick(random, &OBJECTS);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let end = *pick(random, &["", "", "", "/status", "/scale"]);
    let mut uri = format!("{path}/{name}{end}");
    let mut changed = object.clone();
    mutate::tree(random, &mut changed, &BODIES);
    let (content_type, mut body) = match random.u8(..4) {
        0 => ("application/json-patch+json", json_patch(random, object).to_string()),
        1 => ("application/merge-patch+json", changed.to_string()),
        2 => ("application/strategic-merge-patch+json", changed.to_string()),
        _ => {
            let manager = *pick(random, &["a", "b", "c"]);
            uri.push_str(&format!("?fieldManager={manager}&force={}", random.bool()));
            ("application/apply-patch+yaml", changed.to_string())
        }
    };
    if random.u8(..6) == 0 {
        let mut bytes = body.into_bytes();
        mutate::bytes(random, &mut bytes);
        body = String::from_utf8_lossy(&bytes).into_owned();
    }
    request(Method::PATCH, uri, content_type, body.into_bytes())
}

fn yaml(random: &mut Rng) -> Sent {
    let mut body = match random.u8(..3) {
        0 => {
            let (_, object) = pick(random, &OBJECTS);
            object.to_string().into_bytes()
        }
        _ => text::yaml(random).into_bytes(),
    };
    if random.u8(..4) > 0 {
        mutate::bytes(random, &mut body);
    }
    let (path, object) = pick(random, &OBJECTS);
    if random.u8(..3) == 0 {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let uri = format!("{path}/{name}?fieldManager=fuzz");
        return request(Method::PATCH, uri, "application/apply-patch+yaml", body);
    }
    request(Method::POST, path.clone(), "application/yaml", body)
}

fn path(random: &mut Rng) -> Sent {
    let methods = [
        Method::GET,
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::HEAD,
    ];
    let method = pick(random, &methods).clone();
    let mut uri = text::path(random);
    if random.bool() {
        uri.push_str(&format!("?{}", text::list_query(random)));
    }
    let content_types = ["", "application/json", "application/yaml", "text/plain"];
    let content_type = content_types[random.usize(..content_types.len())];
    let mut sent = request(method, uri, content_type, Vec::new());
    if random.bool() {
        sent.body = pick(random, &BODIES).to_string().into_bytes();
    }
    sent.headers.extend(accept(random));
    if random.u8(..10) == 0 {
        sent.headers.push(("impersonate-user", word(random)));
    }
    sent
}
