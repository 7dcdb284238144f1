//! Tests a running controller's metrics after known actions, its probes, leadership, and spans.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warren_api::annotations::TRACE_CONTEXT;
use warren_api::{Sandbox, SandboxClaim};
use warren_controllers::leader::Election;
use warren_controllers::permissions::NAMESPACE;
use warren_controllers::telemetry::{OtlpConfig, OtlpProtocol, Sampling, Telemetry};
use warren_controllers::{Config, Connection, Endpoints, Program, RunError};

use super::permissions::Account;
use super::{extensions, sandbox};
use crate::support::collector::{Collector, Span};
use crate::support::{self, DEADLINE, Place, is_ready};

/// A controller program in this process, with endpoints on loopback.
struct Running {
    metrics: SocketAddr,
    health: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Running {
    async fn start(place: &Place, config: Config, election: Option<Election>, telemetry: Telemetry) -> Self {
        Self::start_as(place.client.clone(), place, config, election, telemetry).await
    }

    /// Starts one with a client of its own.
    async fn start_as(
        inner: Client,
        place: &Place,
        config: Config,
        election: Option<Election>,
        telemetry: Telemetry,
    ) -> Self {
        let transport = tower::service_fn(move |request| {
            let inner = inner.clone();
            async move { inner.send(request).await }
        });
        let client = |host| Client::new(telemetry.client_layer(host).around(transport.clone()), "default");
        let connection = Connection {
            client: client("server:1"),
            lease: client("lease:1"),
            namespace: place.namespace.clone(),
        };
        let loopback = "127.0.0.1:0".parse().unwrap();
        let endpoints = Endpoints::open(Some(&loopback), Some(&loopback)).await.unwrap();
        let (metrics, health) = (endpoints.metrics().unwrap(), endpoints.health().unwrap());
        let shutdown = CancellationToken::new();
        let program = Program { controllers: config, election };
        let task = tokio::spawn(warren_controllers::run(
            connection,
            telemetry,
            program,
            endpoints,
            shutdown.clone(),
        ));
        Self { metrics, health, shutdown, task }
    }

    /// Scrapes until the page meets a condition.
    async fn scrape_until(&self, what: &str, is_wanted: impl Fn(&Page) -> bool) -> Page {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let (status, text) = get(self.metrics, "/metrics").await;
            assert_eq!(status, 200);
            let page = Page::parse(&text);
            if is_wanted(&page) {
                return page;
            }
            assert!(tokio::time::Instant::now() < deadline, "never {what}:\n{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(DEADLINE, self.task).await.unwrap().unwrap().unwrap();
    }
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A page of metrics: types by family, values by series as written.
struct Page {
    types: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Page {
    fn parse(text: &str) -> Self {
        let mut page = Self { types: BTreeMap::new(), series: BTreeMap::new() };
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(page.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert!(page.series.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series}");
            }
        }
        page
    }

    fn value(&self, series: &str) -> f64 {
        self.series.get(series).copied().unwrap_or_default()
    }

    /// Returns the label names of a family's first series.
    fn labels(&self, family: &str) -> Vec<&str> {
        let found = self.series.keys().find_map(|series| series.strip_prefix(family)?.strip_prefix('{'));
        let labels = found.unwrap_or_else(|| panic!("{family} has no series")).trim_end_matches('}');
        labels.split("\",").map(|pair| pair.split_once('=').unwrap().0).collect()
    }

    fn bounds(&self, family: &str) -> Vec<f64> {
        let prefix = format!("{family}_bucket{{");
        let first = self.series.keys().find(|series| series.starts_with(&prefix)).unwrap();
        let others = &first[..first.find("le=").unwrap()];
        let mut bounds: Vec<f64> = self
            .series
            .keys()
            .filter_map(|series| {
                series.strip_prefix(others)?.strip_prefix("le=\"")?.strip_suffix("\"}")?.parse().ok()
            })
            .collect();
        bounds.sort_by(f64::total_cmp);
        bounds
    }
}

pub async fn metrics_have_the_names_of_agent_sandbox_and_count_what_happened(place: Place) {
    let running = Running::start(&place, extensions(), None, Telemetry::default()).await;
    let _nodes = support::nodes(&place).await;
    let namespace = &place.namespace;
    place.pool("pool", 1, json!({})).await;
    place.full("pool", 1).await;
    place.pool("none", 0, json!({})).await;
    let asked = jiff::Timestamp::now() - Duration::from_secs(3);
    for (name, pool) in [("warm", "pool"), ("cold", "none")] {
        place
            .create::<SandboxClaim>(json!({
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
                "metadata": {"name": name, "labels": {"agents.x-k8s.io/created-by": "python-client"}, "annotations": {
                    "agents.x-k8s.io/client-first-requested-at": asked.to_string(),
                    "agents.x-k8s.io/webhook-first-observed-at": asked.to_string()}},
                "spec": {"warmPoolRef": {"name": pool}}}))
            .await;
        place.claimed(name).await;
    }
    // Ready, not ready, ready again: counted once.
    let warm = place.claimed("warm").await.name_any();
    place.patch::<Sandbox>(&warm, json!({"spec": {"operatingMode": "Suspended"}})).await;
    place.wait::<SandboxClaim>("warm", "suspended", is_ready("False/SandboxSuspended")).await;
    place.patch::<Sandbox>(&warm, json!({"spec": {"operatingMode": "Running"}})).await;
    place.claimed("warm").await;
    place.full("pool", 1).await;

    let sandboxes = |page: &Page, owner: &str, launch: &str, template: &str, by: &str| {
        page.value(&format!(
            "agent_sandboxes{{created_by=\"{by}\",expired=\"false\",launch_type=\"{launch}\",namespace=\"{namespace}\",\
             owned_by=\"{owner}\",ready_condition=\"true\",sandbox_template=\"{template}\"}}"
        ))
    };
    let page = running
        .scrape_until("complete", |page| {
            sandboxes(page, "SandboxWarmPool", "warm", "pool", "controller") == 1.0
                && sandboxes(page, "SandboxClaim", "warm", "pool", "python-client") == 1.0
                && sandboxes(page, "SandboxClaim", "cold", "none", "python-client") == 1.0
        })
        .await;

    for (launch, template, condition, pool) in
        [("warm", "pool", "ready", "pool"), ("cold", "none", "not_ready", "none")]
    {
        let claims = format!(
            "agent_sandbox_claim_creation_total{{created_by=\"python-client\",launch_type=\"{launch}\",namespace=\"{namespace}\",\
             pod_condition=\"{condition}\",sandbox_template=\"{template}\",warmpool_name=\"{pool}\"}}"
        );
        assert_eq!(page.value(&claims), 1.0, "{claims}");
        let labels = format!("{{launch_type=\"{launch}\",sandbox_template=\"{template}\"}}");
        for family in [
            "agent_sandbox_claim_startup_latency_ms",
            "agent_sandbox_claim_controller_startup_latency_ms",
            "agent_sandbox_client_claim_startup_latency_ms",
            "warren_claim_ready_seconds",
        ] {
            assert_eq!(page.value(&format!("{family}_count{labels}")), 1.0, "{family} {launch}");
        }
        let since_asked = page.value(&format!("agent_sandbox_client_claim_startup_latency_ms_sum{labels}"));
        assert!(since_asked >= 3000.0, "{since_asked}");
        let creation = format!(
            "agent_sandbox_creation_latency_ms_count{{launch_type=\"{launch}\",namespace=\"{namespace}\",sandbox_template=\"{template}\"}}"
        );
        assert_eq!(page.value(&creation), 1.0, "{creation}");
    }
    has_the_shape_of_agent_sandbox(&page);

    assert_eq!(get(running.health, "/healthz").await, (200, "ok".to_owned()));
    assert_eq!(get(running.health, "/readyz").await, (200, "ok".to_owned()));
    assert_eq!(get(running.health, "/metrics").await.0, 404);
    let taken = running.metrics.to_string().parse().unwrap();
    let Err(error) = Endpoints::open(Some(&taken), None).await else { panic!("a port was taken twice") };
    assert_eq!(error.to_string(), format!("serve metrics on `{taken}`"));
    running.stop().await;
}

/// Checks the types, labels and bounds that dashboards and load tests rely on.
fn has_the_shape_of_agent_sandbox(page: &Page) {
    let claim = [
        100., 250., 500., 750., 1000., 1250., 1500., 2000., 2500., 5000., 10_000., 30_000., 60_000.,
        120_000., 240_000.,
    ];
    for family in [
        "agent_sandbox_claim_startup_latency_ms",
        "agent_sandbox_claim_controller_startup_latency_ms",
        "agent_sandbox_client_claim_startup_latency_ms",
    ] {
        let bounds = page.bounds(family);
        assert_eq!(bounds[..bounds.len() - 1], claim, "{family}");
    }
    let bounds = page.bounds("agent_sandbox_creation_latency_ms");
    assert_eq!(
        bounds[..bounds.len() - 1],
        [
            50., 100., 250., 500., 1000., 2500., 5000., 10_000., 30_000., 60_000., 120_000., 240_000.,
            300_000., 600_000.
        ]
    );
    let bounds = page.bounds("warren_claim_ready_seconds");
    assert_eq!((bounds[0], bounds[bounds.len() - 2], bounds[bounds.len() - 1]), (0.001, 60.0, f64::INFINITY));
    for (family, kind, labels) in [
        (
            "agent_sandbox_build_info",
            "gauge",
            "build_date compiler git_commit git_version go_version platform",
        ),
        ("controller_runtime_reconcile_total", "counter", "controller result"),
        ("controller_runtime_reconcile_errors_total", "counter", "controller"),
        ("controller_runtime_active_workers", "gauge", "controller"),
        ("controller_runtime_max_concurrent_reconciles", "gauge", "controller"),
        ("workqueue_depth", "gauge", "controller name priority"),
        ("workqueue_adds_total", "counter", "controller name"),
        ("workqueue_retries_total", "counter", "controller name"),
        ("workqueue_unfinished_work_seconds", "gauge", "controller name"),
        ("workqueue_longest_running_processor_seconds", "gauge", "controller name"),
        ("rest_client_requests_total", "counter", "code host method"),
    ] {
        assert_eq!(page.types.get(family).map(String::as_str), Some(kind), "{family}");
        assert_eq!(page.labels(family).join(" "), labels, "{family}");
    }
    for (family, labels) in [
        ("controller_runtime_reconcile_time_seconds", "controller"),
        ("workqueue_queue_duration_seconds", "controller name"),
        ("workqueue_work_duration_seconds", "controller name"),
        ("rest_client_request_duration_seconds", "host verb"),
    ] {
        assert_eq!(page.types.get(family).map(String::as_str), Some("histogram"), "{family}");
        assert_eq!(page.labels(&format!("{family}_count")).join(" "), labels, "{family}");
    }
    let bounds = page.bounds("controller_runtime_reconcile_time_seconds");
    assert_eq!(
        bounds[..bounds.len() - 1],
        [
            0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
            1., 1.25, 1.5, 1.75, 2., 2.5, 3., 3.5, 4., 4.5, 5., 6., 7., 8., 9., 10., 15., 20., 25., 30., 40.,
            50., 60.
        ]
    );
    let bounds = page.bounds("rest_client_request_duration_seconds");
    assert_eq!(
        bounds[..bounds.len() - 1],
        [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2., 4., 8., 15., 30., 60.]
    );
    // Powers of ten, with Go's rounding and formatting.
    for family in ["workqueue_queue_duration_seconds", "workqueue_work_duration_seconds"] {
        let bounds = page.bounds(family);
        assert_eq!(
            bounds[..bounds.len() - 1],
            [
                1e-8,
                1e-7,
                1e-6,
                9.999999999999999e-6,
                9.999999999999999e-5,
                0.001,
                0.01,
                0.1,
                1.,
                10.,
                100.,
                1000.
            ],
            "{family}"
        );
    }
    for (family, kind) in [
        ("process_cpu_seconds_total", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_start_time_seconds", "gauge"),
        ("process_open_fds", "gauge"),
    ] {
        assert_eq!(page.types.get(family).map(String::as_str), Some(kind), "{family}");
        assert!(page.value(family) > 0.0, "{family}");
    }
    for controller in ["sandbox", "sandboxclaim", "sandboxtemplate", "sandboxwarmpool"] {
        let passes = page.value(&format!(
            "controller_runtime_reconcile_total{{controller=\"{controller}\",result=\"success\"}}"
        ));
        assert!(passes > 0.0, "{controller} did nothing");
        let labels = format!("{{controller=\"{controller}\",name=\"{controller}\"}}");
        let (added, taken) = (
            page.value(&format!("workqueue_adds_total{labels}")),
            page.value(&format!("workqueue_queue_duration_seconds_count{labels}")),
        );
        assert!(added >= taken && taken >= passes, "{controller}: {added} {taken} {passes}");
    }
    assert!(page.value("rest_client_requests_total{code=\"201\",host=\"server:1\",method=\"POST\"}") >= 2.0);
}

pub async fn who_stands_by_watches_and_works_as_soon_as_the_leader_leaves(place: Place) {
    let election = |identity: &str| Some(Election::new(&place.namespace, identity));
    let lease = "leader_election_master_status{name=\"a3317529.agent-sandbox.x-k8s.io\"}";
    let first = Running::start(&place, Config::default(), election("first"), Telemetry::default()).await;
    first.scrape_until("leading", |page| page.value(lease) == 1.0).await;
    let second = Running::start(&place, Config::default(), election("second"), Telemetry::default()).await;
    let _nodes = support::nodes(&place).await;
    place.create::<Sandbox>(sandbox("one", json!({}))).await;
    place.wait::<Sandbox>("one", "ready", is_ready("True/DependenciesReady")).await;
    let page =
        first.scrape_until("counted", |page| page.series.keys().any(|name| name.contains("lease:1"))).await;
    let taken = "rest_client_requests_total{code=\"201\",host=\"lease:1\",method=\"POST\"}";
    assert_eq!(page.value(taken), 1.0, "the lease has a client of its own");
    let page = second
        .scrape_until("watching", |page| page.series.keys().any(|name| name.starts_with("agent_sandboxes")))
        .await;
    assert_eq!(page.value(lease), 0.0);
    let worked = "controller_runtime_reconcile_total{controller=\"sandbox\",result=\"success\"}";
    assert_eq!(page.value(worked), 0.0, "who stands by does not work");
    assert_eq!(get(second.health, "/readyz").await.0, 200);

    first.stop().await;
    second.scrape_until("leading", |page| page.value(lease) == 1.0).await;
    place.create::<Sandbox>(sandbox("two", json!({}))).await;
    place.wait::<Pod>("two", "there", |pod: Option<&Pod>| pod.is_some()).await;
    second.stop().await;
}

pub async fn who_may_not_see_everything_leaves_the_lease_to_others(place: Place) {
    let election = |identity: &str| Some(Election::new(NAMESPACE, identity));
    let lease = "leader_election_master_status{name=\"a3317529.agent-sandbox.x-k8s.io\"}";
    let account = Account::new(&place).await;
    account.hand_out(&place, Some(("pods", "list"))).await;
    let (client, config) = (account.client.clone(), Config::default());
    let first =
        Running::start_as(client, &place, config, election(&place.namespace), Telemetry::default()).await;
    account.is_refused("GET", "/api/v1/pods").await;
    let other = format!("{}-other", place.namespace);
    let second = Running::start(&place, Config::default(), election(&other), Telemetry::default()).await;
    second.scrape_until("leading", |page| page.value(lease) == 1.0).await;
    assert_eq!(first.scrape_until("there", |_| true).await.value(lease), 0.0);
    // Once it has the right again, it takes part again.
    account.hand_out(&place, None).await;
    second.stop().await;
    first.scrape_until("leading", |page| page.value(lease) == 1.0).await;
    first.stop().await;
}

pub async fn spans_of_passes_are_children_of_the_context_that_a_claim_carries(place: Place) {
    let collector = Collector::start().await;
    let (telemetry, exporter) = Telemetry::default()
        .with_spans(OtlpConfig {
            endpoint: format!("http://{}", collector.address).parse().unwrap(),
            protocol: OtlpProtocol::Grpc,
            headers: Default::default(),
            timeout: DEADLINE,
            certificate_authority: None,
            sampling: Sampling::default(),
            attributes: Vec::new(),
        })
        .unwrap();
    let running = Running::start(&place, extensions(), None, telemetry).await;
    let _nodes = support::nodes(&place).await;
    place.pool("pool", 0, json!({})).await;
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let context = format!("{{\"traceparent\":\"00-{trace}-{parent}-01\"}}");
    let claim = |name: &str, annotations: Value| {
        json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name, "labels": {"agents.x-k8s.io/created-by": "somebody"}, "annotations": annotations},
            "spec": {"warmPoolRef": {"name": "pool"}}})
    };
    place.create::<SandboxClaim>(claim("asked", json!({TRACE_CONTEXT: context}))).await;
    place.create::<SandboxClaim>(claim("plain", json!({}))).await;
    place.create::<SandboxClaim>(claim("broken", json!({TRACE_CONTEXT: "{nonsense"}))).await;
    let asked = place.claimed("asked").await;
    assert_eq!(asked.annotations()[TRACE_CONTEXT], context, "the sandbox carries its claim's context");
    let plain = place.claimed("plain").await;
    place.claimed("broken").await;
    // The claim had no context, so its first reconcile made one.
    let stamped =
        place.api::<SandboxClaim>().get("plain").await.unwrap().annotations()[TRACE_CONTEXT].clone();
    assert_eq!(plain.annotations()[TRACE_CONTEXT], stamped);
    let own: Value = serde_json::from_str(&stamped).unwrap();
    let own: Vec<&str> = own["traceparent"].as_str().unwrap().split('-').collect();
    running.stop().await;
    exporter.flush(DEADLINE).await;

    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.service == "agent-sandbox-controller" && span.ended >= span.began));
    let of_trace = |trace: &str, name: &str| -> Vec<Span> {
        spans.iter().filter(|span| span.trace == trace && span.name == name).cloned().collect()
    };
    for name in ["ReconcileSandboxClaim", "ReconcileSandbox"] {
        let found = of_trace(trace, name);
        assert!(!found.is_empty() && found.iter().all(|span| span.parent == parent), "{name}: {found:?}");
        assert!(found.iter().all(|span| span.attributes["agents.x-k8s.io/created-by"] == "unknown"));
    }
    let passes = of_trace(trace, "ReconcileSandbox");
    assert!(passes.iter().all(|span| span.attributes["sandbox.name"] == "asked"
        && span.attributes["sandbox.namespace"] == place.namespace));
    let pods = of_trace(trace, "reconcilePod");
    for children in [&pods, &of_trace(trace, "reconcilePVCs")] {
        assert_eq!(children.len(), passes.len());
        assert!(children.iter().all(|child| passes.iter().any(|pass| pass.id == child.parent)));
    }
    let events: Vec<_> = pods.iter().flat_map(|span| &span.events).collect();
    for name in ["NewPodStatusObserved", "ExistingPodStatusObserved"] {
        assert!(
            events.iter().any(|(event, attributes)| event == name && attributes["pod.Name"] == "asked"),
            "{name}: {events:?}"
        );
    }
    assert!(events.iter().any(|(_, attributes)| attributes["pod.Phase"] == "Running"), "{events:?}");
    // The reconcile that made the context is the root of its trace, and later ones are its
    // children.
    let roots: Vec<_> =
        of_trace(own[1], "ReconcileSandboxClaim").into_iter().filter(|span| span.parent.is_empty()).collect();
    assert_eq!(roots.iter().map(|span| span.id.as_str()).collect::<Vec<_>>(), [own[2]]);
    assert!(of_trace(own[1], "ReconcileSandbox").iter().all(|span| span.parent == own[2]));
    let templates: Vec<_> = spans.iter().filter(|span| span.name == "ReconcileSandboxTemplate").collect();
    assert!(!templates.is_empty() && templates.iter().all(|span| span.parent.is_empty()));
}
