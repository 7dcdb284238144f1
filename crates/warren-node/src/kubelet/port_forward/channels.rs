//! Implements `v4.channel.k8s.io` for ports. The request names the ports. The n-th has the channels
//! 2n for data and 2n+1 for errors. The first message on each contains the port again.

use bytes::{Buf as _, Bytes};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tracing::debug;

use super::{INPUT_AHEAD, MESSAGES_AHEAD, Target};
use crate::kubelet::{channel, session};

pub(super) const PROTOCOL: &str = "v4.channel.k8s.io";
/// The most ports: each has two channels, numbers are one byte, and another protocol uses the last.
const MOST_PORTS: usize = 127;

/// Parses the ports of a request: `port=80&port=443`, or `ports=80,443`.
pub(super) fn ports(query: &str) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if matches!(name.as_ref(), "port" | "ports") {
            for word in value.split(',') {
                let port = word.parse::<u16>().ok().filter(|port| *port > 0);
                let shown = || word.chars().take(64).collect::<String>();
                ports.push(port.ok_or_else(|| format!("invalid port {:?}", shown()))?);
            }
        }
    }
    match ports.len() {
        0 => Err("query parameter \"port\" is required".to_owned()),
        1..=MOST_PORTS => Ok(ports),
        _ => Err(format!("no more than {MOST_PORTS} ports can be forwarded at once")),
    }
}

/// Forwards one connection for each port until all of them or the client are done.
pub(super) async fn serve<S>(stream: S, target: Target, ports: Vec<u16>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sink, mut messages) = session::open(stream).await.split();
    let (output, mut outgoing) = mpsc::channel::<Bytes>(MESSAGES_AHEAD);
    let mut inputs = Vec::new();
    let mut connections = JoinSet::new();
    for (index, port) in ports.into_iter().enumerate() {
        let data_channel = u8::try_from(2 * index).unwrap_or(u8::MAX);
        let (input, received) = mpsc::channel(INPUT_AHEAD);
        inputs.push(Some(input));
        let (target, output) = (target.clone(), output.clone());
        connections.spawn(async move {
            let named = port.to_le_bytes();
            for channel in [data_channel, data_channel + 1] {
                let _ = output.send(channel::message(channel, &named)).await;
            }
            let encode = move |data: &[u8]| channel::message(data_channel, data);
            if let Err(problem) = target.carry(port, received, &output, encode).await {
                let _ = output.send(channel::message(data_channel + 1, problem.as_bytes())).await;
            }
        });
    }
    // The receiver ends when the last connection drops its sender.
    drop(output);
    let to_client = async {
        while let Some(message) = outgoing.recv().await {
            if sink.send(Message::Binary(message)).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    };
    let from_client = async {
        while let Some(Ok(message)) = messages.next().await {
            let Message::Binary(mut data) = message else { continue };
            if data.is_empty() {
                continue;
            }
            let channel = usize::from(data.get_u8());
            let slot = inputs.get_mut(channel / 2).filter(|_| channel % 2 == 0);
            if let Some(slot @ Some(_)) = slot {
                let sent = match slot {
                    Some(input) => input.send(data).await.is_ok(),
                    None => false,
                };
                // The pod has closed this connection: drop further input.
                if !sent {
                    *slot = None;
                }
            }
        }
    };
    tokio::select! {
        () = to_client => {}
        () = from_client => debug!("client has left its forwarded ports"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_both_spellings_and_nonsense_is_named() {
        assert_eq!(ports("port=80&port=443").unwrap(), [80, 443]);
        assert_eq!(ports("ports=80,443").unwrap(), [80, 443]);
        for (query, problem) in [
            ("", "query parameter \"port\" is required"),
            ("port=0", "invalid port \"0\""),
            ("port=70000", "invalid port \"70000\""),
            ("port=", "invalid port \"\""),
        ] {
            assert_eq!(ports(query).unwrap_err(), problem, "{query}");
        }
        assert!(ports(&"port=1&".repeat(128)).is_err());
    }
}
