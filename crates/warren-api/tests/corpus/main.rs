//! Manifests, and what a Kubernetes API server makes of them.
//!
//! Every file below this folder is a case: an object to create, perhaps what to do to it then, and what the server
//! answered. The answers were written by a real kube-apiserver and are compared with what one says now, word by
//! word. `WARREN_TEST_KUBECONFIG` names another server to hold to the same answers; without it the test starts a real control
//! plane of its own. `UPDATE_EXPECT=1` writes the answers anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod case;
mod seeds;
mod server;

use case::Case;
use server::Server;

#[tokio::test]
async fn the_server_answers_as_written() {
    let server = Server::connect().await;
    let cases = Case::load_all();
    assert!(cases.len() >= 80, "only {} cases", cases.len());
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut differing = Vec::new();
    for case in &cases {
        let answers = server.play(case).await;
        let shown = serde_saphyr::to_string(&answers).unwrap();
        if shown == case.expected {
            continue;
        }
        if update {
            case.write_expected(&shown);
        } else {
            differing.push(format!(
                "{}\n--- written\n{}--- now\n{shown}",
                case.path.display(),
                case.expected
            ));
        }
    }
    println!("{} cases, {} with an answer that differs", cases.len(), differing.len());
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[tokio::test]
async fn manifests_of_the_founding_documents_are_accepted_or_explained() {
    seeds::check(&Server::connect().await).await;
}
