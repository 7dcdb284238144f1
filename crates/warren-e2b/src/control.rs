//! The control API: sandboxes are created, found, paused and ended.

use bytes::Bytes;
use http::header::USER_AGENT;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_client::kube;
use warren_client::sandbox::pod_name;
use warren_proto::envd;

use crate::Server;
use crate::answer::{Body, Refusal, empty, json_answer};
use crate::create;
use crate::request::parameters;
use crate::sandboxes::Seen;

/// The longest body that is read.
const LONGEST_BODY: usize = 1 << 20;
/// The most sandboxes of a page, and as many are on one without a limit.
const LONGEST_PAGE: usize = 100;

/// Reported limits of a container that sets none.
const DEFAULT_MEMORY_MIB: u64 = 4096;
const DEFAULT_CPUS: u64 = 2;
const DEFAULT_DISK_MIB: u64 = 10_240;

impl Server {
    /// Answers a request of the control API. Its body is read in any case: a connection with an unread one would be closed,
    /// perhaps while its client sends the next request.
    pub(crate) async fn control(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, LONGEST_BODY).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let message = format!("read the body: {error}");
                return Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message).closing_response();
            }
        };
        let path = parts.uri.path();
        if path == "/health" {
            return empty(StatusCode::OK);
        }
        if !self.is_known(&parts.headers) {
            let message = "the header `X-API-KEY` is missing or not this server's key";
            return Refusal::new(StatusCode::UNAUTHORIZED, message).response();
        }
        self.route(&parts, body).await.unwrap_or_else(|refusal| {
            if refusal.status.is_server_error() {
                tracing::warn!(path, message = refusal.message, "request failed");
            }
            refusal.response()
        })
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let bearer = || headers.get(http::header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ");
        let given = headers.get("x-api-key").map(HeaderValue::as_bytes).or_else(bearer);
        given.is_some_and(|given| self.key.is(given))
    }

    async fn route(&self, request: &Parts, body: Bytes) -> Result<Response<Body>, Refusal> {
        let (method, path) = (&request.method, request.uri.path());
        let is_v1 = !path.starts_with("/v2/");
        let path = path.strip_prefix("/v2/").unwrap_or(path);
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (method, parts.as_slice()) {
            (&Method::POST, ["sandboxes"]) => self.create(request, &body).await,
            (&Method::GET, ["sandboxes"]) => self.list(request, is_v1).await,
            (&Method::GET, ["sandboxes", id]) => {
                let seen = self.sandboxes.get(id).await?;
                Ok(json_answer(StatusCode::OK, &self.detail(&seen)))
            }
            (&Method::DELETE, ["sandboxes", id]) => {
                let seen = self.sandboxes.get(id).await?;
                self.sandboxes.kill(&seen).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            (&Method::POST, ["sandboxes", id, "connect" | "resume"]) => {
                self.connect(id, request, &body).await
            }
            (&Method::POST, ["sandboxes", id, "pause"]) => {
                create::check_memory(&json_body(&body)?, user_agent(request))?;
                let seen = self.sandboxes.get(id).await?;
                self.sandboxes.pause(&seen).await?;
                Ok(empty(StatusCode::NO_CONTENT))
            }
            (&Method::POST, ["sandboxes", id, "timeout" | "refreshes"]) => {
                self.set_timeout(id, parts[2] == "refreshes", &body).await
            }
            (&Method::GET, ["sandboxes", id, "metrics"]) => self.metrics(id).await,
            (_, ["sandboxes", id, what @ ("fork" | "snapshots" | "network" | "logs")]) => {
                self.sandboxes.get(id).await?;
                Err(Refusal::bad(format!("`{what}` is not supported")))
            }
            (
                _,
                [what @ ("snapshots" | "templates" | "volumes" | "secrets"), ..]
                | ["v3", what @ "templates", ..],
            ) => Err(Refusal::bad(format!("`{what}` is not supported"))),
            (_, ["sandboxes"] | ["sandboxes", _] | ["sandboxes", _, _]) => Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not a method of {path}"),
            )),
            _ => Err(Refusal::new(StatusCode::NOT_FOUND, "there is nothing of that name")),
        }
    }

    async fn create(&self, request: &Parts, body: &[u8]) -> Result<Response<Body>, Refusal> {
        let key = match request.headers.get("idempotency-key") {
            None => None,
            Some(value) => match value.to_str() {
                Ok(key) if (1..=255).contains(&key.len()) => Some(key.to_owned()),
                _ => return Err(Refusal::bad("the header `Idempotency-Key` must be 1 to 255 characters")),
            },
        };
        let wanted = create::new_sandbox(&json_body(body)?)?;
        let seen = self.sandboxes.create(wanted, key.as_deref()).await?;
        Ok(json_answer(StatusCode::CREATED, &self.created(&seen)))
    }

    /// Resumes a sandbox if it is paused. The timeout of one that runs is never made shorter.
    async fn connect(&self, id: &str, request: &Parts, body: &[u8]) -> Result<Response<Body>, Refusal> {
        let body = json_body(body)?;
        create::check_memory(&body, user_agent(request))?;
        let timeout = create::timeout(&body)?.unwrap_or(std::time::Duration::from_secs(300));
        let mut seen = self.sandboxes.get(id).await?;
        let until = Timestamp::now() + timeout;
        let was_paused = seen.is_paused();
        if was_paused {
            // First the longer time, so that it cannot end on the way.
            seen = self.sandboxes.resume(seen).await?;
            self.sandboxes.renew(&seen, Timestamp::now() + timeout).await?;
        } else if until > seen.ends() {
            self.sandboxes.renew(&seen, until).await?;
        }
        let status = if was_paused { StatusCode::CREATED } else { StatusCode::OK };
        Ok(json_answer(status, &self.created(&seen)))
    }

    async fn set_timeout(&self, id: &str, is_refresh: bool, body: &[u8]) -> Result<Response<Body>, Refusal> {
        let mut body = json_body(body)?;
        if is_refresh && body.get("duration").is_some() {
            body["timeout"] = body["duration"].take();
        }
        let timeout = create::timeout(&body)?.ok_or_else(|| Refusal::bad("`timeout` is missing"))?;
        let seen = self.sandboxes.get(id).await?;
        if seen.is_paused() {
            let message = format!("sandbox `{id}` is paused; connect to it first");
            return Err(Refusal::new(StatusCode::CONFLICT, message));
        }
        self.sandboxes.renew(&seen, Timestamp::now() + timeout).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    async fn list(&self, request: &Parts, is_v1: bool) -> Result<Response<Body>, Refusal> {
        let mut wanted = Wanted::read(request.uri.query())?;
        if is_v1 {
            // Before there were pages, all running sandboxes were listed.
            wanted.limit = usize::MAX;
            wanted.states = vec!["running".to_owned()];
        }
        let (page, next) = wanted.page(self.sandboxes.list().await?);
        let shown: Vec<Value> = page.iter().map(|seen| self.listed(seen)).collect();
        let mut response = json_answer(StatusCode::OK, &json!(shown));
        if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
            response.headers_mut().insert("x-next-token", next);
        }
        Ok(response)
    }

    fn created(&self, seen: &Seen) -> Value {
        json!({
            "templateID": seen.template(), "sandboxID": seen.id(), "clientID": "warren",
            "envdVersion": envd::VERSION, "envdAccessToken": self.key.token(&seen.id(), &seen.uid()),
            "domain": self.domain, "trafficAccessToken": null,
        })
    }

    fn listed(&self, seen: &Seen) -> Value {
        let cpus = seen
            .limit("cpu")
            .and_then(|text| thousandths(&text))
            .map_or(DEFAULT_CPUS, |cpus| cpus.div_ceil(1000));
        let mebibytes = |name, default| {
            seen.limit(name).and_then(|text| bytes(&text)).map_or(default, |bytes| bytes >> 20)
        };
        json!({
            "templateID": seen.template(), "sandboxID": seen.id(), "clientID": "warren", "alias": seen.template(),
            "startedAt": seen.started().to_string(), "endAt": seen.ends().to_string(),
            "cpuCount": cpus, "memoryMB": mebibytes("memory", DEFAULT_MEMORY_MIB),
            "diskSizeMB": mebibytes("ephemeral-storage", DEFAULT_DISK_MIB),
            "metadata": seen.metadata(), "state": if seen.is_paused() { "paused" } else { "running" },
            "envdVersion": envd::VERSION,
        })
    }

    fn detail(&self, seen: &Seen) -> Value {
        let mut detail = self.listed(seen);
        detail["envdAccessToken"] = json!(self.key.token(&seen.id(), &seen.uid()));
        detail["domain"] = json!(self.domain);
        detail["lifecycle"] = json!({ "onTimeout": "kill", "autoResume": false });
        if seen.is_paused() {
            detail["pauseMode"] = json!("filesystem");
        }
        detail
    }

    /// Answers with what the home's metrics API has: processors and memory. A home that measures nothing has no metrics.
    async fn metrics(&self, id: &str) -> Result<Response<Body>, Refusal> {
        let seen = self.sandboxes.get(id).await?;
        let Some(sandbox) = &seen.sandbox else { return Ok(json_answer(StatusCode::OK, &json!([]))) };
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods/{}",
            self.sandboxes.namespace,
            pod_name(sandbox)
        );
        let request = Request::get(path).body(Vec::new()).map_err(|error| Refusal::server(&error))?;
        let metrics = match self.sandboxes.client.request::<Value>(request).await {
            Ok(metrics) => metrics,
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 503) => {
                return Ok(json_answer(StatusCode::OK, &json!([])));
            }
            Err(error) => return Err(Refusal::server(&error)),
        };
        let usage = &metrics["containers"][0]["usage"];
        let shown = self.listed(&seen);
        let cpus = shown["cpuCount"].as_u64().unwrap_or(DEFAULT_CPUS).max(1);
        let used = usage["cpu"].as_str().and_then(thousandths).unwrap_or(0);
        let time: Timestamp =
            metrics["timestamp"].as_str().and_then(|text| text.parse().ok()).unwrap_or_else(Timestamp::now);
        Ok(json_answer(
            StatusCode::OK,
            &json!([{
                "timestamp": time.to_string(), "timestampUnix": time.as_second(), "cpuCount": cpus,
                "cpuUsedPct": used as f64 / cpus as f64 / 10.0,
                "memUsed": usage["memory"].as_str().and_then(bytes).unwrap_or(0),
                "memTotal": shown["memoryMB"].as_u64().unwrap_or(0) << 20, "memCache": 0,
                "diskUsed": 0, "diskTotal": shown["diskSizeMB"].as_u64().unwrap_or(0) << 20,
            }]),
        ))
    }
}

fn user_agent(request: &Parts) -> Option<&str> {
    request.headers.get(USER_AGENT)?.to_str().ok()
}

/// Reads a JSON body; one that is empty is an empty object.
fn json_body(body: &[u8]) -> Result<Value, Refusal> {
    match body {
        [] => Ok(json!({})),
        body => serde_json::from_slice(body)
            .map_err(|error| Refusal::bad(format!("the body is not JSON: {error}"))),
    }
}

/// Which sandboxes a client wants to see.
#[derive(Debug)]
struct Wanted {
    metadata: Vec<(String, String)>,
    states: Vec<String>,
    template: Option<String>,
    started_after: Option<Timestamp>,
    ascending: bool,
    limit: usize,
    after: Option<(Timestamp, String)>,
}

impl Wanted {
    fn read(query: Option<&str>) -> Result<Wanted, Refusal> {
        let mut wanted = Wanted {
            metadata: Vec::new(),
            states: Vec::new(),
            template: None,
            started_after: None,
            ascending: false,
            limit: LONGEST_PAGE,
            after: None,
        };
        for (name, value) in parameters(query) {
            match name.as_str() {
                "metadata" => {
                    // Clients encode keys and values twice.
                    let pairs = parameters(Some(&value)).into_iter();
                    wanted.metadata = pairs.map(|(key, value)| (decoded(key), decoded(value))).collect();
                }
                "state" => wanted.states.extend(value.split(',').map(str::to_owned)),
                "template" => wanted.template = Some(value),
                "order" => wanted.ascending = value == "asc",
                "startedAfter" => {
                    let time = value.parse().map_err(|_| Refusal::bad("`startedAfter` is not a time"))?;
                    wanted.started_after = Some(time);
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=LONGEST_PAGE).contains(limit));
                    let wrong = || Refusal::bad(format!("`limit` must be 1 to {LONGEST_PAGE}"));
                    wanted.limit = limit.ok_or_else(wrong)?;
                }
                "nextToken" => {
                    let after = value.split_once('_').and_then(|(time, id)| Some((time.parse().ok()?, id)));
                    let (time, id) =
                        after.ok_or_else(|| Refusal::bad("`nextToken` is not one of this server"))?;
                    wanted.after = Some((time, id.to_owned()));
                }
                _ => {}
            }
        }
        Ok(wanted)
    }

    /// Returns one page of sandboxes, which come newest first, and the token of the next.
    fn page(&self, all: Vec<Seen>) -> (Vec<Seen>, Option<String>) {
        let mut all = all;
        if self.ascending {
            all.sort_by_key(|seen| (seen.started(), seen.id()));
        }
        let is_wanted = |seen: &Seen| {
            let metadata = seen.metadata();
            let state = if seen.is_paused() { "paused" } else { "running" };
            (self.states.is_empty() || self.states.iter().any(|wanted| wanted == state))
                && self.metadata.iter().all(|(key, value)| metadata.get(key) == Some(value))
                && self.template.as_ref().is_none_or(|template| *template == seen.template())
                && self.started_after.is_none_or(|after| seen.started() > after)
                && self.after.as_ref().is_none_or(|(time, id)| self.is_behind(seen, *time, id))
        };
        let mut left = all.into_iter().filter(is_wanted);
        let page: Vec<Seen> = left.by_ref().take(self.limit).collect();
        let more = left.next().is_some();
        let next = page.last().filter(|_| more).map(|last| format!("{}_{}", last.started(), last.id()));
        (page, next)
    }

    fn is_behind(&self, seen: &Seen, time: Timestamp, id: &str) -> bool {
        let started = seen.started();
        let is_later = if self.ascending { started > time } else { started < time };
        is_later || (started == time && seen.id().as_str() > id)
    }
}

fn decoded(text: String) -> String {
    match text.contains('%') {
        true => parameters(Some(&text)).into_iter().next().map(|(text, _)| text).unwrap_or_default(),
        false => text,
    }
}

/// Reads a quantity of processors as thousandths.
fn thousandths(quantity: &str) -> Option<u64> {
    if let Some(number) = quantity.strip_suffix('n') {
        return Some(number.parse::<u64>().ok()? / 1_000_000);
    }
    if let Some(number) = quantity.strip_suffix('u') {
        return Some(number.parse::<u64>().ok()? / 1000);
    }
    if let Some(number) = quantity.strip_suffix('m') {
        return number.parse().ok();
    }
    let number: f64 = quantity.parse().ok()?;
    (0.0..1e9).contains(&number).then_some((number * 1000.0) as u64)
}

/// Reads a quantity of bytes.
fn bytes(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let (unit, factor) = UNITS.into_iter().find(|(unit, _)| quantity.ends_with(unit))?;
    let number: f64 = quantity.strip_suffix(unit)?.parse().ok()?;
    (0.0..1e18).contains(&number).then_some((number * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use warren_client::launch::Launched;

    use super::*;

    fn seen(id: &str, second: u32, paused: bool) -> Seen {
        let sandbox: warren_api::Sandbox = serde_json::from_value(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {
                "name": id, "namespace": "n", "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
                "annotations": {"warren.dev/e2b-metadata": r#"{"k":"a b"}"#, "warren.dev/e2b-template": "base"},
            },
            "spec": {
                "podTemplate": {"spec": {"containers": [{"name": "c"}]}},
                "operatingMode": if paused { "Suspended" } else { "Running" },
            },
        }))
        .expect("a sandbox");
        Seen { launched: Launched::Sandbox(Box::new(sandbox.clone())), sandbox: Some(sandbox) }
    }

    fn all() -> Vec<Seen> {
        vec![seen("c", 3, false), seen("a", 2, true), seen("b", 2, false), seen("d", 1, false)]
    }

    fn pages(query: &str) -> Vec<Vec<String>> {
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let wanted = Wanted::read(Some(&format!("{query}{token}"))).expect("a query");
            let (page, next) = wanted.page(all());
            pages.push(page.iter().map(Seen::id).collect());
            match next {
                Some(next) => token = format!("&nextToken={}", next.replace(':', "%3A")),
                None => return pages,
            }
        }
    }

    #[test]
    fn pages_follow_each_other_without_gaps_or_repeats() {
        assert_eq!(pages("limit=100"), [["c", "a", "b", "d"]]);
        assert_eq!(pages("limit=1"), [["c"], ["a"], ["b"], ["d"]]);
        assert_eq!(pages("limit=3&order=asc"), [vec!["d", "a", "b"], vec!["c"]]);
        assert_eq!(pages("limit=2&state=running"), [vec!["c", "b"], vec!["d"]]);
        assert_eq!(pages("state=paused"), [["a"]]);
        assert_eq!(pages("metadata=k%3Da%2520b&limit=4").concat().len(), 4);
        assert_eq!(pages("metadata=k%3Da%252520b&limit=4").concat().len(), 4);
        assert_eq!(pages("metadata=k%3Db&limit=4").concat().len(), 0);
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("nextToken=x", "nextToken"),
            ("startedAfter=x", "startedAfter"),
        ] {
            assert!(Wanted::read(Some(query)).expect_err("refused").message.contains(field), "{query}");
        }
    }

    #[test]
    fn quantities_are_read() {
        assert_eq!(thousandths("250m"), Some(250));
        assert_eq!(thousandths("1500000n"), Some(1));
        assert_eq!(thousandths("2"), Some(2000));
        assert_eq!(bytes("4Gi"), Some(4 << 30));
        assert_eq!(bytes("12345Ki"), Some(12345 << 10));
        assert_eq!(bytes("10"), Some(10));
        assert_eq!(bytes("x"), None);
    }
}
