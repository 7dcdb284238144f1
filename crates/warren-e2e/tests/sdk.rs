//! Tests the published, unmodified Python SDK of agent-sandbox against the local home.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{Api, PostParams};
use serde_json::json;
use warren_api::{SandboxTemplate, SandboxWarmPool};
use warren_e2e::clients::{Python, python_with_sdk};
use warren_e2e::local_home::LocalHome;
use warren_testkit::kube::Cache;

/// The newest release; then the first of the 1.0 line and the last of the one before.
const NEWEST: &str = "1.0.8";
const EARLIER: [&str; 2] = ["1.0.0", "0.5.6"];

const POOL: &str = "pool";

/// The output of `sdk.py`. It is the same for every version and every connection.
const SEEN: &str = r#"active [true]
named after the claim [false]
run [0, "hello\n", ""]
run and fail [3, "out\n", "err\n"]
run nothing [1, true]
read ["first"]
read bytes [true]
list [[["a b.txt", 5, "file"]]]
list the root [true]
exists [true, false]
read what is not there ["SandboxRequestError"]
listed [true]
listed by another label [[]]
the same after reconnecting [true, 0]
listed after deletion [[]]
get what is deleted ["SandboxNotFoundError"]
create from no pool ["SandboxWarmPoolNotFoundError"]
listed after deleting all [[]]
end []
"#;

/// A home with a warm pool, and the SDK; `None`, with a printed reason, where pip cannot install
/// it.
struct Setting {
    home: LocalHome,
    python: Python,
}

impl Setting {
    async fn new(home: Option<LocalHome>, version: &str) -> Option<Setting> {
        let home = home?;
        let python = match python_with_sdk(version) {
            Ok(python) => python,
            Err(error) => {
                eprintln!("skipped: k8s-agent-sandbox {version} cannot be installed: {error}");
                return None;
            }
        };
        home.up();
        let client = home.client().await;
        let create = PostParams::default();
        let template = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxTemplate",
            "metadata": {"name": "template"},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}},
        });
        let template = serde_json::from_value(template).expect("a template");
        let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
        templates.create(&create, &template).await.expect("create the template");
        let pool = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxWarmPool",
            "metadata": {"name": POOL},
            "spec": {"replicas": 2, "sandboxTemplateRef": {"name": "template"}},
        });
        let pool = serde_json::from_value(pool).expect("a pool");
        let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), "default");
        pools.create(&create, &pool).await.expect("create the pool");
        let full = async {
            loop {
                let pool = pools.get(POOL).await.expect("read the pool");
                if pool.status.is_some_and(|status| status.ready_replicas == 2) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), full).await.expect("the pool becomes ready");
        Some(Setting { home, python })
    }

    fn check(&self, way: &str, kind: &str) {
        let url = self.home.warren(&["router-url"]).stdout;
        let seen = self.python.use_sdk(|command| {
            command
                .args([way, kind, POOL])
                .env("KUBECONFIG", self.home.path().join("kubeconfig"))
                .env("ROUTER_URL", url.trim())
                .env("PATH", path_with_kubectl())
        });
        let seen = seen.unwrap_or_else(|error| panic!("{way}, {kind}: {error}"));
        assert_eq!(seen, SEEN, "{way}, {kind}");
    }
}

/// Returns `PATH`, with the kubectl of the control-plane tests after the machine's own.
fn path_with_kubectl() -> OsString {
    let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
    let cache = Cache::locate(named, |name| std::env::var_os(name)).expect("find the cache of programs");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain([cache.programs()]);
    std::env::join_paths(directories).expect("a search path")
}

fn kubectl_is_there() -> bool {
    let is_there = std::env::split_paths(&path_with_kubectl()).any(|it| it.join("kubectl").is_file());
    if !is_there {
        eprintln!("skipped: the SDK's tunnel needs kubectl, and there is none");
    }
    is_there
}

#[tokio::test]
async fn newest_sdk_works_directly_through_a_tunnel_and_by_pod_addresses() {
    let Some(setting) = Setting::new(LocalHome::new(), NEWEST).await else { return };
    setting.check("direct", "sync");
    setting.check("direct", "async");
    setting.check("in-cluster", "sync");
    setting.check("in-cluster", "async");
    if kubectl_is_there() {
        setting.check("tunnel", "sync");
    }
}

#[tokio::test]
async fn earlier_sdks_work() {
    for version in EARLIER {
        let Some(setting) = Setting::new(LocalHome::new(), version).await else { return };
        setting.check("direct", "sync");
        setting.check("direct", "async");
        if kubectl_is_there() {
            setting.check("tunnel", "sync");
        }
    }
}

/// Pods have no addresses there. Root runs the SDK and is refused by the router of another user's
/// home; the tunnel uses the API, for which root has the user's kubeconfig.
#[tokio::test]
async fn newest_sdk_works_through_a_tunnel_in_the_home_of_an_ordinary_user() {
    if !kubectl_is_there() {
        return;
    }
    let Some(setting) = Setting::new(LocalHome::of_an_ordinary_user(), NEWEST).await else { return };
    setting.check("tunnel", "sync");
}
