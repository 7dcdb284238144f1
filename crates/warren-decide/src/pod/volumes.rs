//! Decides what a pod's volumes are made of, and computes the content of volumes that show other
//! objects as files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, Volume, VolumeProjection,
};

use super::fields::{Addresses, file_value, resource_value};
use super::sources::{SourceError, Sources, token_wish};
use super::{Limits, Quantity, all_containers};

/// A volume's backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// A directory that lives as long as the pod.
    Directory,
    /// Memory that lives as long as the pod's sandbox.
    Memory {
        /// Its size limit.
        bytes: u64,
    },
    /// Files with the content of [`volume_files`], updated when that changes.
    Files {
        /// True if the files must never be on a disk.
        in_memory: bool,
    },
    /// A persistent volume claim; it outlives the pod.
    Claim {
        /// The claim's name.
        name: String,
        /// True if the pod may not write to it.
        read_only: bool,
    },
    /// A directory of the host; it outlives the pod.
    Host {
        /// The path as written in the pod.
        path: String,
    },
    /// A directory of the host under a layer that takes what a container writes. Each run of a container has a layer of
    /// its own.
    View {
        /// As the pod names it.
        path: String,
    },
}

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Its path within the volume: relative, without `..`.
    pub path: String,
    /// Its content.
    pub data: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Its owner, if not root.
    pub owner: Option<u32>,
}

/// The default permissions: readable for all, writable for the owner.
const DEFAULT_MODE: i32 = 0o644;
/// The permission bits that `fsGroup` adds to read-only files: group read.
const GROUP_READS: u32 = 0o440;

/// Returns the backing of a volume; `None` for kinds that this node does not have.
pub fn volume_kind(pod: &Pod, volume: &Volume) -> Option<VolumeKind> {
    if let Some(empty) = &volume.empty_dir {
        if empty.medium.as_deref() != Some("Memory") {
            return Some(VolumeKind::Directory);
        }
        let limit = empty.size_limit.as_ref().and_then(|limit| limit.0.parse::<Quantity>().ok());
        let limit = limit.and_then(|limit| u64::try_from(limit.units()).ok()).filter(|limit| *limit > 0);
        // Files in it count as the containers' memory: a size above the sum of their limits has no
        // use.
        let most = all_containers(pod)
            .filter_map(|(_, container)| Limits::of(container).ok())
            .fold(0, |sum: u64, limits| sum.saturating_add(limits.memory_bytes));
        return Some(VolumeKind::Memory { bytes: limit.unwrap_or(most).min(most) });
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        let read_only = claim.read_only == Some(true);
        return Some(VolumeKind::Claim { name: claim.claim_name.clone(), read_only });
    }
    if let Some(host) = &volume.host_path {
        return Some(VolumeKind::Host { path: host.path.clone() });
    }
    if let Some(path) = warren_api::view::path(volume) {
        return Some(VolumeKind::View { path: path.to_owned() });
    }
    if volume.secret.is_some() || volume.projected.is_some() {
        return Some(VolumeKind::Files { in_memory: true });
    }
    let plain = volume.config_map.is_some() || volume.downward_api.is_some();
    plain.then_some(VolumeKind::Files { in_memory: false })
}

/// Returns the volumes of a pod whose sources are missing, each with the reason.
pub(super) fn missing(pod: &Pod, addresses: &Addresses<'_>, sources: &Sources) -> Vec<(String, SourceError)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| {
            let problem = match volume_kind(pod, volume)? {
                VolumeKind::Files { .. } => volume_files(pod, volume, addresses, sources).err()?,
                VolumeKind::Claim { name, .. } => sources.bound_volume(&name).err()?,
                VolumeKind::Directory
                | VolumeKind::Memory { .. }
                | VolumeKind::Host { .. }
                | VolumeKind::View { .. } => return None,
            };
            Some((volume.name.clone(), problem))
        })
        .collect()
}

/// Returns the files of a volume that shows other objects.
pub fn volume_files(
    pod: &Pod,
    volume: &Volume,
    addresses: &Addresses<'_>,
    sources: &Sources,
) -> Result<Vec<VolumeFile>, SourceError> {
    let mut files = Files { pod, addresses, mode: DEFAULT_MODE, found: BTreeMap::new() };
    if let Some(source) = &volume.config_map {
        files.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let optional = source.optional == Some(true);
        if let Some(found) = sources.config_map(&source.name, optional)? {
            files.config_map(found, source.items.as_deref(), optional)?;
        }
    } else if let Some(source) = &volume.secret {
        files.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let optional = source.optional == Some(true);
        let name = source.secret_name.as_deref().unwrap_or_default();
        if let Some(found) = sources.secret(name, optional)? {
            files.secret(found, source.items.as_deref(), optional)?;
        }
    } else if let Some(source) = &volume.downward_api {
        files.mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        files.fields(source.items.as_deref().unwrap_or_default())?;
    } else if let Some(projected) = &volume.projected {
        files.mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        for source in projected.sources.as_deref().unwrap_or_default() {
            files.projection(source, sources)?;
        }
    }
    Ok(files.found.into_values().collect())
}

/// Files being collected; a later one replaces an earlier one of the same name.
struct Files<'a> {
    pod: &'a Pod,
    addresses: &'a Addresses<'a>,
    mode: i32,
    found: BTreeMap<String, VolumeFile>,
}

impl Files<'_> {
    fn add(
        &mut self,
        path: &str,
        data: Vec<u8>,
        mode: Option<i32>,
        owner: Option<u32>,
    ) -> Result<(), SourceError> {
        let inside = !path.is_empty()
            && !path.starts_with('/')
            && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
            // Names of our own begin like this.
            && !path.starts_with("..")
            && !path.contains('\0');
        if !inside {
            let shown: String = path.chars().take(256).collect();
            return Err(SourceError::Missing(format!("the path \"{shown}\" does not stay in the volume")));
        }
        let mut mode = u32::try_from(mode.unwrap_or(self.mode)).unwrap_or(0) & 0o777;
        if fs_group(self.pod).is_some() {
            mode |= GROUP_READS;
        }
        self.found.insert(path.to_owned(), VolumeFile { path: path.to_owned(), data, mode, owner });
        Ok(())
    }

    /// Returns all entries under their own names, or only the listed ones.
    fn entries(
        &mut self,
        entries: BTreeMap<&String, Vec<u8>>,
        items: Option<&[KeyToPath]>,
        optional: bool,
        nothing_there: &str,
    ) -> Result<(), SourceError> {
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return entries.into_iter().try_for_each(|(key, data)| self.add(key, data, None, None));
        };
        for item in items {
            match entries.get(&item.key) {
                Some(data) => self.add(&item.path, data.clone(), item.mode, None)?,
                None if optional => {}
                None => return Err(SourceError::Missing(format!("{nothing_there}: {}", item.key))),
            }
        }
        Ok(())
    }

    fn config_map(
        &mut self,
        found: &ConfigMap,
        items: Option<&[KeyToPath]>,
        optional: bool,
    ) -> Result<(), SourceError> {
        let texts = found.data.iter().flatten().map(|(key, text)| (key, text.clone().into_bytes()));
        let bytes = found.binary_data.iter().flatten().map(|(key, bytes)| (key, bytes.0.clone()));
        let nothing_there = "configmap references non-existent config key";
        self.entries(texts.chain(bytes).collect(), items, optional, nothing_there)
    }

    fn secret(
        &mut self,
        found: &Secret,
        items: Option<&[KeyToPath]>,
        optional: bool,
    ) -> Result<(), SourceError> {
        let bytes = found.data.iter().flatten().map(|(key, bytes)| (key, bytes.0.clone()));
        self.entries(bytes.collect(), items, optional, "references non-existent secret key")
    }

    fn fields(&mut self, items: &[DownwardAPIVolumeFile]) -> Result<(), SourceError> {
        for item in items {
            let value = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => file_value(self.pod, &field.field_path, self.addresses),
                (None, Some(field)) => resource_value(self.pod, None, field),
                (None, None) => None,
            };
            let nothing = || SourceError::Missing(format!("the pod has no field for \"{}\"", item.path));
            self.add(&item.path, value.ok_or_else(nothing)?.into_bytes(), item.mode, None)?;
        }
        Ok(())
    }

    fn projection(&mut self, source: &VolumeProjection, sources: &Sources) -> Result<(), SourceError> {
        if let Some(source) = &source.config_map {
            let optional = source.optional == Some(true);
            if let Some(found) = sources.config_map(&source.name, optional)? {
                self.config_map(found, source.items.as_deref(), optional)?;
            }
        }
        if let Some(source) = &source.secret {
            let optional = source.optional == Some(true);
            if let Some(found) = sources.secret(&source.name, optional)? {
                self.secret(found, source.items.as_deref(), optional)?;
            }
        }
        if let Some(source) = &source.downward_api {
            self.fields(source.items.as_deref().unwrap_or_default())?;
        }
        if let Some(token) = &source.service_account_token {
            let wish = token_wish(token.audience.as_deref(), token.expiration_seconds);
            let found = sources.tokens.get(&wish).ok_or(SourceError::NotYet)?;
            let found = found.clone().map_err(SourceError::Missing)?;
            // A token belongs to the user that the pod runs as, where that is known.
            let owner = common_user(self.pod);
            let closed = owner.is_some() || fs_group(self.pod).is_some();
            self.add(&token.path, found.into_bytes(), closed.then_some(0o600), owner)?;
        }
        Ok(())
    }
}

fn fs_group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

/// Returns the user that all containers of a pod run as, if the pod sets one.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.as_ref()?.security_context.as_ref().and_then(|security| security.run_as_user);
    let mut users = all_containers(pod).map(|(_, container)| {
        container.security_context.as_ref().and_then(|security| security.run_as_user).or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::sync::Arc;

    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::*;

    fn sources() -> Sources {
        let config = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "/w=="}});
        let secret = json!({"data": {"key": "c2VjcmV0"}});
        let wish = token_wish(None, None);
        Sources {
            config_maps: [
                ("settings".to_owned(), Some(Arc::new(serde_json::from_value(config).unwrap()))),
                ("gone".to_owned(), None),
            ]
            .into(),
            secrets: [("keys".to_owned(), Some(Arc::new(serde_json::from_value(secret).unwrap())))].into(),
            claims: BTreeMap::new(),
            tokens: [(wish, Ok("token".to_owned()))].into(),
        }
    }

    fn check(security: Value, volume: Value, expected: Expect) {
        let mut whole = json!({"name": "v"});
        whole.as_object_mut().unwrap().extend(volume.as_object().unwrap().clone());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "box", "namespace": "team", "labels": {"app": "x"}},
            "spec": {"securityContext": security, "containers": [{"name": "main"}], "volumes": [whole]},
        }))
        .unwrap();
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        let addresses = Addresses { node_name: "here", host_ip: "127.0.0.1", pod_ip: "100::1" };
        let shown = match volume_files(&pod, volume, &addresses, &sources()) {
            Err(problem) => format!("{problem}\n"),
            Ok(files) => files.iter().fold(String::new(), |mut shown, file| {
                let (text, owner) = (String::from_utf8_lossy(&file.data), file.owner.unwrap_or(0));
                writeln!(shown, "{} {:04o} {owner} {text}", file.path, file.mode).unwrap();
                shown
            }),
        };
        expected.assert_eq(&shown);
    }

    #[test]
    fn objects_become_files() {
        check(
            json!({}),
            json!({"configMap": {"name": "settings"}}),
            expect![[r#"
                a 0644 0 1
                b 0644 0 2
                c 0644 0 �
            "#]],
        );
        let items = json!([{"key": "a", "path": "deep/er", "mode": 256}]);
        check(
            json!({"fsGroup": 7}),
            json!({"configMap": {"name": "settings", "items": items, "defaultMode": 0}}),
            expect![[r#"
                deep/er 0440 0 1
            "#]],
        );
        check(
            json!({}),
            json!({"secret": {"secretName": "keys", "defaultMode": 256}}),
            expect![[r#"
                key 0400 0 secret
            "#]],
        );
        check(
            json!({}),
            json!({"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
            ]}}),
            expect![[r#"
                cpu 0644 0 2
                labels 0644 0 app="x"
            "#]],
        );
    }

    #[test]
    fn a_projection_is_several_sources_and_the_token_is_its_users() {
        let volume = json!({"projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "settings", "items": [{"key": "a", "path": "a"}]}},
            {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]}});
        check(
            json!({}),
            volume.clone(),
            expect![[r#"
                a 0644 0 1
                ns 0644 0 team
                token 0644 0 token
            "#]],
        );
        check(
            json!({"runAsUser": 1000}),
            volume,
            expect![[r#"
                a 0644 0 1
                ns 0644 0 team
                token 0600 1000 token
            "#]],
        );
    }

    #[test]
    fn what_is_missing_is_said_in_kubelets_words() {
        let gone = |optional: bool| json!({"configMap": {"name": "gone", "optional": optional}});
        check(json!({}), gone(false), expect!["configmap \"gone\" not found\n"]);
        check(json!({}), gone(true), expect![""]);
        let items = json!([{"key": "z", "path": "z"}]);
        check(
            json!({}),
            json!({"configMap": {"name": "settings", "items": items}}),
            expect!["configmap references non-existent config key: z\n"],
        );
        check(
            json!({}),
            json!({"secret": {"secretName": "keys", "items": items}}),
            expect!["references non-existent secret key: z\n"],
        );
        check(json!({}), json!({"secret": {"secretName": "other"}}), expect!["not looked up yet\n"]);
        let items = json!([{"key": "a", "path": "a/../../x"}]);
        check(
            json!({}),
            json!({"configMap": {"name": "settings", "items": items}}),
            expect!["the path \"a/../../x\" does not stay in the volume\n"],
        );
    }
}
