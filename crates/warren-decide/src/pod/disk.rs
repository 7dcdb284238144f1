//! Limits what a pod may write to the node's disk. A pod that writes more is evicted, in kubelet's
//! order and words.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::{Limits, Quantity, Role, all_containers};

/// Bytes of disk per inode: the default of `mkfs.ext4` (`inode_ratio` in `mke2fs.conf`). A pod's
/// limit on files is its limit on bytes divided by this, so that files of ordinary sizes use up the
/// bytes first.
const BYTES_PER_INODE: u64 = 16 << 10;
/// The smallest limit on a pod's inodes, however few bytes it may write: containers, volumes and
/// logs need some for themselves, and unpacked packages consist of thousands of small files.
const LEAST_INODES: u64 = 16 << 10;

/// An amount of disk: bytes and inodes. Files, directories and links take one inode each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes in allocated blocks.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Amount {
    /// Adds bytes and inodes separately, up to the largest number.
    #[must_use]
    pub fn saturating_add(self, other: Amount) -> Amount {
        Amount {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// Subtracts bytes and inodes separately, down to zero.
    #[must_use]
    pub fn saturating_sub(self, other: Amount) -> Amount {
        Amount {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }
}

/// The usage of the node's disk by a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// By container: files written over its image, and its logs.
    pub containers: BTreeMap<String, Amount>,
    /// By volume: those that are deleted with the pod.
    pub volumes: BTreeMap<String, Amount>,
    /// Everything else: deleted files that are still open, and the node's own files for the pod.
    pub others: Amount,
}

impl DiskUsage {
    /// Returns the sum of all parts.
    pub fn total(&self) -> Amount {
        let all = self.containers.values().chain(self.volumes.values());
        all.fold(self.others, |sum, amount| sum.saturating_add(*amount))
    }
}

/// The eviction of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction<'a> {
    /// The reason, published as the pod's `status.message`.
    pub message: &'a str,
    /// True if the pod's files are gone. Before that a full disk might not take its status.
    pub disk_is_free: bool,
}

/// The size and free space of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// The size of the disk. Its inodes are 0 if the file system does not count them.
    pub total: Amount,
    /// The free space.
    pub available: Amount,
}

/// A resource of a disk that is nearly used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scarce {
    Bytes,
    Inodes,
}

impl Scarce {
    fn of(self, amount: Amount) -> u64 {
        match self {
            Scarce::Bytes => amount.bytes,
            Scarce::Inodes => amount.inodes,
        }
    }

    /// Returns the resource's name in kubelet's eviction messages.
    fn name(self) -> &'static str {
        match self {
            Scarce::Bytes => "ephemeral-storage",
            Scarce::Inodes => "inodes",
        }
    }
}

impl DiskSpace {
    /// Returns the amount that pods must leave to the machine: a twentieth, and on large disks one
    /// gibibyte and the inodes that belong to it. Below that, the pod that uses most has to go.
    /// Kubelet keeps a tenth of the bytes and a twentieth of the inodes, but its machine has no
    /// other use. Ours is a user's machine.
    pub fn reserve(self) -> Amount {
        Amount {
            bytes: (self.total.bytes / 20).min(1 << 30),
            inodes: (self.total.inodes / 20).min((1 << 30) / BYTES_PER_INODE),
        }
    }

    /// Returns true if less is left than the reserve, of bytes or of inodes.
    pub fn is_low(self) -> bool {
        self.scarce().is_some()
    }

    fn scarce(self) -> Option<Scarce> {
        [Scarce::Bytes, Scarce::Inodes]
            .into_iter()
            .find(|resource| resource.of(self.available) < resource.of(self.reserve()))
    }
}

/// One limit of a pod, with its usage.
struct Bound {
    resource: Scarce,
    used: u64,
    limit: u64,
    message: String,
}

/// Returns the limits of a pod in the order in which kubelet checks them, then those on inodes,
/// which kubelet does not have.
fn bounds(pod: &Pod, usage: &DiskUsage) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        // A volume in memory uses no disk and has its own size.
        let on_disk = volume.empty_dir.as_ref().filter(|empty| empty.medium.as_deref() != Some("Memory"));
        let Some(text) = on_disk.and_then(|empty| empty.size_limit.as_ref()) else { continue };
        let used = usage.volumes.get(&volume.name).copied().unwrap_or_default().bytes;
        if let Some(limit) = bytes(text).filter(|limit| *limit > 0) {
            let message =
                format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, text.0);
            bounds.push(Bound { resource: Scarce::Bytes, used, limit, message });
        }
    }
    let limits: Vec<(Role, &Container, u64)> = all_containers(pod)
        .filter_map(|(role, container)| Some((role, container, Limits::of(container).ok()?.disk_bytes)))
        .collect();
    // Containers that run at the same time add up. Init containers run before them in the same
    // space.
    let (before, together): (Vec<_>, Vec<_>) = limits.iter().partition(|(role, _, _)| *role == Role::Init);
    let sum = together.iter().fold(0, |sum: u64, (_, _, bytes)| sum.saturating_add(*bytes));
    let limit = before.iter().map(|(_, _, bytes)| *bytes).fold(sum, u64::max);
    let message =
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {}. ", shown(limit));
    let total = usage.total();
    bounds.push(Bound { resource: Scarce::Bytes, used: total.bytes, limit, message });
    for (_, container, limit) in limits {
        let used = usage.containers.get(&container.name).copied().unwrap_or_default().bytes;
        let given = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let given = given.and_then(|limits| limits.get("ephemeral-storage"));
        let text = given.map_or_else(|| shown(limit), |text| text.0.clone());
        let message =
            format!("Container {} exceeded its local ephemeral storage limit \"{text}\". ", container.name);
        bounds.push(Bound { resource: Scarce::Bytes, used, limit, message });
    }
    let inodes = (limit / BYTES_PER_INODE).max(LEAST_INODES);
    let message = format!(
        "Pod uses more inodes than the {inodes} that its ephemeral-storage limit of {} allows. ",
        shown(limit)
    );
    bounds.push(Bound { resource: Scarce::Inodes, used: total.inodes, limit: inodes, message });
    bounds
}

/// Returns the eviction message of a pod that uses more disk than it may.
pub fn disk_eviction(pod: &Pod, usage: &DiskUsage) -> Option<String> {
    bounds(pod, usage).into_iter().find(|bound| bound.used > bound.limit).map(|bound| bound.message)
}

/// Returns the amount that a pod may still write before it can be over one of its limits.
pub fn disk_room(pod: &Pod, usage: &DiskUsage) -> Amount {
    let bounds = bounds(pod, usage);
    let room = |resource| {
        let own = bounds.iter().filter(|bound| bound.resource == resource);
        own.map(|bound| bound.limit.saturating_sub(bound.used)).min().unwrap_or(u64::MAX)
    };
    Amount { bytes: room(Scarce::Bytes), inodes: room(Scarce::Inodes) }
}

/// Returns the pod to evict when the disk is nearly full, and the message: the one that uses most
/// of the scarce resource. A pod that uses next to nothing is never evicted, since that would not
/// help.
pub fn low_disk_eviction<'a>(
    space: DiskSpace,
    pods: impl IntoIterator<Item = (&'a Pod, &'a DiskUsage)>,
) -> Option<(&'a Pod, String)> {
    let scarce = space.scarce()?;
    let (reserve, available) = (scarce.of(space.reserve()), scarce.of(space.available));
    let most = pods.into_iter().max_by_key(|(_, usage)| scarce.of(usage.total()));
    let (pod, usage) = most.filter(|(_, usage)| scarce.of(usage.total()) >= reserve / 10)?;
    let (name, reserve, available) = match scarce {
        Scarce::Bytes => (scarce.name(), shown(reserve), shown(available >> 10 << 10)),
        Scarce::Inodes => (scarce.name(), reserve.to_string(), available.to_string()),
    };
    let mut message = format!(
        "The node was low on resource: {name}. Threshold quantity: {reserve}, available: {available}. "
    );
    for (_, container) in all_containers(pod) {
        let used = scarce.of(usage.containers.get(&container.name).copied().unwrap_or_default());
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let request = requests.and_then(|requests| requests.get(name));
        if used > request.and_then(bytes).unwrap_or(0) {
            let used = if scarce == Scarce::Bytes { shown(used) } else { used.to_string() };
            message.push_str(&format!(
                "Container {} was using {used}, request is {}, has larger consumption of {name}. ",
                container.name,
                request.map_or("0", |text| &text.0),
            ));
        }
    }
    Some((pod, message))
}

fn bytes(text: &Text) -> Option<u64> {
    u64::try_from(text.0.parse::<Quantity>().ok()?.units()).ok()
}

/// Formats a number of bytes as Kubernetes does: in the largest unit of which it is a whole number.
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

    fn in_bytes(bytes: u64) -> Amount {
        Amount { bytes, inodes: 0 }
    }

    fn in_inodes(inodes: u64) -> DiskUsage {
        let containers = BTreeMap::from([("a".to_owned(), Amount { bytes: 0, inodes })]);
        DiskUsage { containers, ..DiskUsage::default() }
    }

    fn limited(name: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
    }

    fn usage(containers: &[(&str, u64)], volumes: &[(&str, u64)], others: u64) -> DiskUsage {
        let named = |list: &[(&str, u64)]| {
            list.iter().map(|(name, size)| ((*name).to_owned(), in_bytes(*size))).collect()
        };
        DiskUsage { containers: named(containers), volumes: named(volumes), others: in_bytes(others) }
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
        assert_eq!(disk_room(&pod, &usage(&[], &[], 0)).bytes, MIB);
        assert_eq!(disk_room(&pod, &usage(&[("a", 3 * MIB)], &[("tmp", MIB / 2)], 0)).bytes, MIB / 2);
        assert_eq!(disk_room(&pod, &usage(&[("a", 9 * MIB)], &[("tmp", 0)], MIB / 4)).bytes, 3 * MIB / 4);
        assert_eq!(disk_room(&pod, &usage(&[("a", 11 * MIB)], &[("tmp", 0)], 0)).bytes, 0);
    }

    #[test]
    fn on_a_disk_that_is_nearly_full_who_uses_most_has_to_go() {
        let (small, large) =
            (pod(json!({"containers": [{"name": "s"}]})), pod(json!({"containers": [limited("l", "1Gi")]})));
        let (little, much) = (usage(&[("s", 8 * MIB)], &[], 0), usage(&[("l", 80 * MIB)], &[], 0));
        let told = |available: u64, little: &DiskUsage, much: &DiskUsage| {
            let space = DiskSpace { total: in_bytes(1000 * MIB), available: in_bytes(available) };
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
        let huge =
            DiskSpace { total: Amount { bytes: 1 << 40, inodes: 1 << 30 }, available: Amount::default() };
        assert_eq!(huge.reserve(), Amount { bytes: 1 << 30, inodes: 65_536 });
    }

    #[test]
    fn inodes_are_limited_in_proportion_to_the_bytes_and_named_in_the_message() {
        let default = pod(json!({"containers": [{"name": "a"}]}));
        let small = pod(json!({"containers": [limited("a", "1Mi")]}));
        let large = pod(json!({"containers": [limited("a", "1Gi"), limited("b", "1Gi")]}));
        let told =
            |pod: &Pod, inodes| disk_eviction(pod, &in_inodes(inodes)).unwrap_or_else(|| "stays".to_owned());
        let shown = [
            told(&default, 655_360),
            told(&default, 655_361),
            told(&small, 16_384),
            told(&small, 16_385),
            told(&large, 131_072),
            told(&large, 131_073),
        ];
        expect![[r#"
            stays
            Pod uses more inodes than the 655360 that its ephemeral-storage limit of 10Gi allows. 
            stays
            Pod uses more inodes than the 16384 that its ephemeral-storage limit of 1Mi allows. 
            stays
            Pod uses more inodes than the 131072 that its ephemeral-storage limit of 2Gi allows. "#]]
        .assert_eq(&shown.join("\n"));
        assert_eq!(disk_room(&small, &in_inodes(384)), Amount { bytes: MIB, inodes: 16_000 });
    }

    #[test]
    fn on_a_disk_with_few_inodes_left_the_pod_that_has_most_of_them_is_evicted() {
        let (few, many) =
            (pod(json!({"containers": [{"name": "a"}]})), pod(json!({"containers": [{"name": "a"}]})));
        let told = |inodes, available| {
            let total = Amount { bytes: 1 << 30, inodes };
            let space = DiskSpace { total, available: Amount { bytes: 1 << 30, inodes: available } };
            low_disk_eviction(space, [(&many, &in_inodes(3000)), (&few, &in_inodes(5))]).map_or(
                "nobody".to_owned(),
                |(pod, why)| {
                    assert!(std::ptr::eq(pod, &raw const many));
                    why
                },
            )
        };
        let shown = [told(4000, 200), told(4000, 199), told(0, 0)];
        expect![[r#"
            nobody
            The node was low on resource: inodes. Threshold quantity: 200, available: 199. Container a was using 3000, request is 0, has larger consumption of inodes. 
            nobody"#]]
        .assert_eq(&shown.join("\n"));
    }
}
