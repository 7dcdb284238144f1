//! Plays the conformance scenarios on a real control plane, compares its answers with the recorded
//! ones, and those of the embedded server with both.
//!
//! | variable | effect |
//! |---|---|
//! | `WARREN_CONFORMANCE_KUBECONFIG` | use this control plane instead of starting one |
//! | `WARREN_CONFORMANCE_RECORD` | its answers become the recorded ones |
//! | `WARREN_CONFORMANCE_ONLY` | only scenarios whose `topic/name` contains this |

use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_e2e::conformance::kubeconfig;
use warren_e2e::conformance::ours::Ours;
use warren_e2e::conformance::report::judge;
use warren_e2e::conformance::runner::Pace;
use warren_e2e::conformance::suite::Suite;
use warren_e2e::conformance::target::HttpsTarget;
use warren_testkit::kube::ControlPlane;

fn real() -> HttpsTarget {
    let path = match std::env::var_os("WARREN_CONFORMANCE_KUBECONFIG") {
        Some(path) => PathBuf::from(path),
        None => ControlPlane::start().kubeconfig().to_owned(),
    };
    let access = kubeconfig::read(Path::new(&path)).expect("read the kubeconfig");
    HttpsTarget::new(&access).expect("prepare TLS")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_control_plane_answers_as_recorded_and_ours_answers_the_same() {
    let target = real();
    let only = std::env::var("WARREN_CONFORMANCE_ONLY").ok();
    let suite = Suite::load(only.as_deref()).unwrap();
    let run = suite.play(&target, Pace { parallel: 6, patience: Duration::from_secs(60) }).await;
    if std::env::var_os("WARREN_CONFORMANCE_RECORD").is_some() {
        suite.record(&run).unwrap();
    }
    let report = judge(&suite.recorded().unwrap(), &run);
    println!("the real server, against what was recorded of it\n{report}");
    assert_eq!(report.complaints(), Vec::<String>::new());

    let ours = Ours::start().await.unwrap();
    let own_run = suite.play(&ours, Pace { parallel: 6, patience: Duration::from_secs(60) }).await;
    ours.stop().await;
    let report = judge(&run, &own_run);
    println!("ours, against the real server\n{report}");
    assert_eq!(report.complaints(), Vec::<String>::new());
}
