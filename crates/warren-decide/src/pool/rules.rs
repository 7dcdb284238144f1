//! Combines a pool's spec, its annotations and the settings of all pools into its rules.

use std::time::Duration;

use warren_api::pool::UpdateStrategyType;
use warren_api::{SandboxWarmPool, annotations, go_duration};

use super::Settings;
use crate::bounded::bounded;
use crate::ownership;

/// The percentage of members that a rolling update may take away at a time by default; a
/// Deployment's number.
const DEFAULT_MAX_UNAVAILABLE_PERCENT: usize = 25;

/// The treatment of members that differ from the present template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Keep them until they are claimed; only new ones come from the new template.
    OnReplenish,
    /// Delete them at once. They are not handed out meanwhile.
    Recreate,
    /// Delete a few at a time. They are handed out meanwhile.
    RollingUpdate {
        /// The most members that may be missing or not ready because of the update; at least one.
        max_unavailable: usize,
    },
}

impl Strategy {
    /// Returns the strategy of a pool.
    #[must_use]
    pub fn of(pool: &SandboxWarmPool) -> Self {
        Rules::of(pool, &Settings::default()).strategy
    }
}

/// The rules of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// The number of members that the pool should have: the one it asks for, within the caps.
    pub(super) desired: usize,
    pub(super) strategy: Strategy,
    pub(super) progress_deadline: Duration,
    /// The problems of its annotations; each such annotation is ignored.
    pub(super) nonsense: Vec<String>,
}

impl Rules {
    pub(super) fn of(pool: &SandboxWarmPool, settings: &Settings) -> Self {
        let mut nonsense = Vec::new();
        let annotation = |key| ownership::annotation(&pool.metadata, key);
        let mut ignore = |key: &str, value: &str, wanted: &str| {
            nonsense.push(format!("{key}: {:?} is not {wanted}, and is ignored", bounded(value, 64)));
        };

        let asked = usize::try_from(pool.spec.replicas).unwrap_or_default();
        let own_cap = annotation(annotations::MAX_MEMBERS).and_then(|text| {
            text.parse().map_err(|_| ignore(annotations::MAX_MEMBERS, text, "a number")).ok()
        });
        let caps = own_cap.into_iter().chain(settings.max_size);
        let desired = caps.fold(asked, usize::min);

        let progress_deadline = annotation(annotations::PROGRESS_DEADLINE).and_then(|text| {
            let parsed = go_duration::parse(text).ok().filter(|duration| !duration.is_zero());
            parsed.or_else(|| {
                ignore(annotations::PROGRESS_DEADLINE, text, "a duration such as 90s or 10m");
                None
            })
        });

        let max_unavailable = annotation(annotations::MAX_UNAVAILABLE).and_then(|text| {
            share_of(text, desired).or_else(|| {
                ignore(annotations::MAX_UNAVAILABLE, text, "a number or a percentage of at most 100%");
                None
            })
        });
        let rolling = annotation(annotations::UPDATE_STRATEGY).is_some_and(|text| {
            if text != annotations::ROLLING_UPDATE {
                ignore(annotations::UPDATE_STRATEGY, text, annotations::ROLLING_UPDATE);
            }
            text == annotations::ROLLING_UPDATE
        });
        let strategy = match (rolling, pool.spec.update_strategy_type()) {
            (true, _) => Strategy::RollingUpdate {
                // With zero the update would never begin.
                max_unavailable: max_unavailable
                    .unwrap_or(desired * DEFAULT_MAX_UNAVAILABLE_PERCENT / 100)
                    .max(1),
            },
            (false, UpdateStrategyType::Recreate) => Strategy::Recreate,
            (false, UpdateStrategyType::OnReplenish) => Strategy::OnReplenish,
        };
        Self {
            desired,
            strategy,
            progress_deadline: progress_deadline.unwrap_or(settings.progress_deadline),
            nonsense,
        }
    }
}

/// Parses a number, or a percentage of `whole`, rounded down.
fn share_of(text: &str, whole: usize) -> Option<usize> {
    match text.strip_suffix('%') {
        None => text.parse().ok(),
        Some(percent) => {
            let percent: usize = percent.parse().ok().filter(|percent| *percent <= 100)?;
            whole.checked_mul(percent).map(|product| product / 100)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::{Rules, Settings};

    fn check(replicas: i32, annotations: Value, expect: Expect) {
        let pool = serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "t"}, "updateStrategy": {"type": "Recreate"}},
        }))
        .unwrap();
        let settings = Settings { max_size: Some(50), ..Settings::default() };
        let Rules { desired, strategy, progress_deadline, nonsense } = Rules::of(&pool, &settings);
        let mut text = format!("{desired} {strategy:?}");
        if progress_deadline != Duration::from_secs(600) {
            text.push_str(&format!(" {progress_deadline:?}"));
        }
        nonsense.iter().for_each(|line| text.push_str(&format!("\n{line}")));
        expect.assert_eq(&text);
    }

    #[test]
    fn the_smallest_cap_counts() {
        check(20, json!({}), expect!["20 Recreate"]);
        check(20_000, json!({}), expect!["50 Recreate"]);
        check(20_000, json!({"warren.dev/max-members": "7"}), expect!["7 Recreate"]);
        check(20_000, json!({"warren.dev/max-members": "70"}), expect!["50 Recreate"]);
        check(2, json!({"warren.dev/max-members": "0"}), expect!["0 Recreate"]);
        check(
            20_000,
            json!({"warren.dev/max-members": "-1"}),
            expect![[r#"
                50 Recreate
                warren.dev/max-members: "-1" is not a number, and is ignored"#]],
        );
    }

    #[test]
    fn a_rolling_update_takes_a_quarter_or_what_it_is_told() {
        let rolling = |more: Value| {
            let mut all = json!({"warren.dev/update-strategy": "RollingUpdate"});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        check(10, rolling(json!({})), expect!["10 RollingUpdate { max_unavailable: 2 }"]);
        check(3, rolling(json!({})), expect!["3 RollingUpdate { max_unavailable: 1 }"]);
        check(
            10,
            rolling(json!({"warren.dev/max-unavailable": "50%"})),
            expect!["10 RollingUpdate { max_unavailable: 5 }"],
        );
        check(
            10,
            rolling(json!({"warren.dev/max-unavailable": "3", "warren.dev/progress-deadline": "90s"})),
            expect!["10 RollingUpdate { max_unavailable: 3 } 90s"],
        );
        check(
            10,
            rolling(json!({"warren.dev/max-unavailable": "101%", "warren.dev/progress-deadline": "soon"})),
            expect![[r#"
                10 RollingUpdate { max_unavailable: 2 }
                warren.dev/progress-deadline: "soon" is not a duration such as 90s or 10m, and is ignored
                warren.dev/max-unavailable: "101%" is not a number or a percentage of at most 100%, and is ignored"#]],
        );
        check(
            10,
            json!({"warren.dev/update-strategy": "Rolling"}),
            expect![[r#"
                10 Recreate
                warren.dev/update-strategy: "Rolling" is not RollingUpdate, and is ignored"#]],
        );
    }
}
