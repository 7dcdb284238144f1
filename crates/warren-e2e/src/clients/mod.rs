//! Runs real, unmodified clients on both homes: the same commands, whose output is compared.
//!
//! A [`Side`] is a server with its kubeconfig. [`Transcript`] runs commands on a side and records
//! their output, with the parts masked that must differ between two servers. A test passes if the
//! two transcripts are the same text.

mod browser;
mod javascript;
mod kubectl;
mod python;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use regex::Regex;

pub use browser::Browser;
pub use javascript::javascript_with;
pub use kubectl::{play, served_resources};
pub use python::{Python, python, python_with, python_with_sdk};

/// A server and the tools to use it.
#[derive(Debug, Clone)]
pub struct Side {
    /// Its name in failures.
    pub name: &'static str,
    /// The kubeconfig to reach it.
    pub kubeconfig: PathBuf,
    /// The published `kubectl`.
    pub kubectl: PathBuf,
}

/// The commands that were run on a side, with their output.
#[derive(Debug)]
pub struct Transcript<'a> {
    side: &'a Side,
    directory: &'a Path,
    text: String,
}

impl<'a> Transcript<'a> {
    /// Returns an empty transcript. Files that commands read are in `directory`, which is the same
    /// for both sides.
    pub fn new(side: &'a Side, directory: &'a Path) -> Self {
        Self { side, directory, text: String::new() }
    }

    /// Returns the recorded text.
    pub fn text(self) -> String {
        self.text
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.side.kubectl);
        command
            .arg("--kubeconfig")
            .arg(&self.side.kubeconfig)
            .args(arguments)
            .current_dir(self.directory)
            // Discovery is cached on disk by address; separate homes keep two servers and two runs
            // apart.
            .env("HOME", self.directory.join(self.side.name))
            .env("KUBE_EDITOR", "sed -i s/before/after/")
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `kubectl` and records everything; returns its standard output, unmasked.
    pub fn run(&mut self, arguments: &[&str]) -> String {
        self.run_with(arguments, "")
    }

    /// Runs `kubectl` with an input.
    pub fn run_with(&mut self, arguments: &[&str], input: &str) -> String {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("run kubectl");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let output = std::thread::scope(|scope| {
            // A command that ends early breaks the pipe; its own status says more than that.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
            child.wait_with_output().expect("wait for kubectl")
        });
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        self.note(&format!("$ kubectl {}\n", arguments.join(" ")));
        self.note(&stdout);
        let errors: String = stderr.lines().map(|line| format!("! {line}\n")).collect();
        self.note(&errors);
        let code = output.status.code().unwrap_or(-1);
        if code != 0 {
            self.note(&format!("exit code {code}\n"));
        }
        stdout
    }

    /// Explains a built-in kind and records its fields and their types. A home does not serve the
    /// descriptions: they would be the larger part of the binary.
    pub fn explain_fields(&mut self, field: &str) {
        let arguments = ["explain", field, "--recursive"];
        let output = self.command(&arguments).output().expect("run kubectl");
        self.note(&format!("$ kubectl {}\n", arguments.join(" ")));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let described = ["KIND:", "VERSION:", "FIELD:"].iter().any(|word| line.starts_with(word));
            if described || line.contains("\t<") {
                self.note(&format!("{line}\n"));
            }
        }
    }

    /// Starts a command that runs until it has printed so many lines, runs others meanwhile, and
    /// records the lines.
    pub fn follow(
        &mut self,
        arguments: &[&str],
        first: usize,
        lines: usize,
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let mut child = self.command(arguments).spawn().expect("run kubectl");
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut reader = BufReader::new(stdout).lines();
        let mut seen = Vec::new();
        let mut read = |count: usize, seen: &mut Vec<String>| {
            while seen.len() < count {
                match reader.next() {
                    Some(Ok(line)) => seen.push(line),
                    _ => break,
                }
            }
        };
        // The present objects have been printed: the watch is established.
        read(first, &mut seen);
        meanwhile(self);
        read(lines, &mut seen);
        // It would run for ever.
        let _ = child.kill();
        let _ = child.wait();
        self.note(&format!(
            "$ kubectl {} (its first {lines} lines)\n{}\n",
            arguments.join(" "),
            seen.join("\n")
        ));
    }

    fn note(&mut self, text: &str) {
        let text = text.replace(&self.directory.display().to_string(), "<directory>");
        self.text.push_str(&mask(&text));
    }
}

/// The differences between two servers, or two runs, that have no meaning: in order, pattern and
/// replacement.
static MASKS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
        (r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", "<token>"),
        (r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z", "<time>"),
        (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} \S+", "<time>"),
        (r#"(resourceVersion"?: ?)"?\d+"?"#, "$1<version>"),
        // Addresses of services, and the column's width, which depends on them.
        (r"10\.\d+\.\d+\.\d+ *", "<address> "),
        (r"127\.0\.0\.1:\d+", "<server>"),
        // Ages, in the last column of a table or alone in a column of two or more spaces.
        (r"(?m)(\s)(\d+[smhd])+(\s*)$", "$1<age>"),
        (r"  (\d+[smh])+ +", "  <age>  "),
        (r"/tmp/(LIVE|MERGED)-\d+", "/tmp/$1"),
        (r"(?m)^(---|\+\+\+|diff) .*$", "$1"),
        (r"(?m)^(@@ .* @@).*$", "$1"),
        (r"(Resource Version: +)\d+", "$1<version>"),
        // The whole object in an error, including its version.
        (r#"(patch: Invalid value: )"\{.*\}": json"#, "$1<the object>: json"),
        // A refused change of a pod shows its whole specification as Go prints it.
        (r"(?s)! @@ .*?\n! \n", ""),
        // Additions of controllers and kinds that a home does not have: endpoints of services,
        // quotas and limits.
        (r"(?m)^(Endpoints: +).*$", "$1<endpoints>"),
        (r"\nNo resource quota\.\n\nNo LimitRange resource\.\n", ""),
        // The width of a column depends on its masked content.
        (r"(\S)  +", "$1  "),
        // A real server checks the addresses of services from time to time, and may complain about
        // one that is just being assigned.
        (r"Events:\n  Type .*\n  ---- .*\n(  \w+  ClusterIPNotAllocated  .*\n)+", "Events:  <none>\n"),
    ]
    .into_iter()
    .map(|(pattern, replacement)| (Regex::new(pattern).expect("a pattern"), replacement))
    .collect()
});

/// Runs a command to its end; returns its output, or all of its output as the error.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("run {command:?}: {error}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(stdout),
        false => Err(format!(
            "{command:?}: {}\n{stdout}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Masks the parts that may differ.
pub fn mask(text: &str) -> String {
    MASKS.iter().fold(text.to_owned(), |text, (pattern, replacement)| {
        pattern.replace_all(&text, *replacement).into_owned()
    })
}

/// Returns the differing lines of two transcripts, with the command they belong to; empty if they
/// are the same.
pub fn differences(real: &str, ours: &str) -> String {
    fn sections(text: &str) -> Vec<&str> {
        text.split_inclusive("\n$ ").collect()
    }
    let (real, ours) = (sections(real), sections(ours));
    let mut report = String::new();
    for number in 0..real.len().max(ours.len()) {
        let (theirs, mine) = (real.get(number).unwrap_or(&""), ours.get(number).unwrap_or(&""));
        if theirs != mine {
            report.push_str(&format!("--- the real server\n{theirs}\n+++ ours\n{mine}\n"));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_nothing_is_masked() {
        let text = "NAME   TYPE        CLUSTER-IP    AGE\nweb    ClusterIP   10.96.3.250   12s\nresourceVersion: \"123\"\n";
        let masked =
            "NAME  TYPE  CLUSTER-IP  AGE\nweb  ClusterIP  <address> <age>\nresourceVersion: <version>\n";
        assert_eq!(mask(text), masked);
        let events = "Events:\n  Type     Reason                 Age  From  Message\n  ----     ------                 ----  ----  -------\n";
        let repair = "  Warning  ClusterIPNotAllocated  2s    ipallocator-repair-controller  Cluster IP [IPv4]: 10.0.0.7 is not allocated; repairing\n";
        assert_eq!(mask(&format!("{events}{repair}")), "Events:  <none>\n");
        assert!(mask(&format!("{events}  Normal  Made  2s  me  made it\n")).contains("made it"));
        assert_eq!(mask("  replicas: 3\nsize 5Gi of 10\n"), "  replicas: 3\nsize 5Gi of 10\n");
    }

    #[test]
    fn a_difference_is_shown_with_its_command() {
        let report = differences("$ kubectl a\nx\n$ kubectl b\ny\n", "$ kubectl a\nx\n$ kubectl b\nz\n");
        assert!(
            report.contains("kubectl b\ny")
                && report.contains("kubectl b\nz")
                && !report.contains("kubectl a\nx\n$ kubectl b\ny"),
            "{report}"
        );
        assert_eq!(differences("same", "same"), "");
    }
}
