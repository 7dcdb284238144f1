//! The conformance scenarios are well-formed and recorded. `conformance_real.rs` plays them against a real control plane.

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
