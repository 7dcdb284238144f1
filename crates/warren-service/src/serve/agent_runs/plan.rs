//! The request for a run: fields, limits and defaults, checked before anything is made.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use warren_providers::{Command, Wanted, check_environment, check_identifier};

use super::repository::{NewRepository, Repository};
use super::rows::{Run, State};
use crate::serve::answer::Failure;
use crate::serve::settings::Runner;

/// The longest prompt. Linux takes 128 KiB for one variable, and a provider 64 KiB for all of them.
const LONGEST_PROMPT: usize = 48 << 10;

const LONGEST_TITLE: usize = 256;

/// The range of a runner's time, and the time if the request names none.
pub const TIMEOUT_MS: RangeInclusive<u64> = 1000..=86_400_000;
const DEFAULT_TIMEOUT_MS: u64 = 3_600_000;

/// The variable with the prompt, and the one with the run's id.
const PROMPT: &str = "AGENT_PROMPT";
const RUN_ID: &str = "AGENT_RUN_ID";

/// The runner if neither the request nor the settings name one.
const PROGRAM: &str = "node";
const ARGUMENT: &str = "/opt/agent-runner/dist/index.js";

/// A run, as a client asks for it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NewRun {
    /// The project it belongs to.
    pub project_id: Option<String>,
    /// The task it belongs to.
    pub task_id: Option<String>,
    /// The agent that works.
    pub agent_id: Option<String>,
    /// Its title for people.
    pub title: Option<String>,
    /// The sandbox to use; it stays. Without one, one is made for the run.
    pub sandbox_id: Option<String>,
    /// The sandbox to make.
    pub sandbox: Option<Wanted>,
    /// The repository to work on.
    pub repository: Option<NewRepository>,
    /// The runner's program.
    pub cmd: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// The directory it runs in.
    pub cwd: Option<String>,
    /// The prompt.
    pub prompt: Option<String>,
    /// Variables, such as credentials.
    pub env: BTreeMap<String, String>,
    /// The time that the runner may take.
    pub timeout_ms: Option<u64>,
}

/// A run that can be carried out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The run as it is stored first.
    pub run: Run,
    /// The runner, with the prompt and the variables.
    pub command: Command,
    /// The sandbox to make, if none was named.
    pub wanted: Option<Wanted>,
    /// The repository to find.
    repository: Option<NewRepository>,
}

impl Plan {
    /// Checks a request.
    pub fn new(new: NewRun, runner: &Runner, id: String, now: Timestamp) -> Result<Self, Failure> {
        for (field, name) in
            [("projectId", &new.project_id), ("taskId", &new.task_id), ("agentId", &new.agent_id)]
        {
            if let Some(name) = name {
                check_identifier(field, name)?;
            }
        }
        let title = new.title.unwrap_or_else(|| match &new.task_id {
            Some(task) => format!("Agent run: {task}"),
            None => "Agent run".to_owned(),
        });
        if title.len() > LONGEST_TITLE || title.contains(char::is_control) {
            let problem = format!("has more than {LONGEST_TITLE} bytes, or control characters");
            return Err(Failure::invalid("title", problem));
        }
        let wanted = match (&new.sandbox_id, new.sandbox) {
            (Some(_), Some(_)) => return Err(Failure::invalid("sandbox", "excludes `sandboxId`")),
            (Some(_), None) => None,
            (None, wanted) => Some(own_sandbox(wanted.unwrap_or_default(), &id)?),
        };
        let timeout_ms = new.timeout_ms.or(runner.timeout_ms).unwrap_or(DEFAULT_TIMEOUT_MS);
        check_timeout(timeout_ms)?;
        let command = command(&new.cmd, new.args, runner)?;
        let env = variables(new.prompt, new.env, &id)?;
        let command = Command { directory: new.cwd.or_else(|| runner.cwd.clone()), env, ..command };
        command.check()?;
        let words = std::iter::once(command.program.clone()).chain(command.arguments.iter().cloned());
        let run = Run {
            id,
            title,
            project: new.project_id,
            task: new.task_id,
            agent: new.agent_id,
            command: words.collect(),
            timeout_ms,
            repository: None,
            sandbox: new.sandbox_id,
            own_sandbox: wanted.is_some(),
            state: State::Creating,
            exit_code: None,
            error: None,
            created: now,
            started: None,
            ended: None,
            cleaned: false,
        };
        Ok(Self { run, command, wanted, repository: new.repository })
    }

    /// Finds the repository in one of the directories that are allowed, if the request names one.
    pub async fn find_repository(&mut self, allowed: &[PathBuf], scratch: &Path) -> Result<(), Failure> {
        if let Some(new) = self.repository.take() {
            let found = Repository::find(new, &self.run, allowed, scratch).await?;
            self.command.directory.get_or_insert_with(|| found.directory.clone());
            self.run.repository = Some(found);
        }
        Ok(())
    }

    /// Returns the time that the runner may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.run.timeout_ms)
    }
}

/// Checks a runner's time.
pub fn check_timeout(timeout_ms: u64) -> Result<(), Failure> {
    match TIMEOUT_MS.contains(&timeout_ms) {
        true => Ok(()),
        false => {
            let problem =
                format!("is {timeout_ms}; it can be {} to {}", TIMEOUT_MS.start(), TIMEOUT_MS.end());
            Err(Failure::invalid("timeoutMs", problem))
        }
    }
}

/// Returns the project of the sandbox that is made for a run. It is known before the sandbox is
/// made, so that the sandbox is found by it after a crash.
pub fn own_project(run: &str) -> String {
    format!("run-{run}")
}

fn own_sandbox(wanted: Wanted, run: &str) -> Result<Wanted, Failure> {
    if wanted.project_id.is_some() {
        let problem = "is for sandboxes that stay; the run's own is `projectId` beside `sandbox`";
        return Err(Failure::invalid("sandbox.projectId", problem));
    }
    if !wanted.env.is_empty() {
        let problem = "would be stored in the sandbox's object; use the run's `env`";
        return Err(Failure::invalid("sandbox.env", problem));
    }
    let wanted = Wanted { project_id: Some(own_project(run)), ..wanted };
    wanted.check()?;
    Ok(wanted)
}

fn command(cmd: &Option<String>, args: Vec<String>, runner: &Runner) -> Result<Command, Failure> {
    let (program, arguments) = match (cmd, &runner.cmd) {
        (Some(program), _) => (program.clone(), args),
        (None, _) if !args.is_empty() => return Err(Failure::invalid("args", "goes with `cmd`")),
        (None, Some(program)) => (program.clone(), runner.args.clone()),
        (None, None) => (PROGRAM.to_owned(), vec![ARGUMENT.to_owned()]),
    };
    Ok(Command { program, arguments, ..Command::default() })
}

fn variables(
    prompt: Option<String>,
    mut env: BTreeMap<String, String>,
    run: &str,
) -> Result<BTreeMap<String, String>, Failure> {
    if let Some(name) = [PROMPT, RUN_ID].into_iter().find(|name| env.contains_key(*name)) {
        let problem = format!("has `{name}`, which the service sets; the prompt goes into `prompt`");
        return Err(Failure::invalid("env", problem));
    }
    let prompt = prompt.unwrap_or_default();
    if prompt.len() > LONGEST_PROMPT {
        let problem = format!(
            "has {} bytes, and {LONGEST_PROMPT} are possible; write what is longer into a file of the sandbox",
            prompt.len()
        );
        return Err(Failure::invalid("prompt", problem));
    }
    if prompt.contains('\0') {
        return Err(Failure::invalid("prompt", "has a zero byte"));
    }
    env.insert(PROMPT.to_owned(), prompt);
    env.insert(RUN_ID.to_owned(), run.to_owned());
    // The prompt counts, too.
    check_environment("env", &env)?;
    Ok(env)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn plan(new: Value) -> Result<Plan, String> {
        let new: NewRun = serde_json::from_value(new).map_err(|error| error.to_string())?;
        let plan = Plan::new(new, &Runner::default(), "r1".to_owned(), Timestamp::UNIX_EPOCH);
        plan.map_err(|failure| failure.message)
    }

    #[test]
    fn bad_fields_are_named() {
        for (new, words) in [
            (json!({ "projectId": "a b" }), "`projectId` has to be"),
            (json!({ "taskId": "../x" }), "`taskId` has to be"),
            (json!({ "agentId": "" }), "`agentId` has to be"),
            (json!({ "title": "x".repeat(257) }), "`title` has more than 256"),
            (json!({ "title": "a\u{1b}[2J" }), "`title`"),
            (json!({ "sandboxId": "a", "sandbox": {} }), "`sandbox` excludes `sandboxId`"),
            (json!({ "sandbox": { "projectId": "a" } }), "`sandbox.projectId`"),
            (json!({ "sandbox": { "env": { "TOKEN": "x" } } }), "use the run's `env`"),
            (json!({ "sandbox": { "memoryMb": 1 } }), "`memoryMb` is 1"),
            (json!({ "sandbox": { "hostPath": "/" } }), "unknown field `hostPath`"),
            (json!({ "args": ["x"] }), "`args` goes with `cmd`"),
            (json!({ "cmd": "" }), "`cmd` is empty"),
            (json!({ "cmd": "a", "args": ["x".repeat(17 << 10)] }), "`args` has more than 16 KiB"),
            (json!({ "cwd": "relative" }), "`cwd` has to be absolute"),
            (json!({ "timeoutMs": 999 }), "`timeoutMs` is 999; it can be 1000 to 86400000"),
            (json!({ "timeoutMs": 86_400_001 }), "`timeoutMs`"),
            (json!({ "prompt": "x".repeat((48 << 10) + 1) }), "`prompt` has 49153 bytes"),
            (json!({ "prompt": "a\0" }), "`prompt` has a zero byte"),
            (json!({ "env": { "AGENT_PROMPT": "x" } }), "`env` has `AGENT_PROMPT`"),
            (json!({ "env": { "A B": "x" } }), "`env` has `A B`"),
            (json!({ "env": { "A": "x".repeat(65 << 10) } }), "`env` has more than 64 KiB"),
            (json!({ "prompts": "x" }), "unknown field `prompts`"),
        ] {
            let error = plan(new.clone()).expect_err("refused");
            assert!(error.contains(words), "{new}: {error}");
        }
    }

    #[test]
    fn prompt_and_variables_are_neither_in_the_words_nor_in_what_is_stored() {
        let plan = plan(json!({
            "taskId": "t-1", "cmd": "agent", "args": ["--go"], "prompt": "SECRET-PROMPT", "env": { "TOKEN": "SECRET" },
        }))
        .expect("a plan");
        assert_eq!(plan.command.env["AGENT_PROMPT"], "SECRET-PROMPT");
        assert_eq!(plan.command.env["TOKEN"], "SECRET");
        let stored = format!("{:?} {:?} {}", plan.run, plan.wanted, plan.run.shown());
        assert!(!stored.contains("SECRET"), "{stored}");
        assert_eq!((plan.run.title.as_str(), plan.run.command.len()), ("Agent run: t-1", 2));
        let wanted = plan.wanted.expect("a sandbox of its own");
        assert_eq!(wanted.project_id.as_deref(), Some("run-r1"));
    }

    #[test]
    fn runner_of_the_settings_is_used_where_the_request_names_none() {
        let runner = Runner {
            cmd: Some("agent".to_owned()),
            args: vec!["--json".to_owned()],
            timeout_ms: Some(5000),
            ..Runner::default()
        };
        let words = |new: Value, runner: &Runner| {
            let new: NewRun = serde_json::from_value(new).expect("a request");
            let plan = Plan::new(new, runner, "r".to_owned(), Timestamp::UNIX_EPOCH).expect("a plan");
            (plan.run.command.join(" "), plan.run.timeout_ms)
        };
        assert_eq!(words(json!({}), &runner), ("agent --json".to_owned(), 5000));
        assert_eq!(words(json!({ "cmd": "sh", "timeoutMs": 1000 }), &runner), ("sh".to_owned(), 1000));
        let seed = ("node /opt/agent-runner/dist/index.js".to_owned(), 3_600_000);
        assert_eq!(words(json!({}), &Runner::default()), seed);
    }
}
