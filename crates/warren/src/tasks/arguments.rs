//! The arguments of `warren task`, with the text that `--help` shows.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::{Output, Place};
use crate::config::duration;

#[derive(Args, Debug)]
pub struct Task {
    #[command(subcommand)]
    pub command: TaskCommand,
}

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// Run a command to its end in a sandbox of its own, whether this terminal stays or not.
    Submit(Box<Submit>),
    /// List tasks.
    #[command(alias = "ls")]
    List(List),
    /// Print what happens to a task until it has ended.
    Watch(Watch),
    /// Wait until tasks have ended.
    Wait(Wait),
    /// Print what the command of a task has written.
    Logs(Logs),
    /// Print the result that the command of a task left, and on standard error how the task ended.
    Result(TaskResult),
    /// End tasks that have not ended yet. Their logs stay.
    Cancel(Names),
    /// Delete tasks with their sandboxes and logs, also while they run.
    #[command(alias = "rm")]
    Delete(Names),
}

/// Examples for `warren task submit --help`.
const SUBMIT_EXAMPLES: &str = "\
Examples:
  warren task submit -- make -C /usr/src/project            this machine's programs, under a writable layer
  warren task submit --image busybox --timeout 5m -- sh -c 'echo hello'
  warren task submit --template agent --description 'Fix the failing test' --wait
  warren task submit --pool agents --wait -- ./fix          in a sandbox that runs already
  warren task submit --wait 'sleep 2; echo done; exit 3'    one string is a line for a shell

The command finds its task in `WARREN_TASK_ID`, and what it was told in `WARREN_TASK_DESCRIPTION`, `WARREN_TASK_CONTEXT`, \
`WARREN_TASK_REPOSITORY_URL` and `WARREN_TASK_REPOSITORY_REF`. What it writes to the file that `WARREN_TASK_RESULT` names, \
`warren task result` prints.

With `--wait` the log is printed at the end, and the exit code is the command's; 124 after a timeout, 1 for any other failure.";

#[derive(Args, Debug)]
#[command(after_help = SUBMIT_EXAMPLES)]
pub struct Submit {
    #[command(flatten)]
    pub place: Place,
    /// A name for the task [default: `task-` and random characters]
    #[arg(long)]
    pub name: Option<String>,
    /// Make the sandbox from this SandboxTemplate
    #[arg(long, value_name = "TEMPLATE")]
    pub template: Option<String>,
    /// Claim a sandbox from this SandboxWarmPool, whose sandboxes wait for a command
    #[arg(long, conflicts_with_all = ["template", "image", "memory", "cpus"], value_name = "POOL")]
    pub pool: Option<String>,
    /// Make the sandbox from this image; the default is this machine's own `/usr`, read-only, under a writable layer
    #[arg(long, conflicts_with = "template")]
    pub image: Option<String>,
    /// How long the task may take in all, such as `90s` or `1h30m` [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Set an environment variable; without a value, pass on the one from here. It can be read in the task: a secret belongs in a
    /// Secret, which a manifest can refer to
    #[arg(long, short, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// What is to be done, for the command to read
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// What the command should know besides
    #[arg(long, value_name = "TEXT")]
    pub task_context: Option<String>,
    /// The repository that the task is about, for the command to fetch
    #[arg(long, value_name = "URL")]
    pub repository: Option<String>,
    /// A branch, tag or commit of it
    #[arg(long = "ref", value_name = "REF", requires = "repository")]
    pub reference: Option<String>,
    /// Most memory the command may use, as a Kubernetes quantity such as `512Mi`
    #[arg(long, value_name = "QUANTITY")]
    pub memory: Option<String>,
    /// Most processor time the command may use, as a Kubernetes quantity such as `2` or `500m`
    #[arg(long, value_name = "QUANTITY")]
    pub cpus: Option<String>,
    /// Run the command again, so often at most, after it failed for a reason that another attempt may not have
    #[arg(long, default_value_t = 0, value_name = "TIMES", value_parser = clap::value_parser!(i32).range(0..=10))]
    pub retries: i32,
    /// Keep the sandboxes of attempts that were followed by another one, and a failed task beyond `--ttl`
    #[arg(long)]
    pub keep_on_failure: bool,
    /// Delete the task, with its log, so long after it has ended [default: it is kept]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub ttl: Option<Duration>,
    /// Wait until the task has ended, print its log, and end with the command's exit code
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub output: Output,
    /// The command and its arguments, or one string for a shell
    #[arg(trailing_var_arg = true, required_unless_present_any = ["template", "image"], value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct List {
    #[command(flatten)]
    pub place: Place,
    /// Those of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(after_help = "The exit code is the command's; 124 after a timeout, 1 for any other failure.")]
pub struct Watch {
    #[command(flatten)]
    pub place: Place,
    /// The task
    pub task: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The exit code is that of the first command that failed; 124 after a timeout, 1 for any other failure."
)]
pub struct Wait {
    #[command(flatten)]
    pub place: Place,
    /// Give up after this time, such as `90s` or `1h30m`; the tasks go on
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// The tasks
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<String>,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  warren task logs mine\n  warren task logs --follow mine")]
pub struct Logs {
    #[command(flatten)]
    pub place: Place,
    /// Go on as the log grows, until the command has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Print only so many lines of its end
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// The task
    pub task: String,
}

#[derive(Args, Debug)]
pub struct TaskResult {
    #[command(flatten)]
    pub place: Place,
    /// The task
    pub task: String,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Names {
    #[command(flatten)]
    pub place: Place,
    /// The tasks
    #[arg(required = true, value_name = "TASK")]
    pub tasks: Vec<String>,
}
