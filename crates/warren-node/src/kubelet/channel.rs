//! Implements the channel protocols `v4.channel.k8s.io` and `v5.channel.k8s.io`: each WebSocket
//! message starts with the number of its stream.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;
/// Version 5 only: the rest of the message is the number of a stream that its sender closes.
pub(super) const CLOSE: u8 = 255;

/// A version of the protocol. As in kubelet, the first known version that a client offers is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    V4,
    V5,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::V4 => "v4.channel.k8s.io",
            Protocol::V5 => "v5.channel.k8s.io",
        }
    }

    /// Chooses the version from the value of `Sec-WebSocket-Protocol`.
    pub(super) fn negotiate(offered: &str) -> Option<Protocol> {
        offered.split(',').find_map(|name| match name.trim() {
            "v5.channel.k8s.io" => Some(Protocol::V5),
            "v4.channel.k8s.io" => Some(Protocol::V4),
            _ => None,
        })
    }
}

/// A client's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Bytes for the process.
    Stdin(Bytes),
    /// The client closes its input.
    CloseStdin,
    /// The client's terminal has a new size.
    Resize { columns: u16, rows: u16 },
    /// A message to ignore.
    Other,
}

/// A terminal's size, `{"Width":80,"Height":24}`, as Go writes it. kube-rs and kubectl agree on the
/// case.
#[derive(Deserialize)]
struct TerminalSize {
    #[serde(rename = "Width")]
    columns: u16,
    #[serde(rename = "Height")]
    rows: u16,
}

pub(super) fn parse(protocol: Protocol, mut message: Bytes) -> Input {
    if message.is_empty() {
        return Input::Other;
    }
    let channel = message.split_to(1)[0];
    match channel {
        STDIN => Input::Stdin(message),
        RESIZE => match serde_json::from_slice(&message) {
            Ok(TerminalSize { columns, rows }) => Input::Resize { columns, rows },
            Err(_) => Input::Other,
        },
        CLOSE if protocol == Protocol::V5 && message.first() == Some(&STDIN) => Input::CloseStdin,
        _ => Input::Other,
    }
}

/// Builds a message on a stream.
pub(super) fn message(channel: u8, data: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(data.len() + 1);
    message.put_u8(channel);
    message.put_slice(data);
    message.freeze()
}

/// Builds the last message of a session, as kubelet does.
pub(super) fn exit_status(exit_code: i32) -> Bytes {
    let status = if exit_code == 0 {
        json!({"metadata": {}, "status": "Success"})
    } else {
        json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with exit code {exit_code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": exit_code.to_string()}]},
        })
    };
    message(ERROR, status.to_string().as_bytes())
}

/// Builds the last message of a session without an exit code. It is kubelet's, with one more cause:
/// the exit code that a shell would give a command that cannot be started, so that a client can
/// pass it on.
pub(super) fn failure_status(error: &str, exit_code: Option<i32>) -> Bytes {
    let mut causes = vec![json!({"message": error})];
    causes.extend(exit_code.map(|code| json!({"reason": "ExitCode", "message": code.to_string()})));
    let status = json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {error}"),
        "reason": "InternalError",
        "details": {"causes": causes},
        "code": 500,
    });
    message(ERROR, status.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_first_known_protocol_is_taken() {
        assert_eq!(Protocol::negotiate("v5.channel.k8s.io, v4.channel.k8s.io"), Some(Protocol::V5));
        assert_eq!(Protocol::negotiate("base64.channel.k8s.io,v4.channel.k8s.io"), Some(Protocol::V4));
        assert_eq!(Protocol::negotiate("SPDY/3.1"), None);
    }

    #[test]
    fn messages_are_told_apart_by_their_first_byte() {
        let parse = |protocol, bytes: &'static [u8]| parse(protocol, Bytes::from_static(bytes));
        assert_eq!(parse(Protocol::V5, b"\x00data"), Input::Stdin(Bytes::from_static(b"data")));
        assert_eq!(parse(Protocol::V5, b"\xff\x00"), Input::CloseStdin);
        assert_eq!(parse(Protocol::V4, b"\xff\x00"), Input::Other);
        assert_eq!(parse(Protocol::V5, b"\xff\x01"), Input::Other);
        assert_eq!(
            parse(Protocol::V4, b"\x04{\"Width\":80,\"Height\":24}"),
            Input::Resize { columns: 80, rows: 24 }
        );
        assert_eq!(parse(Protocol::V4, b"\x04{\"Width\":-1}"), Input::Other);
        assert_eq!(parse(Protocol::V4, b""), Input::Other);
    }

    #[test]
    fn the_last_message_is_kubelets() {
        let text = |message: Bytes| String::from_utf8(message[1..].to_vec()).unwrap();
        expect![[r#"{"metadata":{},"status":"Success"}"#]].assert_eq(&text(exit_status(0)));
        expect![[r#"{"metadata":{},"status":"Failure","message":"command terminated with exit code 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#]]
            .assert_eq(&text(exit_status(7)));
        assert_eq!(exit_status(7)[0], ERROR);
    }
}
