//! Manifests, and the answers of a Kubernetes API server.
//!
//! Every file below this folder is a case: an object to create, optional further steps, and the
//! server's answers. A real kube-apiserver wrote the answers. They are compared word by word with
//! current ones. `WARREN_TEST_KUBECONFIG` names another server to compare with. Without it the test
//! starts a real control plane. `UPDATE_EXPECT=1` rewrites the answers.

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
