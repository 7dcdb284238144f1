//! Checks `hostPath` volumes: a pod may mount only the host directories that the node was told to
//! allow.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::all_containers;

/// A host directory that pods may mount: `DIR` for reading, `DIR:rw` for writing, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// Absolute, without `.` and `..`.
    pub path: String,
    /// True if pods may write there.
    pub writable: bool,
}

/// The error of a text that is not such a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither DIR nor DIR:rw, with an absolute path")]
pub struct HostPathError(String);

impl FromStr for HostPath {
    type Err = HostPathError;

    fn from_str(text: &str) -> Result<HostPath, HostPathError> {
        let (path, writable) = match text.strip_suffix(":rw") {
            Some(path) => (path, true),
            None => (text, false),
        };
        let parts = parts(path).ok_or_else(|| HostPathError(text.to_owned()))?;
        Ok(HostPath { path: format!("/{}", parts.join("/")), writable })
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.path, if self.writable { ":rw" } else { "" })
    }
}

/// Splits an absolute path into its names; `None` for a path that is relative or has `..`.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> =
        path.strip_prefix('/')?.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.contains(&"..") && !path.contains('\0')).then_some(parts)
}

/// Returns the allowed directory that contains a path, and the path within it. The innermost
/// directory wins, so that one inside another can have its own rule.
pub fn find_host_path<'a>(allowed: &'a [HostPath], path: &str) -> Option<(&'a HostPath, String)> {
    let wanted = parts(path)?;
    let found = allowed.iter().filter_map(|directory| {
        let own = parts(&directory.path)?;
        Some((directory, wanted.strip_prefix(own.as_slice())?.join("/")))
    });
    found.min_by_key(|(_, inside)| inside.len())
}

/// Returns the reason why a pod may not have its `hostPath` volume, if there is one.
pub(super) fn refused(pod: &Pod, volume: &Volume, allowed: &[HostPath]) -> Option<String> {
    let source = volume.host_path.as_ref()?;
    if !matches!(source.type_.as_deref().unwrap_or_default(), "" | "Directory" | "File") {
        let kind: String = source.type_.iter().flat_map(|kind| kind.chars()).take(64).collect();
        return Some(format!("hostPath.type `{kind}` is not supported by this node; Directory and File are"));
    }
    let shown: String = source.path.chars().take(256).collect();
    let Some((directory, _)) = find_host_path(allowed, &source.path) else {
        return Some(format!(
            "hostPath `{shown}` would show the pod files of the host, which this node does not allow; `warren up \
             --allow-host-path` does"
        ));
    };
    let writes = |container: &Container| {
        let mut mounts = container.volume_mounts.iter().flatten();
        mounts.any(|mount| mount.name == volume.name && mount.read_only != Some(true))
    };
    let writer =
        all_containers(pod).find(|(_, container)| writes(container)).filter(|_| !directory.writable)?;
    Some(format!(
        "hostPath `{shown}` is allowed by this node for reading only, and container \"{}\" mounts it without readOnly",
        writer.1.name
    ))
}

/// Returns why a pod may not have a view, if it may not. A view of a directory that is allowed for reading is enough: nothing is
/// written to it.
pub(super) fn refused_view(pod: &Pod, volume: &Volume, allowed: &[HostPath]) -> Option<String> {
    let path = warren_api::view::path(volume)?;
    let shown: String = path.chars().take(256).collect();
    if path.is_empty() {
        return Some(format!("a view needs the attribute `{}`", warren_api::view::PATH));
    }
    if find_host_path(allowed, path).is_none() {
        return Some(format!(
            "a view of `{shown}` would show the pod files of the host, which this node does not allow; `warren up \
             --allow-host-path` does"
        ));
    }
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
    if !class.is_empty() {
        let class: String = class.chars().take(64).collect();
        return Some(format!("runtime class `{class}` shows no views"));
    }
    let (container, mount) = all_containers(pod)
        .flat_map(|(_, container)| {
            container.volume_mounts.iter().flatten().map(move |mount| (container, mount))
        })
        .filter(|(_, mount)| mount.name == volume.name)
        .find(|(_, mount)| {
            mount.read_only == Some(true) || mount.sub_path.is_some() || mount.sub_path_expr.is_some()
        })?;
    Some(format!(
        "container \"{}\" mounts a view at `{}` with readOnly or subPath; a hostPath volume has these",
        container.name,
        mount.mount_path.chars().take(256).collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    fn allowed() -> Vec<HostPath> {
        ["/srv/data", "/srv/data/open/:rw", "/opt"].map(|text| text.parse().unwrap()).to_vec()
    }

    #[test]
    fn the_narrowest_directory_that_is_allowed_decides() {
        let found = |path: &str| match find_host_path(&allowed(), path) {
            Some((directory, inside)) => format!("{path}: {directory} + {inside:?}"),
            None => format!("{path}: not allowed"),
        };
        let paths = [
            "/srv/data",
            "/srv//data/./x/y",
            "/srv/data/open/z",
            "/srv/database",
            "/srv",
            "/opt/../etc",
            "opt",
            "/",
        ];
        expect![[r#"
            /srv/data: /srv/data + ""
            /srv//data/./x/y: /srv/data + "x/y"
            /srv/data/open/z: /srv/data/open:rw + "z"
            /srv/database: not allowed
            /srv: not allowed
            /opt/../etc: not allowed
            opt: not allowed
            /: not allowed"#]]
        .assert_eq(&paths.map(found).join("\n"));
        for text in ["srv", "", ":rw", "/a/../b", "/a:rw:rw/.."] {
            text.parse::<HostPath>().unwrap_err();
        }
    }

    #[test]
    fn a_pod_gets_no_more_than_is_allowed() {
        let told = |path: &str, kind: &str, read_only: bool| {
            let pod = json!({"spec": {
                "containers": [{"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": read_only}]}],
                "volumes": [{"name": "v", "hostPath": {"path": path, "type": kind}}],
            }});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
            refused(&pod, volume, &allowed()).unwrap_or_else(|| "fine".to_owned())
        };
        let shown = [
            told("/srv/data/x", "", true),
            told("/srv/data/x", "Directory", false),
            told("/srv/data/open", "", false),
            told("/etc", "", true),
            told("/opt", "Socket", true),
        ];
        expect![[r#"
            fine
            hostPath `/srv/data/x` is allowed by this node for reading only, and container "main" mounts it without readOnly
            fine
            hostPath `/etc` would show the pod files of the host, which this node does not allow; `warren up --allow-host-path` does
            hostPath.type `Socket` is not supported by this node; Directory and File are"#]].assert_eq(&shown.join("\n"));
    }

    #[test]
    fn a_view_shows_only_what_is_allowed() {
        let told = |path: &str, class: &str, mount: serde_json::Value| {
            let mut mounts = json!({"name": "v", "mountPath": "/v"});
            mounts.as_object_mut().unwrap().extend(mount.as_object().unwrap().clone());
            let pod = json!({"spec": {
                "runtimeClassName": class,
                "containers": [{"name": "main", "volumeMounts": [mounts]}],
            }});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let volume = warren_api::view::volume("v", path);
            refused_view(&pod, &volume, &allowed()).unwrap_or_else(|| "fine".to_owned())
        };
        let shown = [
            told("/srv/data/x", "", json!({})),
            told("/srv", "", json!({})),
            told("/srv/data/../../etc", "", json!({})),
            told("", "", json!({})),
            told("/opt", "gvisor", json!({})),
            told("/opt", "", json!({"readOnly": true})),
            told("/opt", "", json!({"subPath": "x"})),
        ];
        expect![[r#"
            fine
            a view of `/srv` would show the pod files of the host, which this node does not allow; `warren up --allow-host-path` does
            a view of `/srv/data/../../etc` would show the pod files of the host, which this node does not allow; `warren up --allow-host-path` does
            a view needs the attribute `path`
            runtime class `gvisor` shows no views
            container "main" mounts a view at `/v` with readOnly or subPath; a hostPath volume has these
            container "main" mounts a view at `/v` with readOnly or subPath; a hostPath volume has these"#]]
        .assert_eq(&shown.join("\n"));
    }
}
