//! Measures the usage of pods and of the machine: processor time and memory, from the cgroups and
//! `/proc`.
//!
//! Usage is measured only on request. Processor usage is a rate, so it takes two samples: the last
//! one if it is recent enough, else one now and another a moment later.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Mutex;
use warren_oci::cgroup_names;
use warren_oci::privileges::Privileges;
use warren_oci::protocol::{ContainerStatus, Stats};
use warren_sys::cgroup::{Cgroup, Hierarchy};

use crate::pod_registry::{Registry, Seen};

/// The shortest meaningful window for a rate; more frequent requests get the same answer.
const SHORTEST_WINDOW: Duration = Duration::from_secs(1);
/// The longest window: usage of an hour ago is not present usage. Metrics servers ask every 15 s to
/// 60 s.
const LONGEST_WINDOW: Duration = Duration::from_secs(90);

/// The kernel's unit for the machine's processor time, independent of its timer frequency.
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// The latest samples.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    hierarchy: OnceLock<Hierarchy>,
    last: Mutex<Option<(Sample, Arc<Measured>)>>,
}

/// One sample of everything.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    taken: Option<Instant>,
    pub(crate) time: Timestamp,
    pub(crate) machine: Machine,
    pub(crate) pods: Vec<PodSample>,
}

/// The machine as a whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Machine {
    pub(crate) cpu_nanoseconds: u64,
    pub(crate) memory_available_bytes: u64,
    /// The total memory minus the memory that the kernel reports as available.
    pub(crate) memory_used_bytes: u64,
}

/// One running pod.
#[derive(Debug, Clone)]
pub(crate) struct PodSample {
    pub(crate) pod: Arc<Pod>,
    pub(crate) uid: String,
    pub(crate) containers: Vec<ContainerSample>,
}

/// One running container.
#[derive(Debug, Clone)]
pub(crate) struct ContainerSample {
    pub(crate) name: String,
    pub(crate) started_at: Timestamp,
    pub(crate) stats: Stats,
}

/// A sample with rates.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// The window of the rates.
    pub(crate) window: Duration,
    /// Billionths of a processor.
    pub(crate) machine_nanocores: u64,
    /// Rates by pod and container.
    nanocores: HashMap<(String, String), u64>,
}

impl Measured {
    pub(crate) fn nanocores(&self, pod: &str, container: &str) -> u64 {
        self.nanocores.get(&(pod.to_owned(), container.to_owned())).copied().unwrap_or(0)
    }
}

impl Usage {
    /// Returns the present usage as cumulative counters.
    pub(crate) async fn sample(&self, home_id: &str, registry: &Registry) -> io::Result<Sample> {
        let hierarchy = match self.hierarchy.get() {
            Some(known) => known.clone(),
            None => {
                let found = Privileges::of_this_process()?.hierarchy()?;
                self.hierarchy.get_or_init(|| found).clone()
            }
        };
        let running = running(registry);
        let home = home_id.to_owned();
        tokio::task::spawn_blocking(move || take(&hierarchy, &home, running)).await.map_err(io::Error::other)
    }

    /// Returns the present usage with rates. Concurrent requests get the same answer.
    pub(crate) async fn measure(&self, home_id: &str, registry: &Registry) -> io::Result<Arc<Measured>> {
        let mut last = self.last.lock().await;
        let mut earlier = None;
        if let Some((sample, measured)) = &*last
            && let Some(age) = sample.taken.map(|taken| taken.elapsed())
        {
            if age < SHORTEST_WINDOW {
                return Ok(measured.clone());
            }
            earlier = (age <= LONGEST_WINDOW).then(|| sample.clone());
        }
        let earlier = match earlier {
            Some(sample) => sample,
            None => {
                let sample = self.sample(home_id, registry).await?;
                tokio::time::sleep(SHORTEST_WINDOW).await;
                sample
            }
        };
        let now = self.sample(home_id, registry).await?;
        let measured = Arc::new(compare(&earlier, now.clone()));
        *last = Some((now, measured.clone()));
        Ok(measured)
    }
}

/// Returns the pods with a running container, from known states.
fn running(registry: &Registry) -> Vec<PodSample> {
    let pods = registry.all().into_iter().filter_map(|(uid, entry)| {
        let Seen::Pod(pod) = entry.seen.borrow().clone() else { return None };
        let state = entry.state.borrow();
        let containers = state.as_ref()?.containers.iter().filter_map(|(name, container)| {
            let ContainerStatus::Running { started_at, .. } = container.status else { return None };
            Some(ContainerSample { name: name.clone(), started_at, stats: Stats::default() })
        });
        let containers: Vec<_> = containers.collect();
        (!containers.is_empty()).then_some(PodSample { pod, uid, containers })
    });
    pods.collect()
}

fn take(hierarchy: &Hierarchy, home_id: &str, mut pods: Vec<PodSample>) -> Sample {
    for pod in &mut pods {
        let names = cgroup_names::pod(home_id, &pod.uid);
        pod.containers.retain_mut(|container| {
            let name = cgroup_names::container(&names, &container.name);
            match Cgroup::named(hierarchy, &name).stats() {
                Ok(stats) => container.stats = stats,
                // It has ended since.
                Err(_) => return false,
            }
            true
        });
    }
    pods.retain(|pod| !pod.containers.is_empty());
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = machine(&read("/proc/stat"), &read("/proc/meminfo"));
    Sample { taken: Some(Instant::now()), time: Timestamp::now(), machine, pods }
}

fn machine(stat: &str, meminfo: &str) -> Machine {
    // user, nice, system, idle, iowait, irq, softirq, steal. Guest time is included in the first
    // two.
    let ticks: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .into_iter()
        .flat_map(|line| line.split_ascii_whitespace().map(|word| word.parse().unwrap_or(0)))
        .collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|index| ticks.get(*index)).sum();
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
    };
    let (total, available) = (bytes("MemTotal"), bytes("MemAvailable"));
    Machine {
        cpu_nanoseconds: busy * NANOSECONDS_PER_TICK,
        memory_available_bytes: available,
        memory_used_bytes: total.saturating_sub(available),
    }
}

fn compare(earlier: &Sample, now: Sample) -> Measured {
    let window = match (earlier.taken, now.taken) {
        (Some(earlier), Some(now)) => now.saturating_duration_since(earlier),
        _ => Duration::ZERO,
    };
    let mut before = HashMap::new();
    for pod in &earlier.pods {
        for container in &pod.containers {
            let key = (pod.uid.as_str(), container.name.as_str());
            before.insert(key, (container.started_at, container.stats.cpu_nanoseconds));
        }
    }
    let mut nanocores = HashMap::new();
    for pod in &now.pods {
        for container in &pod.containers {
            let cpu = container.stats.cpu_nanoseconds;
            let rate = match before.get(&(pod.uid.as_str(), container.name.as_str())) {
                Some((started_at, then)) if *started_at == container.started_at => {
                    rate(cpu.saturating_sub(*then), window)
                }
                // Younger than the window: use its whole life.
                _ => rate(cpu, now.time.duration_since(container.started_at).unsigned_abs()),
            };
            nanocores.insert((pod.uid.clone(), container.name.clone()), rate);
        }
    }
    let used = now.machine.cpu_nanoseconds.saturating_sub(earlier.machine.cpu_nanoseconds);
    Measured { machine_nanocores: rate(used, window), sample: now, window, nanocores }
}

fn rate(nanoseconds: u64, time: Duration) -> u64 {
    let rate = u128::from(nanoseconds) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(after: Duration, cpu_nanoseconds: u64, started_at: &str) -> Sample {
        let start = Instant::now();
        let container = ContainerSample {
            name: "main".to_owned(),
            started_at: started_at.parse().unwrap(),
            stats: Stats { cpu_nanoseconds, ..Stats::default() },
        };
        Sample {
            taken: Some(start + after),
            time: "2026-11-15T12:00:10Z".parse().unwrap(),
            machine: Machine { cpu_nanoseconds, ..Machine::default() },
            pods: vec![PodSample { pod: Arc::default(), uid: "a".to_owned(), containers: vec![container] }],
        }
    }

    #[test]
    fn use_is_a_rate_over_the_window_or_since_the_start() {
        let earlier = sample(Duration::ZERO, 1_000_000_000, "2026-11-15T11:00:00Z");
        let later = sample(Duration::from_secs(2), 2_000_000_000, "2026-11-15T11:00:00Z");
        let measured = compare(&earlier, later);
        // The two samples' clocks are read a moment apart.
        let (all, one) = (measured.machine_nanocores, measured.nanocores("a", "main"));
        assert!((499_000_000..=500_000_000).contains(&all) && all == one, "{all} {one}");
        assert_eq!(measured.nanocores("a", "other"), 0);
        // Restarted five seconds ago.
        let restarted = sample(Duration::from_secs(20), 1_000_000_000, "2026-11-15T12:00:05Z");
        assert_eq!(compare(&earlier, restarted).nanocores("a", "main"), 200_000_000);
    }

    #[test]
    fn the_machine_is_read_from_proc() {
        let stat = "cpu  10 1 5 1000 50 2 3 0 7 0\ncpu0 1 2 3\n";
        let meminfo = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\n";
        let found = machine(stat, meminfo);
        assert_eq!(found.cpu_nanoseconds, 21 * NANOSECONDS_PER_TICK);
        assert_eq!((found.memory_available_bytes, found.memory_used_bytes), (400 << 10, 600 << 10));
        assert_eq!(machine("nonsense", "").cpu_nanoseconds, 0);
    }
}
