//! The arrival times of claims.

use std::time::Duration;

use super::Part;

/// Returns the arrival times of each load, relative to its start. Bursts come last, so that their
/// leftovers do not disturb other loads. The times are the same in every run.
pub fn loads(pool: usize) -> Vec<(Part, Vec<Duration>)> {
    vec![
        (Part::Steady, steady()),
        (Part::Calm, at_random(10.0, 60, 20_262)),
        (Part::Poisson, at_random(45.0, 60, 20_261)),
        (Part::Burst300, at_once(300)),
        (Part::Saturation, at_once(pool)),
        (Part::Burst3600, at_once(3600)),
    ]
}

/// Returns the load of the part `steady`.
pub fn steady() -> Vec<Duration> {
    evenly(75.0, 10)
}

fn at_once(count: usize) -> Vec<Duration> {
    vec![Duration::ZERO; count]
}

fn evenly(per_second: f64, seconds: u32) -> Vec<Duration> {
    let count = (per_second * f64::from(seconds)) as u32;
    (0..count).map(|number| Duration::from_secs_f64(f64::from(number) / per_second)).collect()
}

/// Returns a Poisson process: the times between arrivals are exponentially distributed.
fn at_random(per_second: f64, seconds: u32, seed: u64) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = 0.0;
    let next = || {
        at += -(1.0 - random.f64()).ln() / per_second;
        (at < f64::from(seconds)).then(|| Duration::from_secs_f64(at))
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_load_spreads_over_its_time() {
        let times = evenly(75.0, 10);
        assert_eq!(times.len(), 750);
        assert_eq!(times[75], Duration::from_secs(1));
    }

    #[test]
    fn a_random_load_is_ordered_and_about_as_many_as_asked_for() {
        let times = at_random(45.0, 60, 1);
        assert!(times.is_sorted());
        assert!((2500..2900).contains(&times.len()), "{}", times.len());
        assert_eq!(times, at_random(45.0, 60, 1));
    }
}
