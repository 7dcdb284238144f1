//! Runs a process in a container and carries its streams in WebSocket messages. When the client
//! leaves, the process is killed.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tracing::debug;
use warren_oci::client::CallError;
use warren_oci::protocol::{Answer, Call, ExecRequest, ExitStatus, RefusalReason, Target, TerminalSize};

use super::channel::{self, Protocol};
use super::session::{self, CHUNK, InputEnd, InputOver, Sink, StreamOptions, read_from, send};
use crate::descriptor::Descriptor;
use crate::shim::Shim;

/// The size of a terminal until the client sets one. Kubelet starts with none, but programs prefer
/// the usual size.
const FIRST_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// The container to run a process in.
pub(super) struct ExecTarget {
    pub(super) shim: Shim,
    pub(super) pod_uid: String,
    pub(super) container: String,
}

/// Runs the process and carries its streams until it ends or the client leaves.
pub(super) async fn serve<S>(stream: S, protocol: Protocol, target: ExecTarget, options: StreamOptions)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, mut messages) = session::split(session::open(stream).await);
    let failure = |error: &dyn std::fmt::Display, code| {
        channel::failure_status(&format!("error executing command in container: {error}"), code)
    };
    let last = match start(target, &options).await {
        Ok((mut process, input)) => {
            let client_gone = async {
                while session::carry_input(&input, &mut messages, &sink, protocol).await == InputOver::Ended {
                    input.close().await;
                }
            };
            let outcome = tokio::select! {
                ended = carry_output(&mut process, &sink, &options) => Some(ended),
                () = client_gone => None,
            };
            match outcome {
                Some(Ok(exit)) => channel::exit_status(exit.code),
                // Either the client or the shim is gone: no client waits for the process.
                Some(Err(error)) => {
                    process.kill();
                    failure(&error, None)
                }
                None => return process.kill(),
            }
        }
        Err(CallError::Refused(refusal)) => {
            // A shell's exit codes.
            let code = match refusal.reason {
                RefusalReason::StartFailed => Some(127),
                RefusalReason::NotExecutable => Some(126),
                _ => None,
            };
            failure(&refusal.message, code)
        }
        Err(CallError::Connection(error)) => failure(&error, None),
    };
    session::goodbye(last, &sink, &mut messages).await;
}

/// A process that was started over its own connection to the shim.
struct Process {
    shim: Shim,
    exec: u64,
    /// The pid on the host; also the number of its session and process group.
    pid: i32,
    pod_uid: String,
    outputs: Vec<(u8, Descriptor)>,
}

impl Process {
    /// Kills the process and its process group, without waiting.
    fn kill(&self) {
        let target = Target::Exec(self.exec);
        let signal = rustix::process::Signal::KILL;
        // The shim signals only one process, so the group is killed from here. The group has its
        // leader's number, since an exec begins a session. If the number was reused by another
        // process, its cgroup shows it.
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid));
        let still_ours = cgroup.map_or(true, |cgroup| cgroup.contains(&self.pod_uid));
        if let Some(group) = rustix::process::Pid::from_raw(self.pid).filter(|_| still_ours) {
            // Already gone is a success.
            let _ = rustix::process::kill_process_group(group, signal);
        }
        if let Err(error) = self.shim.tell(Call::Signal { target, signal: signal.as_raw() }) {
            debug!(%error, "exec not killed: the shim is gone, and with it the process");
        }
    }
}

async fn start(target: ExecTarget, options: &StreamOptions) -> Result<(Process, InputEnd), CallError> {
    let ExecTarget { mut shim, pod_uid, container } = target;
    let call = Call::Exec(ExecRequest {
        container,
        args: options.command.clone(),
        env: if options.tty { vec!["TERM=xterm".to_owned()] } else { Vec::new() },
        cwd: None,
        user: None,
        terminal: options.tty.then_some(FIRST_SIZE),
        stdin: options.stdin && !options.tty,
    });
    let (answer, descriptors) = shim.call(call).await?;
    let Answer::Exec { exec, pid } = answer else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
    let mut outputs = Vec::new();
    let input = if options.tty {
        let master = next()?;
        let terminal = master.try_clone()?;
        let master = Descriptor::new(master)?;
        outputs.push((channel::STDOUT, master.try_clone()?));
        InputEnd { descriptor: Mutex::new(options.stdin.then_some(master)), terminal: Some(terminal) }
    } else {
        let stdin = if options.stdin { Some(Descriptor::new(next()?)?) } else { None };
        for channel in [channel::STDOUT, channel::STDERR] {
            outputs.push((channel, Descriptor::new(next()?)?));
        }
        InputEnd { descriptor: Mutex::new(stdin), terminal: None }
    };
    Ok((Process { shim, exec, pid, pod_uid, outputs }, input))
}

/// Sends output to the client until the process has ended and its output is sent.
///
/// Remaining children may still hold its pipes. They are not waited for, so `server & exit`
/// returns.
async fn carry_output<S>(
    process: &mut Process,
    sink: &Sink<S>,
    options: &StreamOptions,
) -> io::Result<ExitStatus>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Process { shim, exec, outputs, .. } = process;
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut open = [!outputs.is_empty(), outputs.len() > 1];
    let [first_buffer, second_buffer] = &mut buffers;
    let exit = loop {
        let (index, length) = tokio::select! {
            exit = shim.exec_exit(*exec) => break exit?,
            read = read_from(outputs, 0, first_buffer), if open[0] => (0, read?),
            read = read_from(outputs, 1, second_buffer), if open[1] => (1, read?),
        };
        let data = if index == 0 { &first_buffer[..length] } else { &second_buffer[..length] };
        if length == 0 {
            open[index] = false;
        } else if options.shows(outputs[index].0) {
            send(sink, channel::message(outputs[index].0, data)).await?;
        }
    };
    for (index, (channel, descriptor)) in outputs.iter().enumerate() {
        // The pipe holds what the process wrote before its end. Later output comes from its
        // children.
        let mut left = if open[index] { descriptor.waiting() } else { 0 };
        while left > 0 {
            let length = left.min(CHUNK);
            let read = descriptor.read(&mut first_buffer[..length]).await?;
            if read == 0 {
                break;
            }
            left -= read.min(left);
            if options.shows(*channel) {
                send(sink, channel::message(*channel, &first_buffer[..read])).await?;
            }
        }
    }
    Ok(exit)
}
