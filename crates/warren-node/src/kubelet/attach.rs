//! Carries the streams of a container's main process in WebSocket messages. When the client leaves,
//! the container runs on.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use warren_oci::client::CallError;
use warren_oci::protocol::{Answer, Call};

use super::channel::{self, Protocol};
use super::session::{self, CHUNK, InputEnd, InputOver, Sink, StreamOptions, read_from, send};
use crate::descriptor::Descriptor;
use crate::shim::Shim;

/// A client that reads nothing for so long is disconnected, since its container waits for it. Long
/// enough for a person who has paused a terminal to read, and for a connection that recovers.
const PATIENCE: Duration = Duration::from_secs(120);

/// The container to attach to.
pub(super) struct AttachTarget {
    pub(super) shim: Shim,
    pub(super) container: String,
    /// True for `stdinOnce`: its input is for one client and ends with it.
    pub(super) input_once: bool,
}

/// Carries the container's streams until it ends or the client leaves.
pub(super) async fn serve<S>(stream: S, protocol: Protocol, mut target: AttachTarget, options: StreamOptions)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, mut messages) = session::split(session::open(stream).await);
    let (outputs, input) = match start(&mut target, &options).await {
        Ok(streams) => streams,
        Err(error) => {
            let last = channel::failure_status(&format!("error attaching to container: {error}"), None);
            return session::goodbye(last, &sink, &mut messages).await;
        }
    };
    let AttachTarget { shim, container, input_once } = &mut target;
    let input_over = async {
        loop {
            match session::carry_input(&input, &mut messages, &sink, protocol).await {
                InputOver::ClientGone => return InputOver::ClientGone,
                InputOver::Ended if !options.stdin => {}
                // As in container runtimes: with `stdinOnce` the end of the client's input closes
                // the container's input, and the output continues. Otherwise the session ends with
                // the client's input.
                InputOver::Ended if *input_once && input.terminal.is_none() => {
                    input.close().await;
                    let _ = shim.call(Call::EndInput { container: container.clone() }).await;
                }
                InputOver::Ended => return InputOver::Ended,
            }
        }
    };
    let last = tokio::select! {
        ended = carry_output(&outputs, &sink, &options) => match ended {
            Ok(()) => channel::exit_status(0),
            Err(_) => return,
        },
        over = input_over => match over {
            InputOver::Ended => channel::exit_status(0),
            InputOver::ClientGone => return,
        },
    };
    session::goodbye(last, &sink, &mut messages).await;
}

async fn start(
    target: &mut AttachTarget,
    options: &StreamOptions,
) -> Result<(Vec<(u8, Descriptor)>, InputEnd), CallError> {
    let call = Call::Attach { container: target.container.clone(), stdin: options.stdin };
    let (answer, descriptors) = target.shim.call(call).await?;
    let Answer::Attached { stdin, terminal } = answer else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
    let input = if stdin { Some(next()?) } else { None };
    let size = match &input {
        Some(input) if terminal => Some(input.try_clone()?),
        _ => None,
    };
    let mut outputs = vec![(channel::STDOUT, Descriptor::new(next()?)?)];
    if !terminal {
        outputs.push((channel::STDERR, Descriptor::new(next()?)?));
    }
    let descriptor = input.map(Descriptor::new).transpose()?;
    Ok((outputs, InputEnd { descriptor: Mutex::new(descriptor), terminal: size }))
}

/// Sends output to the client until all streams have ended.
async fn carry_output<S>(
    outputs: &[(u8, Descriptor)],
    sink: &Sink<S>,
    options: &StreamOptions,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut open = [!outputs.is_empty(), outputs.len() > 1];
    let [first, second] = &mut buffers;
    while open[0] || open[1] {
        let (index, length) = tokio::select! {
            read = read_from(outputs, 0, first), if open[0] => (0, read?),
            read = read_from(outputs, 1, second), if open[1] => (1, read?),
        };
        let data = if index == 0 { &first[..length] } else { &second[..length] };
        if length == 0 {
            open[index] = false;
        } else if options.shows(outputs[index].0) {
            let sent = tokio::time::timeout(PATIENCE, send(sink, channel::message(outputs[index].0, data)));
            sent.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
    Ok(())
}
