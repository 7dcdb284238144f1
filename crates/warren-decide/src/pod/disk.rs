//! What a pod may write to the node's disk. One that writes more is evicted, in kubelet's order and words.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Limits, Quantity, Role, all_containers};

/// What a pod has on the node's disk, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// By container: what it wrote over its image, and its logs.
    pub containers: BTreeMap<String, u64>,
    /// By volume: those that go with the pod.
    pub volumes: BTreeMap<String, u64>,
    /// Everything else: files that were deleted and are still open, and what the node itself keeps for the pod.
    pub others: u64,
}

impl DiskUsage {
    /// All of it.
    pub fn total(&self) -> u64 {
        let all = self.containers.values().chain(self.volumes.values());
        all.fold(self.others, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// A pod is taken from the node against its will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction<'a> {
    /// Why, for people: the pod's `status.message`.
    pub message: &'a str,
    /// Whether what it had written is gone. Until then a full disk might not take its status.
    pub disk_is_free: bool,
}

/// How a disk is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// What there is.
    pub total: u64,
    /// What is left for everybody.
    pub available: u64,
}

impl DiskSpace {
    /// What pods must leave to the machine: a twentieth, and on large disks one gibibyte. Below that, who uses most has to
    /// go. Kubelet keeps a tenth, but its machine has no other use; ours is somebody's.
    pub fn reserve(self) -> u64 {
        (self.total / 20).min(1 << 30)
    }
}

/// One limit of a pod.
struct Bound {
    used: u64,
    limit: u64,
    message: String,
}

/// The limits of a pod, in the order in which kubelet looks at them.
fn bounds(pod: &Pod, usage: &DiskUsage) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        // What is in memory has no place on the disk, and a size of its own.
        let on_disk = volume.empty_dir.as_ref().filter(|empty| empty.medium.as_deref() != Some("Memory"));
        let Some(text) = on_disk.and_then(|empty| empty.size_limit.as_ref()) else { continue };
        let used = usage.volumes.get(&volume.name).copied().unwrap_or(0);
        if let Some(limit) = bytes(text).filter(|limit| *limit > 0) {
            let message =
                format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, text.0);
            bounds.push(Bound { used, limit, message });
        }
    }
    let limits: Vec<(Role, &Container, u64)> = all_containers(pod)
        .filter_map(|(role, container)| Some((role, container, Limits::of(container).ok()?.disk_bytes)))
        .collect();
    // Containers that run beside each other add up; those that run before them have the same room.
    let (before, together): (Vec<_>, Vec<_>) = limits.iter().partition(|(role, _, _)| *role == Role::Init);
    let sum = together.iter().fold(0, |sum: u64, (_, _, bytes)| sum.saturating_add(*bytes));
    let limit = before.iter().map(|(_, _, bytes)| *bytes).fold(sum, u64::max);
    let message =
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {}. ", shown(limit));
    bounds.push(Bound { used: usage.total(), limit, message });
    for (_, container, limit) in limits {
        let used = usage.containers.get(&container.name).copied().unwrap_or(0);
        let given = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let given = given.and_then(|limits| limits.get("ephemeral-storage"));
        let text = given.map_or_else(|| shown(limit), |text| text.0.clone());
        let message =
            format!("Container {} exceeded its local ephemeral storage limit \"{text}\". ", container.name);
        bounds.push(Bound { used, limit, message });
    }
    bounds
}

/// Why a pod with this much on disk has to go, if it has to.
pub fn disk_eviction(pod: &Pod, usage: &DiskUsage) -> Option<String> {
    bounds(pod, usage).into_iter().find(|bound| bound.used > bound.limit).map(|bound| bound.message)
}

/// How many bytes a pod may still write before it can be over one of its limits.
pub fn disk_room(pod: &Pod, usage: &DiskUsage) -> u64 {
    let room = bounds(pod, usage).into_iter().map(|bound| bound.limit.saturating_sub(bound.used));
    room.min().unwrap_or(u64::MAX)
}

/// Which pod has to go when the disk is nearly full, and why: the one that uses most. Evicting one that has next to nothing
/// would help nobody.
pub fn low_disk_eviction<'a>(
    space: DiskSpace,
    pods: impl IntoIterator<Item = (&'a Pod, &'a DiskUsage)>,
) -> Option<(&'a Pod, String)> {
    if space.available >= space.reserve() {
        return None;
    }
    let most = pods.into_iter().max_by_key(|(_, usage)| usage.total());
    let (pod, usage) = most.filter(|(_, usage)| usage.total() >= space.reserve() / 10)?;
    let mut message = format!(
        "The node was low on resource: ephemeral-storage. Threshold quantity: {}, available: {}. ",
        shown(space.reserve()),
        shown(space.available >> 10 << 10),
    );
    for (_, container) in all_containers(pod) {
        let used = usage.containers.get(&container.name).copied().unwrap_or(0);
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let request = requests.and_then(|requests| requests.get("ephemeral-storage"));
        if used > request.and_then(bytes).unwrap_or(0) {
            message.push_str(&format!(
                "Container {} was using {}, request is {}, has larger consumption of ephemeral-storage. ",
                container.name,
                shown(used),
                request.map_or("0", |text| &text.0),
            ));
        }
    }
    Some((pod, message))
}

fn bytes(text: &Text) -> Option<u64> {
    u64::try_from(text.0.parse::<Quantity>().ok()?.units()).ok()
}

/// A number of bytes as Kubernetes writes it: in the largest unit of which it is a whole number.
fn shown(bytes: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut amount = bytes;
    let mut unit = 0;
    while amount > 0 && amount.is_multiple_of(1024) && unit + 1 < units.len() {
        amount /= 1024;
        unit += 1;
    }
    format!("{amount}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "box"}, "spec": spec})).unwrap()
    }

    fn limited(name: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
    }

    fn usage(containers: &[(&str, u64)], volumes: &[(&str, u64)], others: u64) -> DiskUsage {
        let named =
            |list: &[(&str, u64)]| list.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        DiskUsage { containers: named(containers), volumes: named(volumes), others }
    }

    #[test]
    fn each_limit_is_told_in_kubelets_words() {
        let volumes =
            json!([{"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}}, {"name": "free", "emptyDir": {}}]);
        let two = pod(json!({"containers": [limited("a", "10Mi"), limited("b", "20M")], "volumes": volumes}));
        let plain = pod(json!({"containers": [{"name": "a"}], "initContainers": [limited("first", "20Gi")]}));
        let cases = [
            (&two, usage(&[("a", 10 * MIB), ("b", 0)], &[("tmp", MIB)], 0)),
            (&two, usage(&[("a", 0)], &[("tmp", MIB + 1)], 0)),
            (&two, usage(&[("a", 10 * MIB + 1)], &[], 0)),
            (&two, usage(&[("b", 20_000_001)], &[], 0)),
            (&two, usage(&[("a", 5 * MIB), ("b", 5 * MIB)], &[("free", 20 * MIB)], 0)),
            (&two, usage(&[], &[], 40 * MIB)),
            (&plain, usage(&[("a", (10 << 30) + 1)], &[], 0)),
            (&plain, usage(&[("first", 20 << 30)], &[], 0)),
            (&plain, usage(&[("first", (20 << 30) + 1)], &[], 0)),
        ];
        let shown: Vec<String> = cases
            .iter()
            .map(|(pod, usage)| disk_eviction(pod, usage).unwrap_or_else(|| "stays".to_owned()))
            .collect();
        expect![[r#"
            stays
            Usage of EmptyDir volume "tmp" exceeds the limit "1Mi". 
            Container a exceeded its local ephemeral storage limit "10Mi". 
            Container b exceeded its local ephemeral storage limit "20M". 
            Pod ephemeral local storage usage exceeds the total limit of containers 30485760. 
            Pod ephemeral local storage usage exceeds the total limit of containers 30485760. 
            Container a exceeded its local ephemeral storage limit "10Gi". 
            stays
            Pod ephemeral local storage usage exceeds the total limit of containers 20Gi. "#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn the_room_left_is_that_of_the_nearest_limit() {
        let volumes = json!([{"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}}]);
        let pod = pod(json!({"containers": [limited("a", "10Mi")], "volumes": volumes}));
        assert_eq!(disk_room(&pod, &usage(&[], &[], 0)), MIB);
        assert_eq!(disk_room(&pod, &usage(&[("a", 3 * MIB)], &[("tmp", MIB / 2)], 0)), MIB / 2);
        assert_eq!(disk_room(&pod, &usage(&[("a", 9 * MIB)], &[("tmp", 0)], MIB / 4)), 3 * MIB / 4);
        assert_eq!(disk_room(&pod, &usage(&[("a", 11 * MIB)], &[("tmp", 0)], 0)), 0);
    }

    #[test]
    fn on_a_disk_that_is_nearly_full_who_uses_most_has_to_go() {
        let (small, large) =
            (pod(json!({"containers": [{"name": "s"}]})), pod(json!({"containers": [limited("l", "1Gi")]})));
        let (little, much) = (usage(&[("s", 8 * MIB)], &[], 0), usage(&[("l", 80 * MIB)], &[], 0));
        let told = |available: u64, little: &DiskUsage, much: &DiskUsage| {
            let space = DiskSpace { total: 1000 * MIB, available };
            low_disk_eviction(space, [(&small, little), (&large, much)])
                .map_or("nobody".to_owned(), |(_, why)| why)
        };
        let nothing = DiskUsage::default();
        let shown = [
            told(50 * MIB, &little, &much),
            told(50 * MIB - 1, &little, &much),
            told(0, &little, &nothing),
            told(0, &nothing, &nothing),
        ];
        expect![[r#"
            nobody
            The node was low on resource: ephemeral-storage. Threshold quantity: 50Mi, available: 51199Ki. Container l was using 80Mi, request is 0, has larger consumption of ephemeral-storage. 
            The node was low on resource: ephemeral-storage. Threshold quantity: 50Mi, available: 0. Container s was using 8Mi, request is 0, has larger consumption of ephemeral-storage. 
            nobody"#]].assert_eq(&shown.join("\n"));
        assert_eq!(DiskSpace { total: 1 << 40, available: 0 }.reserve(), 1 << 30);
    }
}
