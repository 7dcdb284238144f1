//! `warren up` and the daemon that `up --detach` starts.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde_json::json;
use warren_client::home::DataDir;
use warren_local::{LockError, RegistryConfig, StartError};

use crate::cli::{self, Format};
use crate::home::{self, Report};
use crate::{report, version};

/// Runs the home here, or in the background.
pub fn up(arguments: &cli::Up) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    if arguments.detach {
        let flags = (&arguments.listen, &arguments.registries, &arguments.runtimes, &arguments.host_paths);
        let report = home::start(&data_dir, Some(flags))?;
        announce(&data_dir, &report, arguments.output.output);
        return Ok(());
    }
    go_on_as_namespace_root(&data_dir)?;
    let config = config(
        &data_dir,
        &arguments.listen,
        &arguments.registries,
        &arguments.runtimes,
        &arguments.host_paths,
    )?;
    let outcome = warren_local::run(config, |pid| {
        announce(&data_dir, &Report::Ready { pid }, arguments.output.output);
    });
    match outcome {
        Err(StartError::Lock(LockError::Held { holder, .. })) => {
            announce(&data_dir, &Report::Running { pid: holder.pid }, arguments.output.output);
            Ok(())
        }
        outcome => Ok(outcome?),
    }
}

/// Runs the home for a process that waits for one line on our standard output.
pub fn daemon(arguments: &cli::Daemon) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    // Away from the terminal and the process group of whoever started us; fails only if we lead a group already.
    let _ = rustix::process::setsid();
    if let Err(error) = go_on_as_namespace_root(&data_dir) {
        tell(&Report::Failed { error: report::chain(&error) });
        return Err(error);
    }
    let config = config(
        &data_dir,
        &arguments.listen,
        &arguments.registries,
        &arguments.runtimes,
        &arguments.host_paths,
    )?;
    let outcome = warren_local::run(config, |pid| {
        tell(&Report::Ready { pid });
        // Nobody reads on; from here on standard output goes where the log goes.
        let _ = rustix::stdio::dup2_stdout(rustix::stdio::stderr());
    });
    match outcome {
        Err(StartError::Lock(LockError::Held { holder, .. })) => {
            tell(&Report::Running { pid: holder.pid });
            Ok(())
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            tell(&Report::Failed { error: report::chain(&error) });
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// An ordinary user's home lives in a user namespace, where it can make containers: this program enters one and begins anew
/// there. Root goes on as it is, and so does whoever is there already.
fn go_on_as_namespace_root(data_dir: &DataDir) -> anyhow::Result<()> {
    if !warren_local::enter_user_namespace()? {
        return Ok(());
    }
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut again = Command::new(&program);
    // There it seems to be root, whose home is elsewhere.
    again.args(std::env::args_os().skip(1)).env("WARREN_HOME", data_dir.path());
    Err(again.exec()).with_context(|| format!("run `{}` in a user namespace", program.display()))
}

fn config(
    data_dir: &DataDir,
    listen: &cli::Listen,
    registries: &cli::Registries,
    runtimes: &cli::Runtimes,
    host_paths: &cli::HostPaths,
) -> anyhow::Result<warren_local::Config> {
    Ok(warren_local::Config {
        directory: data_dir.path().to_owned(),
        api_socket: data_dir.api_socket(),
        kubeconfig: data_dir.kubeconfig(),
        listen: listen.listen,
        router_listen: listen.router_listen,
        router_url: data_dir.router_url(),
        registries: RegistryConfig {
            credential_files: credential_files(|name| std::env::var_os(name)),
            insecure: registries.insecure_registry.clone(),
            ..RegistryConfig::default()
        },
        runtimes: runtimes.runtime.clone(),
        host_paths: host_paths.allow_host_path.clone(),
        program_path: std::env::var_os("PATH"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: version::BUILD,
    })
}

/// Where `podman login` and `docker login` keep what they were told, the first to be asked first.
pub fn credential_files(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let files = [
        path("REGISTRY_AUTH_FILE"),
        path("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json")),
        path("DOCKER_CONFIG")
            .or_else(|| Some(path("HOME")?.join(".docker")))
            .map(|it| it.join("config.json")),
    ];
    files.into_iter().flatten().collect()
}

fn tell(report: &Report) {
    // If the other side has gone, there is nobody to tell.
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// Says that the home runs, and how to use it.
fn announce(data_dir: &DataDir, report: &Report, format: Format) {
    let (pid, state) = match report {
        Report::Ready { pid } => (pid, "is ready"),
        Report::Running { pid } => (pid, "is already running"),
        Report::Failed { .. } => return,
    };
    let kubeconfig = data_dir.kubeconfig();
    let router_url = std::fs::read_to_string(data_dir.router_url()).ok();
    let router_url = router_url.as_deref().map(str::trim_end);
    match format {
        Format::Json => {
            let started = matches!(report, Report::Ready { .. });
            let line = json!({ "dataDir": data_dir.path(), "kubeconfig": kubeconfig, "pid": pid, "routerUrl": router_url, "started": started });
            println!("{line}");
        }
        Format::Text => {
            eprintln!("The local home in `{}` {state} (process {pid}).", data_dir.path().display());
            eprintln!("Use it with `kubectl --kubeconfig {} get sandboxes`.", kubeconfig.display());
            if let Some(url) = router_url {
                eprintln!("SDKs reach its sandboxes at {url}.");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_where_other_tools_leave_them() {
        let with = |variables: &[(&str, &str)]| {
            credential_files(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let all =
            with(&[("REGISTRY_AUTH_FILE", "/a"), ("XDG_RUNTIME_DIR", "/run/user/1"), ("HOME", "/home/me")]);
        let expected = ["/a", "/run/user/1/containers/auth.json", "/home/me/.docker/config.json"];
        assert_eq!(all, expected.map(PathBuf::from));
        assert_eq!(with(&[("DOCKER_CONFIG", "/d"), ("HOME", "/h")]), [PathBuf::from("/d/config.json")]);
        assert!(with(&[("HOME", "")]).is_empty());
    }
}
