//! Runs `warren up` and the daemon that `up --detach` starts.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde_json::json;
use warren_client::home::DataDir;
use warren_local::{LockError, RegistryConfig, Settings, StartError};

use crate::cli::{self, Format};
use crate::home::{self, Report};
use crate::{log, report, version};

/// The default address of the API: on loopback, on a free port.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs the home in this process, or in the background.
pub fn up(arguments: &cli::Up) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    if arguments.detach {
        let flags = (&arguments.listen, &arguments.registries, &arguments.runtimes, &arguments.host_paths);
        let report = home::start(&data_dir, Some(flags))?;
        return settle(&data_dir, &report, arguments);
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
        log::write_by_thread(None);
        announce(&data_dir, &Report::Ready { pid }, &[], arguments.output.output);
    });
    match outcome {
        Err(StartError::Lock(LockError::Held { holder, .. })) => {
            let report = Report::Running { pid: holder.pid, settings: holder.settings };
            settle(&data_dir, &report, arguments)
        }
        outcome => Ok(outcome?),
    }
}

/// The error of flags that a running home does not have.
#[derive(Debug, thiserror::Error)]
#[error("the local home was already running (process {pid}), and these flags were not applied: {}", flags.join(", "))]
pub struct NotApplied {
    /// The process that runs the home.
    pub pid: u32,
    /// The flags with the running home's values.
    pub flags: Vec<String>,
}

/// Reports that the home runs. Fails if it was already running with other flags than the given
/// ones.
fn settle(data_dir: &DataDir, report: &Report, arguments: &cli::Up) -> anyhow::Result<()> {
    let not_applied = match report {
        Report::Running { settings, .. } => not_applied(arguments, settings.as_ref()),
        Report::Ready { .. } | Report::Failed { .. } => Vec::new(),
    };
    announce(data_dir, report, &not_applied, arguments.output.output);
    match report {
        Report::Running { pid, .. } if !not_applied.is_empty() => {
            Err(NotApplied { pid: *pid, flags: not_applied }.into())
        }
        _ => Ok(()),
    }
}

/// Lists the given flags that a running home does not have. A flag that was not given is ignored.
fn not_applied(given: &cli::Up, running: Option<&Settings>) -> Vec<String> {
    let mut differing = Vec::new();
    let mut compare = |flag: &str, wanted: Vec<String>, has: Option<&[String]>| {
        let sorted = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
        if wanted.is_empty() || has.is_some_and(|has| sorted(has) == sorted(&wanted)) {
            return;
        }
        let has = match has {
            None => "the running version does not say what it has".to_owned(),
            Some([]) => "it runs without".to_owned(),
            Some(has) => format!("it runs with {}", has.join(",")),
        };
        differing.push(format!("`{flag} {}` ({has})", wanted.join(",")));
    };
    let listens = |running: SocketAddr, wanted: SocketAddr| {
        // Port 0 matches any port.
        running == wanted || (wanted.port() == 0 && running.ip() == wanted.ip())
    };
    for (flag, wanted, has) in [
        ("--listen", given.listen.listen, running.map(|running| running.listen)),
        ("--router-listen", given.listen.router_listen, running.and_then(|running| running.router_listen)),
    ] {
        let wanted = wanted.filter(|wanted| !has.is_some_and(|has| listens(has, *wanted)));
        let has = has.map(|has| vec![has.to_string()]);
        compare(flag, wanted.iter().map(ToString::to_string).collect(), has.as_deref());
    }
    compare(
        "--insecure-registry",
        given.registries.insecure_registry.clone(),
        running.map(|running| &*running.insecure_registries),
    );
    let runtimes = given.runtimes.runtime.iter();
    compare(
        "--runtime",
        runtimes.map(|runtime| format!("{}={}", runtime.name, runtime.path.display())).collect(),
        running.map(|running| &*running.runtimes),
    );
    compare(
        "--allow-host-path",
        given.host_paths.allow_host_path.iter().map(ToString::to_string).collect(),
        running.map(|running| &*running.host_paths),
    );
    differing
}

/// Runs the home for a parent process that waits for one line on our standard output.
pub fn daemon(arguments: &cli::Daemon) -> anyhow::Result<()> {
    let data_dir = home::data_dir(&arguments.home)?;
    // Leave the parent's terminal and process group. It fails only if this process leads a group
    // already.
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
        log::write_by_thread(Some(&data_dir.daemon_log()));
        tell(&Report::Ready { pid });
        // The parent reads no more; from here on standard output goes to the log.
        let _ = rustix::stdio::dup2_stdout(rustix::stdio::stderr());
    });
    match outcome {
        Err(StartError::Lock(LockError::Held { holder, .. })) => {
            tell(&Report::Running { pid: holder.pid, settings: holder.settings });
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

/// Enters a user namespace, in which an ordinary user's home can make containers, and executes this
/// program again there. Root, or a process that is there already, continues unchanged.
fn go_on_as_namespace_root(data_dir: &DataDir) -> anyhow::Result<()> {
    if !warren_local::enter_user_namespace()? {
        return Ok(());
    }
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut again = Command::new(&program);
    // In the namespace it seems to be root, whose home is elsewhere.
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
        listen: listen.listen.unwrap_or(LISTEN),
        router_listen: listen.router_listen.unwrap_or(LISTEN),
        router_url: data_dir.router_url(),
        router_token_key: data_dir.router_token_key(),
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

/// Returns the files in which `podman login` and `docker login` store credentials, in the order of
/// preference.
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
    // If the parent is gone, the report has no reader.
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// Prints that the home runs, and how to use it.
fn announce(data_dir: &DataDir, report: &Report, not_applied: &[String], format: Format) {
    let (pid, state) = match report {
        Report::Ready { pid } => (pid, "is ready"),
        Report::Running { pid, .. } => (pid, "is already running"),
        Report::Failed { .. } => return,
    };
    let kubeconfig = data_dir.kubeconfig();
    let router_url = std::fs::read_to_string(data_dir.router_url()).ok();
    let router_url = router_url.as_deref().map(str::trim_end);
    match format {
        Format::Json => {
            let started = matches!(report, Report::Ready { .. });
            let mut line = json!({ "dataDir": data_dir.path(), "kubeconfig": kubeconfig, "pid": pid, "routerUrl": router_url, "started": started });
            if !not_applied.is_empty() {
                line["notApplied"] = json!(not_applied);
            }
            // Continue if the reader of standard output is gone.
            let _ = writeln!(std::io::stdout(), "{line}");
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
    fn flags_that_a_running_home_does_not_have_are_named() {
        use clap::Parser as _;
        let differ = |words: &[&str], running: Option<&Settings>| {
            let words = ["warren", "up", "--detach"].iter().chain(words);
            match cli::Cli::parse_from(words).command {
                cli::Command::Up(up) => not_applied(&up, running),
                other => panic!("{other:?}"),
            }
        };
        let running = Settings {
            router_listen: Some(LISTEN),
            listen: LISTEN,
            insecure_registries: vec!["b.test".to_owned(), "a.test".to_owned()],
            runtimes: Vec::new(),
            host_paths: vec!["/srv".to_owned()],
        };
        for same in [
            &[][..],
            &["--listen", "127.0.0.1:0"],
            &["--allow-host-path", "/srv"],
            &["--insecure-registry", "a.test,b.test"],
        ] {
            assert_eq!(differ(same, Some(&running)), Vec::<String>::new(), "{same:?}");
        }
        for (words, expected) in [
            (["--listen", "127.0.0.1:6443"], "`--listen 127.0.0.1:6443` (it runs with 127.0.0.1:0)"),
            (
                ["--router-listen", "127.0.0.1:8080"],
                "`--router-listen 127.0.0.1:8080` (it runs with 127.0.0.1:0)",
            ),
            (["--allow-host-path", "/srv:rw"], "`--allow-host-path /srv:rw` (it runs with /srv)"),
            (["--runtime", "kata=/bin/kata"], "`--runtime kata=/bin/kata` (it runs without)"),
            (["--insecure-registry", "a.test"], "`--insecure-registry a.test` (it runs with b.test,a.test)"),
        ] {
            assert_eq!(differ(&words, Some(&running)), [expected]);
        }
        assert_eq!(differ(&[], None), Vec::<String>::new());
        let unknown = "`--allow-host-path /srv` (the running version does not say what it has)";
        assert_eq!(differ(&["--allow-host-path", "/srv"], None), [unknown]);
    }

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
