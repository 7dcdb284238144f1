//! Runs the agents of `examples/agents` with the published frameworks: a plain loop, the OpenAI
//! Agents SDK, and LangChain on LangGraph. A stand-in plays the model; the sandboxes are real.

use std::path::Path;
use std::process::{Command, Stdio};

use warren_api::SandboxClaim;
use warren_client::kube::api::{Api, ListParams};
use warren_e2e::clients::python_with;
use warren_e2e::local_home::{LocalHome, service_binary, warren_binary};

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_each_framework_work_in_a_sandbox_and_leave_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let python = match python_with("agents-requirements.txt", None) {
        Ok(python) => python,
        Err(error) => {
            eprintln!("skipped: the frameworks cannot be installed: {error}");
            return;
        }
    };
    // `warren mcp` looks for it in its own directory.
    service_binary();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents");
    for agent in ["plain_loop.py", "openai_agents.py", "langgraph_agent.py"] {
        let output = Command::new(&python)
            .arg(examples.join(agent))
            .env("WARREN", warren_binary())
            .env("WARREN_HOME", home.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("OPENAI_API_KEY")
            .stdin(Stdio::null())
            .output()
            .expect("run Python");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{agent}: {told}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "The sandbox printed 45.\n", "{agent}: {told}");
    }
    let claims: Api<SandboxClaim> = Api::default_namespaced(home.client().await);
    let left = claims.list(&ListParams::default()).await.expect("list claims").items;
    assert!(left.is_empty(), "{left:?}");
}
