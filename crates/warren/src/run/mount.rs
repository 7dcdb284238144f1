//! `--mount`: directories of this machine that a sandbox sees at their own paths, instead of a copy.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume, VolumeMount};
use warren_api::{Sandbox, view};
use warren_client::sync;

/// A directory, and what the sandbox may do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    directory: PathBuf,
    mode: Mode,
}

/// The ways to show a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing can be written.
    ReadOnly,
    /// What is written stays with the sandbox.
    CopyOnWrite,
    /// What is written is written here.
    ReadWrite,
}

impl FromStr for Mount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (directory, mode) = match text.rsplit_once(':') {
            Some((directory, "ro")) => (directory, Mode::ReadOnly),
            Some((directory, "cow")) => (directory, Mode::CopyOnWrite),
            Some((directory, "rw")) => (directory, Mode::ReadWrite),
            _ => (text, Mode::CopyOnWrite),
        };
        match directory {
            "" => Err("name a directory, as DIR, DIR:ro, DIR:cow or DIR:rw".to_owned()),
            directory => Ok(Self { directory: directory.into(), mode }),
        }
    }
}

/// Directories that are there, outer ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    /// Finds the directories on this machine.
    pub fn find(wanted: &[Mount], local: bool) -> anyhow::Result<Self> {
        anyhow::ensure!(
            wanted.is_empty() || local,
            "`--mount` shows directories of this machine, which a cluster does not have"
        );
        let mut found = Vec::new();
        for Mount { directory, mode } in wanted {
            let shown = directory.display();
            let path = directory.canonicalize().with_context(|| format!("`--mount`: open `{shown}`"))?;
            anyhow::ensure!(path.is_dir(), "`--mount`: `{shown}` is not a directory");
            let name =
                path.to_str().with_context(|| format!("`--mount`: the path `{shown}` is not UTF-8"))?;
            anyhow::ensure!(
                sync::check_directory(name).is_ok() && !name.contains([',', ':']),
                "`--mount`: `{name}` cannot be shown: name a directory below those of the system, without `:` and `,` in its path"
            );
            found.push(Mount { directory: path, mode: *mode });
        }
        // Inner ones lie over outer ones.
        found.sort_by(|left, right| left.directory.cmp(&right.directory));
        let twice = found.windows(2).find(|pair| pair[0].directory == pair[1].directory);
        if let Some([Mount { directory, .. }, _]) = twice {
            anyhow::bail!("`--mount`: `{}` is named twice", directory.display());
        }
        Ok(Self(found))
    }

    /// Returns true if a directory is in one of them.
    pub fn contains(&self, directory: &Path) -> bool {
        self.0.iter().any(|mount| directory.starts_with(&mount.directory))
    }

    /// Returns true if the sandbox keeps changes of a directory to itself.
    pub fn keeps_changes(&self) -> bool {
        self.0.iter().any(|mount| mount.mode == Mode::CopyOnWrite)
    }

    /// Adds the directories to a sandbox, at the same paths.
    pub fn mount(&self, sandbox: &mut Sandbox) {
        let pod = Arc::make_mut(&mut sandbox.spec.blueprint.pod_template.spec);
        for (number, Mount { directory, mode }) in self.0.iter().enumerate() {
            let (name, path) = (format!("mount-{number}"), directory.to_string_lossy().into_owned());
            let volume = match mode {
                Mode::CopyOnWrite => view::volume(&name, &path),
                Mode::ReadOnly | Mode::ReadWrite => Volume {
                    name: name.clone(),
                    host_path: Some(HostPathVolumeSource {
                        path: path.clone(),
                        type_: Some("Directory".to_owned()),
                    }),
                    ..Volume::default()
                },
            };
            pod.volumes.get_or_insert_default().push(volume);
            if let Some(container) = pod.containers.first_mut() {
                let read_only = (*mode == Mode::ReadOnly).then_some(true);
                let mount = VolumeMount { name, mount_path: path, read_only, ..VolumeMount::default() };
                container.volume_mounts.get_or_insert_default().push(mount);
            }
        }
    }

    /// Returns the directories as `--allow-host-path` takes them.
    pub fn to_allow(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|Mount { directory, mode }| {
            let writable = if *mode == Mode::ReadWrite { ":rw" } else { "" };
            format!("{}{writable}", directory.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_behind_the_last_colon() {
        let parse = |text: &str| text.parse::<Mount>().map(|mount| (mount.directory, mount.mode));
        assert_eq!(parse("."), Ok((".".into(), Mode::CopyOnWrite)));
        assert_eq!(parse("/a:b:ro"), Ok(("/a:b".into(), Mode::ReadOnly)));
        assert_eq!(parse("/a:rw"), Ok(("/a".into(), Mode::ReadWrite)));
        assert_eq!(parse("/a:b"), Ok(("/a:b".into(), Mode::CopyOnWrite)));
        parse(":ro").unwrap_err();
    }

    #[test]
    fn directories_of_the_system_and_missing_ones_are_refused() {
        let find = |words: &[&str]| {
            let mounts: Vec<Mount> = words.iter().map(|word| word.parse().unwrap()).collect();
            Mounts::find(&mounts, true).map_err(|error| error.to_string())
        };
        for system in ["/", "/etc", "/proc/self"] {
            assert!(find(&[system]).unwrap_err().contains("cannot be shown"), "{system}");
        }
        find(&["/nonexistent/directory"]).unwrap_err();
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let (outer, inner) = (directory.path().to_str().unwrap(), inner.to_str().unwrap());
        assert!(find(&[outer, &format!("{outer}:ro")]).unwrap_err().contains("twice"));
        let both = find(&[&format!("{inner}:rw"), outer]).unwrap();
        assert_eq!(both.to_allow().collect::<Vec<_>>(), [outer.to_owned(), format!("{inner}:rw")]);
        assert!(both.contains(Path::new(inner)) && !both.contains(Path::new("/")));
        Mounts::find(&both.0, false).unwrap_err();
    }
}
