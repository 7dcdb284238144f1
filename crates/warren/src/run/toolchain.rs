//! Mounts tools of the user's home directory into a sandbox, read-only: compilers and interpreters
//! of `rustup`, `pyenv` and `nvm`.
//!
//! Only directories of programs are mounted, never their neighbours with credentials
//! (`~/.cargo/credentials.toml`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume, VolumeMount};
use warren_api::Sandbox;
use warren_client::home::Surroundings;

/// A way to install tools below one's home directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Toolchain {
    /// Rust: `rustup` and the programs of `cargo install`
    Cargo,
    /// Python: `pyenv`
    Pyenv,
    /// Node.js: `nvm`
    Nvm,
}

/// A directory of a toolchain.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The variable with the toolchain's path.
    variable: &'static str,
    /// Its directory below the home directory, if the variable is not set.
    default: &'static str,
    /// The part of it that is mounted.
    shown: &'static str,
    /// True if programs in the sandbox get the variable.
    told: bool,
}

impl Toolchain {
    fn places(self) -> &'static [Place] {
        match self {
            // The sandbox has a writable `CARGO_HOME` of its own.
            Toolchain::Cargo => &[
                Place { variable: "CARGO_HOME", default: ".cargo", shown: "bin", told: false },
                Place { variable: "RUSTUP_HOME", default: ".rustup", shown: "", told: true },
            ],
            Toolchain::Pyenv => &[Place { variable: "PYENV_ROOT", default: ".pyenv", shown: "", told: true }],
            Toolchain::Nvm => {
                &[Place { variable: "NVM_DIR", default: ".nvm", shown: "versions", told: false }]
            }
        }
    }
}

/// The mounted parts of the chosen toolchains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    directories: Vec<PathBuf>,
    variables: Vec<(&'static str, PathBuf)>,
    /// The directories of programs, in the order of this process's `PATH`.
    path: Vec<PathBuf>,
}

impl Shown {
    /// Finds the toolchains on this machine.
    pub fn find(chosen: &[Toolchain], local: bool) -> anyhow::Result<Self> {
        anyhow::ensure!(
            chosen.is_empty() || local,
            "`--toolchain` shows directories of this machine, which a cluster does not have"
        );
        let surroundings = Surroundings::of_this_process();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Self::choose(chosen, surroundings.home.as_deref(), &path, variable)
    }

    fn choose(
        chosen: &[Toolchain],
        home: Option<&Path>,
        path: &[PathBuf],
        variable: impl Fn(&str) -> Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let mut shown = Self::default();
        for place in chosen.iter().flat_map(|toolchain| toolchain.places()) {
            let said = variable(place.variable).filter(|path| path.is_absolute());
            let Some(root) = said.or_else(|| Some(home?.join(place.default))) else { continue };
            let directory = match place.shown {
                "" => root.clone(),
                shown => root.join(shown),
            };
            anyhow::ensure!(
                directory.is_dir(),
                "`--toolchain`: there is no directory `{}`; `{}` says where it is",
                directory.display(),
                place.variable
            );
            shown.path.extend(path.iter().filter(|entry| entry.starts_with(&directory)).cloned());
            if place.told {
                shown.variables.push((place.variable, root));
            }
            shown.directories.push(directory);
        }
        Ok(shown)
    }

    /// Adds the directories to a sandbox, at the same paths.
    pub fn mount(&self, sandbox: &mut Sandbox) {
        let pod = Arc::make_mut(&mut sandbox.spec.blueprint.pod_template.spec);
        for (number, directory) in self.directories.iter().enumerate() {
            let (name, path) = (format!("toolchain-{number}"), directory.to_string_lossy().into_owned());
            let host_path = HostPathVolumeSource { path: path.clone(), type_: Some("Directory".to_owned()) };
            let volume = Volume { name: name.clone(), host_path: Some(host_path), ..Volume::default() };
            pod.volumes.get_or_insert_default().push(volume);
            if let Some(container) = pod.containers.first_mut() {
                let mount =
                    VolumeMount { name, mount_path: path, read_only: Some(true), ..VolumeMount::default() };
                container.volume_mounts.get_or_insert_default().push(mount);
            }
        }
    }

    /// Returns a script with which programs find the toolchains.
    pub fn script(&self) -> String {
        let quoted = |path: &Path| path.to_string_lossy().replace('\'', r"'\''");
        let variables =
            self.variables.iter().map(|(name, path)| format!("export {name}='{}'\n", quoted(path)));
        let mut script: String = variables.collect();
        if !self.path.is_empty() {
            let path: String = self.path.iter().map(|path| format!("'{}':", quoted(path))).collect();
            script += &format!("export PATH={path}\"$PATH\"\n");
        }
        script
    }

    /// Returns the directories as `--allow-host-path` takes them.
    pub fn to_allow(&self) -> impl Iterator<Item = String> {
        self.directories.iter().map(|path| path.to_string_lossy().into_owned())
    }
}

/// Says how the home is told to show directories, after a sandbox did not become Ready.
pub fn hint(directories: &[String]) {
    if directories.is_empty() {
        return;
    }
    eprintln!(
        "hint: sandboxes see only those directories of this machine that the home was started with: \
         `warren down --keep` and `warren up --detach --allow-host-path {}`",
        directories.join(",")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_shown_and_found_and_credentials_are_not() {
        let home = tempfile::tempdir().expect("make a directory");
        for directory in [".cargo/bin", ".rustup", ".nvm/versions/node/v22/bin"] {
            std::fs::create_dir_all(home.path().join(directory)).expect("make a directory");
        }
        let at = |path: &str| home.path().join(path);
        let path = [at(".cargo/bin"), PathBuf::from("/usr/bin"), at(".nvm/versions/node/v22/bin")];
        let both = [Toolchain::Cargo, Toolchain::Nvm];
        let shown = Shown::choose(&both, Some(home.path()), &path, |_| None).expect("they are there");
        assert_eq!(shown.directories, [at(".cargo/bin"), at(".rustup"), at(".nvm/versions")]);
        let root = home.path().display();
        assert_eq!(
            shown.script(),
            format!(
                "export RUSTUP_HOME='{root}/.rustup'\n\
                 export PATH='{root}/.cargo/bin':'{root}/.nvm/versions/node/v22/bin':\"$PATH\"\n"
            )
        );
        Shown::choose(&[Toolchain::Pyenv], Some(home.path()), &path, |_| None).expect_err("there is none");
        assert_eq!(Shown::choose(&[], None, &[], |_| None).expect("nothing").script(), "");
    }
}
