//! The daemon inside a sandbox: it runs commands and reads and writes files for clients outside, over
//! the runtime API of agent-sandbox. It is started by the node at the first connection and runs as the
//! container's user, so that it can do nothing that the sandbox could not. It knows nothing of
//! Kubernetes. Start reading at `serve`.

mod file_body;
pub mod multipart;
pub mod root;
mod run;
mod serve;
pub mod words;

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use warren_sys::socket::Seqpacket;

use self::root::Root;

/// As many connections are served at once; others wait to be accepted.
const CONNECTIONS: u32 = 256;
/// A connection without a request for so long is closed.
const CONNECTION_IDLE: Duration = Duration::from_secs(75);
/// The published runtime's limit for a command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How to serve.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where paths begin and commands run.
    pub root: Root,
    /// The longest that a command may run unless its request says otherwise.
    pub timeout: Duration,
    /// The command line of the program that `POST /agent` runs.
    pub agent: Option<String>,
    /// Returns after so long without a connection. Whoever started the daemon starts it again.
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

/// Receives the listening socket that the shim hands over through the standard input.
pub fn inherited_listener() -> io::Result<TcpListener> {
    let socket = Seqpacket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let packet = socket.receive(64)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let listener: Option<OwnedFd> = packet.descriptors.into_iter().next();
    Ok(listener.ok_or(io::ErrorKind::InvalidData)?.into())
}

/// Serves until there is nothing to do (see [`Config::idle`]), on the calling thread.
pub fn serve(config: Config, listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Few: each has a stack, and what they do is to wait for the same disk.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    runtime.block_on(async { accept(config, tokio::net::TcpListener::from_std(listener)?).await })
}

async fn accept(config: Config, listener: tokio::net::TcpListener) -> io::Result<()> {
    let config = Arc::new(config);
    let connections = Arc::new(Semaphore::new(CONNECTIONS as usize));
    loop {
        let permit = connections.clone().acquire_owned().await.map_err(io::Error::other)?;
        let accepted = match config.idle {
            None => listener.accept().await,
            Some(idle) => match tokio::time::timeout(idle, listener.accept()).await {
                Ok(accepted) => accepted,
                Err(_) => {
                    drop(permit);
                    if connections.available_permits() == CONNECTIONS as usize {
                        return Ok(());
                    }
                    continue;
                }
            },
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors or memory, or a client that has gone again.
                eprintln!("accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let config = config.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| serve::answer(config.clone(), request));
            // A client that breaks off is no error of ours.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(CONNECTION_IDLE)
                .max_buf_size(128 << 10)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(permit);
        });
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
        let serving = std::thread::spawn(move || serve(config, listener));
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
