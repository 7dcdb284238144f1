//! The daemon inside a sandbox: it runs commands and reads and writes files for clients outside, over
//! the runtime API of agent-sandbox and over sandboxd's REST and gRPC APIs. It is started by the node at
//! the first connection and runs as the container's user, so that it can do nothing that the sandbox
//! could not. It knows nothing of Kubernetes. Start reading at `runtime_api`.

mod envd;
mod file_body;
mod files_api;
mod grpc;
pub mod multipart;
mod process_api;
mod protobuf;
mod reply;
pub mod root;
mod run;
mod runtime_api;
pub mod task;
pub mod words;

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use warren_proto::{files, processes, runtime};
use warren_sys::socket::Seqpacket;

use self::process_api::Processes;
use self::root::Root;

/// As many connections are served at once; others wait to be accepted.
const CONNECTIONS: usize = 256;
/// Enough for files, and one for each terminal.
const MAX_BLOCKING_THREADS: usize = 64;
/// A connection without a request for so long is closed.
const CONNECTION_IDLE: Duration = Duration::from_secs(75);
/// The published runtime's limit for a command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The settings of the daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory that paths begin at and commands run in.
    pub root: Root,
    /// The longest that a command may run unless its request says otherwise.
    pub timeout: Duration,
    /// The command line of the program that `POST /agent` runs.
    pub agent: Option<String>,
    /// The server returns after this long without a connection. The program that started the daemon
    /// starts it again.
    pub idle: Option<Duration>,
}

impl Config {
    /// Reads a configuration from environment variables: `SANDBOX_BASE_DIR` or
    /// `ALLOWED_ROOT_DIRECTORY`, `SANDBOX_EXEC_TIMEOUT_SECONDS` and `SANDBOX_AGENT_COMMAND`.
    pub fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Config {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let base = variable("SANDBOX_BASE_DIR").or_else(|| variable("ALLOWED_ROOT_DIRECTORY"));
        let base = base.unwrap_or_else(|| {
            let found = ["/app", "/workspace"].into_iter().find(|path| Path::new(path).is_dir());
            OsString::from(found.unwrap_or("/workspace"))
        });
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let seconds = text("SANDBOX_EXEC_TIMEOUT_SECONDS").and_then(|text| text.trim().parse().ok());
        let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Config {
            root: Root::new(base),
            timeout: timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(DEFAULT_TIMEOUT),
            agent: text("SANDBOX_AGENT_COMMAND"),
            idle: None,
        }
    }
}

/// An API that is served on a port of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// agent-sandbox's runtime API, over HTTP/1.1.
    Runtime,
    /// sandboxd's REST API, over HTTP/1.1.
    Files,
    /// sandboxd's `process.v1.ProcessService`, gRPC over HTTP/2.
    Processes,
    /// E2B's envd API, over HTTP/1.1.
    Envd,
}

impl Api {
    fn on_port(port: u16) -> Option<Api> {
        match port {
            runtime::PORT => Some(Api::Runtime),
            files::PORT => Some(Api::Files),
            processes::PORT => Some(Api::Processes),
            warren_proto::envd::PORT => Some(Api::Envd),
            _ => None,
        }
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct Daemon {
    config: Config,
    processes: Processes,
    envd: envd::Lazy,
    started: Instant,
    connections: Arc<Semaphore>,
    /// The number of ports that are served.
    listeners: usize,
}

/// Receives the listening sockets that the shim hands over through the standard input. The port says
/// which API is served on it.
pub fn inherited_listeners() -> io::Result<Vec<(Api, TcpListener)>> {
    let socket = Seqpacket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let packet = socket.receive(64)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut listeners = Vec::new();
    for listener in packet.descriptors.into_iter().map(TcpListener::from) {
        let port = listener.local_addr()?.port();
        let unknown = || io::Error::other(format!("there is no API on port {port}"));
        listeners.push((Api::on_port(port).ok_or_else(unknown)?, listener));
    }
    Ok(listeners)
}

/// Serves until there is nothing to do (see [`Config::idle`]), on the calling thread.
pub fn serve(config: Config, listeners: Vec<(Api, TcpListener)>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    runtime.block_on(async {
        let daemon = Arc::new(Daemon {
            config,
            processes: Processes::default(),
            envd: envd::Lazy::default(),
            started: Instant::now(),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            listeners: listeners.len(),
        });
        let mut accepting = JoinSet::new();
        for (api, listener) in listeners {
            listener.set_nonblocking(true)?;
            accepting.spawn(accept(daemon.clone(), api, tokio::net::TcpListener::from_std(listener)?));
        }
        // One that ends has found nothing to do on any port.
        accepting.join_next().await.unwrap_or(Ok(Ok(()))).map_err(io::Error::other)?
    })
}

async fn accept(daemon: Arc<Daemon>, api: Api, listener: tokio::net::TcpListener) -> io::Result<()> {
    loop {
        let permit = daemon.connections.clone().acquire_owned().await.map_err(io::Error::other)?;
        let accepted = match daemon.config.idle {
            None => listener.accept().await,
            Some(idle) => match tokio::time::timeout(idle, listener.accept()).await {
                Ok(accepted) => accepted,
                Err(_) => {
                    drop(permit);
                    if daemon.is_idle() {
                        return Ok(());
                    }
                    continue;
                }
            },
        };
        match accepted {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                let daemon = daemon.clone();
                tokio::spawn(async move {
                    serve_connection(daemon, api, stream).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors or memory, or a client that has gone again.
                eprintln!("accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

impl Daemon {
    /// Returns true if no connection is open and no state is left that clients come back for. Each
    /// task that waits for a connection holds a permit. The caller does not hold one.
    fn is_idle(&self) -> bool {
        self.connections.available_permits() + self.listeners == CONNECTIONS + 1 && self.envd.is_idle()
    }
}

/// Serves one connection to its end. A client that breaks off is no error of ours.
async fn serve_connection(daemon: Arc<Daemon>, api: Api, stream: tokio::net::TcpStream) {
    let stream = TokioIo::new(stream);
    let mut http1 = hyper::server::conn::http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(CONNECTION_IDLE).max_buf_size(128 << 10);
    match api {
        Api::Runtime => {
            let service = service_fn(move |request| runtime_api::answer(daemon.clone(), request));
            let _ = http1.serve_connection(stream, service).await;
        }
        Api::Files => {
            let service = service_fn(move |request| files_api::answer(daemon.clone(), request));
            let _ = http1.serve_connection(stream, service).await;
        }
        Api::Envd => {
            let service = service_fn(move |request| envd::answer(daemon.clone(), request));
            let _ = http1.serve_connection(stream, service).await;
        }
        Api::Processes => {
            let service = service_fn(move |request| process_api::answer(daemon.clone(), request));
            let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            http2
                .timer(TokioTimer::new())
                .keep_alive_interval(CONNECTION_IDLE)
                .max_header_list_size(16 << 10);
            let _ = http2.serve_connection(stream, service).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// Sends requests to a daemon of the test's own, each on a connection of its own.
    fn asked(base: &Path, requests: &[&str]) -> Vec<String> {
        let config =
            Config { idle: Some(Duration::from_millis(200)), ..config(&[("SANDBOX_BASE_DIR", "/")]) };
        let config = Config { root: Root::new(base), ..config };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || serve(config, vec![(Api::Runtime, listener)]));
        let answers = requests.iter().map(|request| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            let (line, rest) = request.split_once('\n').unwrap();
            write!(stream, "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{rest}").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answers = answers.collect();
        serving.join().unwrap().expect("it ends when there is nothing to do");
        answers
    }

    #[test]
    fn requests_are_answered_and_the_daemon_ends_when_it_is_idle() {
        let base = tempfile::tempdir().unwrap();
        let chunked = "POST /upload\ntransfer-encoding: chunked\r\ncontent-type: multipart/form-data; \
                       boundary=X\r\n\r\n4\r\n--X\r\r\n41\r\n\ncontent-disposition: form-data; \
                       name=file; filename=a/b.txt\r\n\r\nh\r\nb\r\nello\r\n--X--\r\n0\r\n\r\n";
        let answers = asked(
            base.path(),
            &[
                "GET /\n\r\n",
                "POST /execute\ncontent-length: 21\r\n\r\n{\"command\":\"echo hi\"}",
                chunked,
                "GET /download/a%2Fb.txt\n\r\n",
                "GET /list/a\n\r\n",
                "GET /exists/%252e%252e%2Fx\n\r\n",
                "PUT /\n\r\n",
                "GET /other\n\r\n",
            ],
        );
        for (answer, (status, content)) in answers.iter().zip([
            ("200", "\"ok\""),
            ("200", "\"stdout\":\"hi\\n\""),
            ("200", "a/b.txt"),
            ("200", "hello"),
            ("200", "\"size\":5,\"type\":\"file\""),
            ("403", "Access denied"),
            ("405", ""),
            ("404", "Not Found"),
        ]) {
            assert_eq!(answer.get(9..12), Some(status), "{answer}");
            assert!(answer.contains(content), "{answer}");
        }
    }

    fn config(variables: &[(&str, &str)]) -> Config {
        Config::from_environment(|wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_environment_says_where_and_how_long() {
        let given = config(&[("SANDBOX_BASE_DIR", "/srv/x"), ("SANDBOX_EXEC_TIMEOUT_SECONDS", "2.5")]);
        assert_eq!(given.root.path(), Path::new("/srv/x"));
        assert_eq!(given.timeout, Duration::from_millis(2500));
        let by_node = config(&[("ALLOWED_ROOT_DIRECTORY", "/work"), ("SANDBOX_EXEC_TIMEOUT_SECONDS", "-1")]);
        assert_eq!(by_node.root.path(), Path::new("/work"));
        assert_eq!(by_node.timeout, DEFAULT_TIMEOUT);
    }
}
