//! A proxy in front of a home's API that loses answers or refuses requests, like a network between
//! a client and a cluster.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The fault that the proxy injects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// The answer to the next POST whose path ends with this is lost. The server has carried it
    /// out.
    LoseAnswerToPost(&'static str),
    /// The answer to the next POST whose path ends with this never comes, and the connection stays
    /// open.
    HoldAnswerToPost(&'static str),
    /// Each DELETE is answered with 403, and does not reach the server.
    RefuseDelete,
}

/// The proxy. Its threads end with the test's process.
#[derive(Debug)]
pub struct FaultyProxy {
    address: SocketAddr,
    fault: Arc<Mutex<Fault>>,
    lost: Arc<AtomicBool>,
}

impl FaultyProxy {
    /// Listens on loopback, in plain HTTP, for the API behind a unix socket.
    pub fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address");
        let proxy = Self { address, fault: Arc::default(), lost: Arc::default() };
        let (fault, lost) = (Arc::clone(&proxy.fault), Arc::clone(&proxy.lost));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let (fault, lost) = (Arc::clone(&fault), Arc::clone(&lost));
                std::thread::spawn(move || carry(client, server, &fault, &lost));
            }
        });
        proxy
    }

    /// Sets the fault from now on.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Returns true if an answer was lost since the last call.
    pub fn has_lost_an_answer(&self) -> bool {
        self.lost.swap(false, Ordering::SeqCst)
    }

    /// Writes a kubeconfig whose context `test` uses the proxy, and whose current context is
    /// invalid.
    pub fn write_kubeconfig(&self, path: &Path) {
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
            "clusters": [
                { "name": "here", "cluster": { "server": format!("http://{}", self.address) } },
                { "name": "nowhere", "cluster": { "server": "http://127.0.0.1:1" } },
            ],
            "users": [{ "name": "me", "user": {} }],
            "contexts": [
                { "name": "test", "context": { "cluster": "here", "user": "me" } },
                { "name": "nowhere", "context": { "cluster": "nowhere", "user": "me" } },
            ],
        });
        std::fs::write(path, kubeconfig.to_string()).expect("write the kubeconfig");
    }
}

/// Forwards one connection in both directions. Requests of this size arrive in one piece.
fn carry(client: TcpStream, server: UnixStream, fault: &Mutex<Fault>, lost: &Arc<AtomicBool>) {
    let swallow = Arc::new(AtomicBool::new(false));
    let mut answers = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
    let hold = Arc::new(AtomicBool::new(false));
    let (swallowing, holding, lost) = (Arc::clone(&swallow), Arc::clone(&hold), Arc::clone(lost));
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(length @ 1..) = answers.0.read(&mut buffer) {
            if holding.load(Ordering::SeqCst) {
                lost.store(true, Ordering::SeqCst);
                continue;
            }
            if swallowing.load(Ordering::SeqCst) {
                lost.store(true, Ordering::SeqCst);
                break;
            }
            if answers.1.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = answers.0.shutdown(Shutdown::Both);
        let _ = answers.1.shutdown(Shutdown::Both);
    });
    let (mut client, mut server) = (client, server);
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = client.read(&mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        let line = line.lines().next().unwrap_or_default();
        let mut fault = fault.lock().unwrap_or_else(PoisonError::into_inner);
        match *fault {
            Fault::LoseAnswerToPost(end) | Fault::HoldAnswerToPost(end) => {
                let path = line.strip_prefix("POST ").and_then(|rest| rest.split(['?', ' ']).next());
                if path.is_some_and(|path| path.ends_with(end)) {
                    let which = if matches!(*fault, Fault::HoldAnswerToPost(_)) { &hold } else { &swallow };
                    which.store(true, Ordering::SeqCst);
                    *fault = Fault::None;
                }
            }
            Fault::RefuseDelete if line.starts_with("DELETE ") => {
                let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"the proxy refuses"}"#;
                let answer = format!(
                    "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = client.write_all(answer.as_bytes());
                break;
            }
            _ => {}
        }
        drop(fault);
        if server.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}
