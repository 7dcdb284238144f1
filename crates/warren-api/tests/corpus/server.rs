//! A server with our CRDs and a namespace for one run; runs cases on it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Map, Value, json};
use warren_testkit::kube::ControlPlane;

use crate::case::{Case, FieldValidation, Step};

/// The time limit for a busy server to establish our CRDs.
const DEADLINE: Duration = Duration::from_secs(60);

pub struct Server {
    client: kube::Client,
    namespace: String,
}

/// The server's answer: status code, warnings, body.
struct Answer {
    code: StatusCode,
    warnings: Vec<String>,
    body: Value,
}

impl Server {
    /// Connects, registers our CRDs, waits until they are served, and creates a namespace for this
    /// run.
    pub async fn connect() -> Self {
        let kubeconfig = match std::env::var_os("WARREN_TEST_KUBECONFIG") {
            Some(path) => PathBuf::from(path),
            None => {
                tokio::task::spawn_blocking(|| ControlPlane::start().kubeconfig().to_owned()).await.unwrap()
            }
        };
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let unique = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        let server = Self { client, namespace: format!("corpus-{unique}") };
        server.register_crds().await;
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": server.namespace } });
        let made = server.send(Method::POST, "/api/v1/namespaces", "application/json", &namespace).await;
        assert_eq!(made.code, StatusCode::CREATED, "{}", made.body);
        server
    }

    async fn register_crds(&self) {
        for crd in warren_api::crds() {
            let name = crd.metadata.name.clone().unwrap();
            let path = format!(
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=corpus&force=true"
            );
            let body = serde_json::to_value(&crd).unwrap();
            let answer = self.send(Method::PATCH, &path, "application/apply-patch+yaml", &body).await;
            assert!(answer.code.is_success(), "register {name}: {}", answer.body);
            let version = &crd.spec.versions[0].name;
            let collection = format!("/apis/{}/{version}/{}", crd.spec.group, crd.spec.names.plural);
            tokio::time::timeout(DEADLINE, async {
                while self.send(Method::GET, &collection, "application/json", &Value::Null).await.code
                    != StatusCode::OK
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
            .await
            .unwrap_or_else(|_| panic!("{name} is not served"));
        }
    }

    /// Runs a case and returns the server's answers to each step.
    pub async fn play(&self, case: &Case) -> Value {
        let script = &case.script;
        let name = case.path.file_stem().unwrap().to_str().unwrap();
        let mut object = script.create.clone();
        object["metadata"]["name"] = Value::from(name);
        let collection = self.collection(&object);
        let validation = match script.field_validation {
            FieldValidation::Ignore => "Ignore",
            FieldValidation::Warn => "Warn",
            FieldValidation::Strict => "Strict",
        };
        let query = format!("?fieldValidation={validation}&fieldManager=author");

        let mut answers = vec![
            self.send(Method::POST, &format!("{collection}{query}"), "application/json", &object)
                .await
                .shown(),
        ];
        for step in &script.then {
            const MERGE: &str = "application/merge-patch+json";
            let at = format!("{collection}/{name}");
            let answer = match step {
                Step::Patch(patch) => self.send(Method::PATCH, &format!("{at}{query}"), MERGE, patch).await,
                Step::PatchStatus(patch) => {
                    self.send(Method::PATCH, &format!("{at}/status{query}"), MERGE, patch).await
                }
                Step::PatchScale(patch) => {
                    self.send(Method::PATCH, &format!("{at}/scale{query}"), MERGE, patch).await
                }
                Step::Apply(spec) => {
                    let applied = json!({
                        "apiVersion": object["apiVersion"], "kind": object["kind"],
                        "metadata": { "name": name }, "spec": spec,
                    });
                    let path = format!("{at}?fieldValidation={validation}&fieldManager=applier");
                    self.send(Method::PATCH, &path, "application/apply-patch+yaml", &applied).await
                }
            };
            answers.push(answer.shown());
        }
        Value::Array(answers)
    }

    /// Creates an object with strict validation. The error is the server's message.
    pub async fn create(&self, object: &Value) -> Result<(), String> {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let path = format!("{}?fieldValidation=Strict", self.collection(&object));
        let answer = self.send(Method::POST, &path, "application/json", &object).await;
        match answer.code {
            StatusCode::CREATED => Ok(()),
            _ => Err(answer.body["message"].as_str().unwrap_or_default().to_owned()),
        }
    }

    fn collection(&self, object: &Value) -> String {
        let plural = match object["kind"].as_str() {
            Some("Sandbox") => "sandboxes",
            Some("SandboxClaim") => "sandboxclaims",
            Some("SandboxTemplate") => "sandboxtemplates",
            Some("SandboxWarmPool") => "sandboxwarmpools",
            other => panic!("no case is about {other:?}"),
        };
        format!("/apis/{}/namespaces/{}/{plural}", object["apiVersion"].as_str().unwrap(), self.namespace)
    }

    async fn send(&self, method: Method, path: &str, content_type: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let response = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let code = response.status();
        let warnings =
            response.headers().get_all("warning").iter().map(|warning| text_of(warning.to_str().unwrap()));
        let warnings = warnings.collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code, warnings, body }
    }
}

/// Returns the text of a warning header such as `299 - "unknown field \"spec.colour\""`.
fn text_of(warning: &str) -> String {
    let quoted = warning.trim_start_matches("299 - ");
    let text = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(quoted);
    text.replace(r#"\""#, "\"")
}

/// Sorts the causes: the server reports errors of sibling fields in random order.
fn sort_causes(message: &mut String, causes: &mut [Value]) {
    causes.sort_by_key(|cause| (cause["field"].to_string(), cause["message"].to_string()));
    let told: Vec<String> = causes
        .iter()
        .map(|cause| {
            let part = |name: &str| cause[name].as_str().unwrap_or_default().to_owned();
            format!("{}: {}", part("field"), part("message"))
        })
        .collect();
    let list = format!("[{}]", told.join(", "));
    if let Some(start) = message.len().checked_sub(list.len()).filter(|_| causes.len() > 1)
        && message.get(start..).is_some_and(|rest| rest.starts_with('['))
    {
        message.replace_range(start.., &list);
    }
}

impl Answer {
    /// Returns the parts that matter to the case and are the same in every run.
    fn shown(&self) -> Value {
        let mut shown = Map::from_iter([("code".to_owned(), Value::from(self.code.as_u16()))]);
        if !self.warnings.is_empty() {
            shown.insert("warnings".to_owned(), Value::from(self.warnings.clone()));
        }
        if self.code.is_success() {
            if let Some(generation) = self.body["metadata"].get("generation") {
                shown.insert("generation".to_owned(), generation.clone());
            }
            for part in ["spec", "status"] {
                if let Some(value) = self.body.get(part) {
                    shown.insert(part.to_owned(), value.clone());
                }
            }
        } else {
            shown.insert("reason".to_owned(), self.body["reason"].clone());
            let mut message = self.body["message"].as_str().unwrap_or_default().to_owned();
            let mut causes = self.body["details"]["causes"].as_array().cloned().unwrap_or_default();
            sort_causes(&mut message, &mut causes);
            shown.insert("message".to_owned(), Value::from(message));
            if !causes.is_empty() {
                shown.insert("causes".to_owned(), Value::from(causes));
            }
        }
        Value::Object(shown)
    }
}
