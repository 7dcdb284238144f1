//! The router: one HTTP address for all sandboxes. A request says by headers which sandbox it is for
//! (`X-Sandbox-ID`, `X-Sandbox-Namespace`, `X-Sandbox-Port`), by its path or by its host, and is passed on to
//! that sandbox's pod.
//!
//! The routes come from a watch of pods, never from DNS, and a request never leads to an address that is
//! not the one of a known sandbox pod. Bodies are streamed both ways; nothing is buffered whole. The
//! router keeps no state that another replica would need, and creates nothing in the cluster.
//!
//! Start with [`Router`], then `proxy`, which carries one request; the decisions about targets are in
//! `warren_decide::route`.

mod answer;
mod authz;
mod body;
mod browser;
mod dial;
mod grpc;
mod headers;
mod limits;
mod listen;
mod metrics;
mod pool;
mod proxy;
mod routes;
mod target;
mod tls;
pub mod token;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

pub use authz::{Authorization, TokenReviews};
pub use browser::{BrowserConfig, SameSite};
pub use dial::{ByAddress, Dialer, Stream};
pub use listen::{Listener, MOST_CONNECTIONS, MOST_HEADER_BYTES, PeerCheck, serve, serve_pages};
pub use metrics::CONTENT_TYPE;
pub use tls::{ClientCertificates, Tls, TlsError, TlsFiles};
pub use warren_decide::route::Route;

use authz::Gate;
use limits::Limits;
use metrics::Metrics;
use pool::Pool;
use routes::Routes;

/// The settings of a router.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest time without a byte of the request or its answer; the most that
    /// `X-Sandbox-Timeout` can ask for, and what counts without it.
    pub proxy_timeout: Duration,
    /// The largest request body; 0 for no limit.
    pub max_request_body_bytes: u64,
    /// The most requests that one sandbox has at the same time, upgraded connections included.
    pub max_requests_per_sandbox: usize,
    /// The longest time that connecting to a pod may take.
    pub dial_timeout: Duration,
    /// The most times that a failed connection is tried again. Only connecting is repeated: a
    /// request of which something may have been sent is never sent again.
    pub max_retries: u32,
    /// The pause before the first of those; each further one is twice as long.
    pub retry_initial_delay: Duration,
    /// The longest such pause.
    pub retry_max_delay: Duration,
    /// Which names requests may have in `Host`.
    pub hosts: Hosts,
    /// The pods to route to.
    pub pods: PodScope,
    /// The beginning of paths `<prefix>/<namespace>/<id>/<port>/…`; `None`: no path names a sandbox.
    pub path_routing_prefix: Option<String>,
    /// The domain of hosts `<port>-<id>.<namespace>.<domain>`; `None`: no host names a sandbox.
    pub host_routing_domain: Option<String>,
    /// The authorization method for clients.
    pub authorization: Authorization,
    /// The settings for browsers.
    pub browser: BrowserConfig,
    /// The most requests that one client has at the same time, by its address; 0 for no limit.
    pub max_requests_per_client: usize,
}

impl Default for Config {
    /// The defaults of agent-sandbox's router.
    fn default() -> Self {
        Self {
            proxy_timeout: Duration::from_secs(180),
            max_request_body_bytes: 0,
            max_requests_per_sandbox: 1024,
            dial_timeout: Duration::from_secs(30),
            max_retries: 3,
            retry_initial_delay: Duration::from_millis(200),
            retry_max_delay: Duration::from_millis(800),
            hosts: Hosts::Any,
            pods: PodScope::default(),
            path_routing_prefix: None,
            host_routing_domain: None,
            authorization: Authorization::AllowAll,
            browser: BrowserConfig::default(),
            max_requests_per_client: 0,
        }
    }
}

/// Which names requests may have in `Host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// Any.
    Any,
    /// Only names of this machine's loopback. A web page whose name an attacker has made to lead to
    /// 127.0.0.1 (DNS rebinding) has its own name there, and is refused.
    Loopback,
}

/// The pods that a router routes to.
#[derive(Debug, Clone, Default)]
pub struct PodScope {
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// Also those without an address: the dialer reaches them another way.
    pub addressless: bool,
}

/// A router. Clones share everything.
#[derive(Clone)]
pub struct Router {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    routes: Routes,
    dialer: Box<dyn Dialer>,
    pool: Pool,
    limits: Limits,
    clients: Limits,
    gate: Gate,
    metrics: Metrics,
}

impl Router {
    /// Makes a router. It watches pods from the first request on, or from [`Router::start`] on. To be
    /// called in a runtime.
    pub fn new(client: kube::Client, dialer: impl Dialer, config: Config) -> Router {
        let gate = Gate::new(client.clone(), config.authorization.clone());
        let routes = Routes::new(client, config.pods.clone());
        let shared = Shared {
            routes,
            dialer: Box::new(dialer),
            pool: Pool::default(),
            limits: Limits::new(config.max_requests_per_sandbox),
            clients: Limits::new(config.max_requests_per_client),
            gate,
            metrics: Metrics::default(),
            config,
        };
        Router { shared: Arc::new(shared) }
    }

    /// Starts to watch pods, and returns when all of them are known.
    pub async fn start(&self) {
        self.shared.routes.wait_until_listed().await;
    }

    /// Returns the metrics as a page for Prometheus.
    pub fn metrics_page(&self) -> String {
        self.shared.metrics.page()
    }
}
