//! The router's counters, under the names of agent-sandbox's router, and the access log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Method, StatusCode};
use tokio::time::Instant;
use tracing::info;

/// The media type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the durations, in seconds.
const BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0];

/// The namespace of a request whose sandbox is not known. A namespace that a client makes up is no
/// label: clients could make up any number of them.
const NO_NAMESPACE: &str = "-";

/// Everything that is counted. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    in_flight: AtomicI64,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    /// By method, code and namespace.
    requests: BTreeMap<(&'static str, u16, String), Durations>,
    /// By namespace and reason.
    upstream_errors: BTreeMap<(String, &'static str), u64>,
    retries: BTreeMap<String, u64>,
    /// By namespace and decision.
    decisions: BTreeMap<(String, &'static str), u64>,
}

#[derive(Debug, Default)]
struct Durations {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

/// The measurement of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Measured {
    metrics: Metrics,
    started: Instant,
    method: &'static str,
    path: String,
    client: IpAddr,
    pub(crate) status: StatusCode,
    pub(crate) namespace: String,
    pub(crate) sandbox_id: String,
    pub(crate) bytes_out: u64,
}

impl Metrics {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.inner.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to measure a request.
    pub(crate) fn begin(&self, method: &Method, path: &str, client: IpAddr) -> Measured {
        self.inner.in_flight.fetch_add(1, Ordering::Relaxed);
        Measured {
            metrics: self.clone(),
            started: Instant::now(),
            method: method_label(method),
            path: path.to_owned(),
            client,
            status: StatusCode::INTERNAL_SERVER_ERROR,
            namespace: NO_NAMESPACE.to_owned(),
            sandbox_id: String::new(),
            bytes_out: 0,
        }
    }

    /// Counts a request that its sandbox did not answer.
    pub(crate) fn upstream_error(&self, namespace: &str, reason: &'static str) {
        *self.counted().upstream_errors.entry((namespace.to_owned(), reason)).or_default() += 1;
    }

    /// Counts an attempt to connect that follows a failed one.
    pub(crate) fn retry(&self, namespace: &str) {
        *self.counted().retries.entry(namespace.to_owned()).or_default() += 1;
    }

    /// Counts a request that was allowed or refused. The namespace of a refused one is made up by its client.
    pub(crate) fn decision(&self, allowed_in: Option<&str>) {
        let key = match allowed_in {
            Some(namespace) => (namespace.to_owned(), "allow"),
            None => (NO_NAMESPACE.to_owned(), "deny"),
        };
        *self.counted().decisions.entry(key).or_default() += 1;
    }

    /// Returns everything as a page for Prometheus.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        let counted = self.counted();
        let mut family = |name: &str, kind: &str, help: &str, lines: &mut dyn FnMut(&mut String)| {
            let _ =
                write!(page, "# HELP sandbox_router_{name} {help}\n# TYPE sandbox_router_{name} {kind}\n");
            lines(&mut page);
        };
        family("requests_total", "counter", "Requests by outcome.", &mut |page| {
            for ((method, code, namespace), durations) in &counted.requests {
                let _ = writeln!(
                    page,
                    "sandbox_router_requests_total{{method=\"{method}\",code=\"{code}\",sandbox_namespace=\"{namespace}\"}} {}",
                    durations.count
                );
            }
        });
        family("request_duration_seconds", "histogram", "How long requests took.", &mut |page| {
            for ((method, code, namespace), durations) in &counted.requests {
                let labels = format!("method=\"{method}\",code=\"{code}\",sandbox_namespace=\"{namespace}\"");
                durations.write(page, &labels);
            }
        });
        family("inflight_requests", "gauge", "Requests under way.", &mut |page| {
            let count = self.inner.in_flight.load(Ordering::Relaxed);
            let _ = writeln!(page, "sandbox_router_inflight_requests {count}");
        });
        family("upstream_errors_total", "counter", "Requests that sandboxes did not answer.", &mut |page| {
            for ((namespace, reason), count) in &counted.upstream_errors {
                let _ = writeln!(
                    page,
                    "sandbox_router_upstream_errors_total{{sandbox_namespace=\"{namespace}\",reason=\"{reason}\"}} {count}"
                );
            }
        });
        family("upstream_retries_total", "counter", "Connections tried again.", &mut |page| {
            for (namespace, count) in &counted.retries {
                let _ = writeln!(
                    page,
                    "sandbox_router_upstream_retries_total{{sandbox_namespace=\"{namespace}\"}} {count}"
                );
            }
        });
        family("authz_decisions_total", "counter", "Requests that were allowed or refused.", &mut |page| {
            for ((namespace, decision), count) in &counted.decisions {
                let _ = writeln!(
                    page,
                    "sandbox_router_authz_decisions_total{{sandbox_namespace=\"{namespace}\",decision=\"{decision}\"}} {count}"
                );
            }
        });
        page
    }
}

impl Durations {
    fn observe(&mut self, seconds: f64) {
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn write(&self, page: &mut String, labels: &str) {
        let name = "sandbox_router_request_duration_seconds";
        for (count, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(page, "{name}_sum{{{labels}}} {}", self.sum);
        let _ = writeln!(page, "{name}_count{{{labels}}} {}", self.count);
    }
}

/// Returns a method as a label: the standard ones, and one word for all others.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "OTHER",
    }
}

impl Measured {
    /// Ends the measurement of a request that we answer ourselves.
    pub(crate) fn end(mut self, status: StatusCode) {
        self.status = status;
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let elapsed = self.started.elapsed();
        self.metrics.inner.in_flight.fetch_sub(1, Ordering::Relaxed);
        let key = (self.method, self.status.as_u16(), self.namespace.clone());
        self.metrics.counted().requests.entry(key).or_default().observe(elapsed.as_secs_f64());
        if self.path != "/healthz" {
            info!(
                target: "warren_router::access",
                method = self.method,
                path = self.path,
                status = self.status.as_u16(),
                duration_ms = elapsed.as_millis() as u64,
                client_ip = %self.client,
                sandbox_id = self.sandbox_id,
                sandbox_namespace = self.namespace,
                bytes_out = self.bytes_out,
                "request"
            );
        }
    }
}
