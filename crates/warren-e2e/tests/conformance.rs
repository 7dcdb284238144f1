//! Plays the conformance scenarios on the embedded server and compares its answers with the recorded
//! ones of a real kube-apiserver. `conformance_real.rs` checks the recording and compares the two
//! directly.
//!
//! | variable | effect |
//! |---|---|
//! | `WARREN_CONFORMANCE_ONLY` | only scenarios whose `topic/name` contains this |

use std::time::Duration;

use warren_e2e::conformance::ours::Ours;
use warren_e2e::conformance::report::judge;
use warren_e2e::conformance::runner::Pace;
use warren_e2e::conformance::suite::Suite;

#[test]
fn there_are_at_least_200_scenarios_and_each_is_recorded() {
    let suite = Suite::load(None).unwrap();
    let counts = suite.counts();
    println!("{counts:?}");
    let total: usize = counts.values().sum();
    assert!(total >= 200, "there are {total} scenarios");
    let recorded = suite.recorded().unwrap();
    for (topic, count) in counts {
        let recorded = &recorded[topic];
        assert_eq!(recorded.len(), count, "recordings of topic {topic}");
        for (name, transcript) in recorded {
            assert_eq!(transcript.stopped, None, "{topic}/{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_answers_as_the_real_server_did() {
    let only = std::env::var("WARREN_CONFORMANCE_ONLY").ok();
    let suite = Suite::load(only.as_deref()).unwrap();
    let ours = Ours::start().await.unwrap();
    let run = suite.play(&ours, Pace { parallel: 8, patience: Duration::from_secs(60) }).await;
    ours.stop().await;
    let report = judge(&suite.recorded().unwrap(), &run);
    println!("{report}");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
