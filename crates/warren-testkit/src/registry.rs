//! A registry on loopback for tests: the parts of the OCI distribution protocol that a pull needs,
//! with faults of real registries on request.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::images::{TestImage, digest};

/// A registry. It ends when dropped.
#[derive(Debug)]
pub struct TestRegistry {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    address: String,
    blobs: HashMap<String, Vec<u8>>,
    /// By repository and by tag or digest.
    manifests: BTreeMap<(String, String), Vec<u8>>,
    access: Access,
    /// If set, longer blobs are cut off after this many bytes, unless a range is requested.
    break_off_at: Option<usize>,
    /// If set, blobs are redirected to this origin.
    redirects: Option<String>,
    requests: Vec<String>,
}

/// The access control of a registry.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Access {
    /// No authentication.
    #[default]
    Open,
    /// Requires this name and password.
    Basic(String, String),
    /// Requires a token, whose request needs this name and password if set.
    Token(Option<(String, String)>),
}

const TOKEN: &str = "a-token-for-tests";

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The length at which the body is cut off, if any.
    cut: Option<usize>,
}

impl TestRegistry {
    /// Starts an empty registry without authentication.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared.state().address = address.to_string();
        let serving = shared.clone();
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let serving = serving.clone();
                if let Ok(stream) = stream {
                    // Ignore clients that disconnect early.
                    std::thread::spawn(move || drop(serve(&serving, stream)));
                }
            }
        });
        Ok(Self { address, shared, listening: Some(listening) })
    }

    /// Returns `127.0.0.1` with the port, the prefix of its images' names.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// Returns the name of an image in it.
    pub fn image(&self, repository: &str, version: &str) -> String {
        let joint = if version.contains(':') { '@' } else { ':' };
        format!("{}/{repository}{joint}{version}", self.address)
    }

    /// Adds an image under a tag and under its digest.
    pub fn put(&self, repository: &str, tag: &str, image: &TestImage) {
        for blob in image.blobs() {
            self.put_blob(&digest(blob), blob);
        }
        self.put_manifest(repository, tag, &image.manifest);
    }

    /// Adds any document as a manifest.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &[u8]) {
        for version in [tag.to_owned(), digest(manifest)] {
            self.shared.state().manifests.insert((repository.to_owned(), version), manifest.to_vec());
        }
    }

    /// Adds this content under this digest, which may be wrong.
    pub fn put_blob(&self, digest: &str, content: &[u8]) {
        self.shared.state().blobs.insert(digest.to_owned(), content.to_vec());
    }

    /// Changes the access control.
    pub fn set_access(&self, access: Access) {
        self.shared.state().access = access;
    }

    /// Cuts off blobs after this many bytes from now on, so that clients must request the rest.
    pub fn break_off_at(&self, bytes: usize) {
        self.shared.state().break_off_at = Some(bytes);
    }

    /// Redirects blobs to another origin from now on, to which clients must not send credentials.
    pub fn redirect_blobs(&self) {
        let port = self.address.port();
        self.redirect_blobs_to(&format!("http://localhost:{port}"));
    }

    /// Redirects blobs to this origin, which must lead back here.
    pub fn redirect_blobs_to(&self, origin: &str) {
        self.shared.state().redirects = Some(origin.to_owned());
    }

    /// Returns the requests in order: `METHOD path status`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wake the listener, which then sees that it must end.
        drop(TcpStream::connect(self.address));
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one request per connection.
fn serve(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        if lines.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let answer = {
        let mut state = shared.state();
        let answer = state.answer(target, &headers);
        let status = answer.status.split(' ').next().unwrap_or_default();
        state.requests.push(format!("{method} {target} {status}"));
        answer
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: {}\r\n",
        answer.status,
        answer.body.len()
    )?;
    for (name, value) in &answer.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    let sent = answer.cut.unwrap_or(answer.body.len()).min(answer.body.len());
    stream.write_all(&answer.body[..sent])?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // Read the rest of the request: otherwise closing would reset the connection, which could
    // overtake the answer.
    io::copy(&mut lines.take(1 << 20), &mut io::sink()).map(drop)
}

fn plain(status: &'static str, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, headers: Vec::new(), body: body.into(), cut: None }
}

impl State {
    fn answer(&self, target: &str, headers: &HashMap<String, String>) -> Answer {
        let path = target.split('?').next().unwrap_or_default();
        if path == "/token" {
            return self.token(headers);
        }
        if let Some(digest) = path.strip_prefix("/elsewhere/") {
            return match headers.contains_key("authorization") {
                true => plain("400 Bad Request", "who you are is none of my business"),
                false => self.blob(digest, headers),
            };
        }
        if let Some(refusal) = self.refusal(headers) {
            return refusal;
        }
        let Some(rest) = path.strip_prefix("/v2/") else { return not_found("PAGE_UNKNOWN") };
        if rest.is_empty() {
            // Clients detect a registry by this path, and docker requires the header.
            let version = ("Docker-Distribution-Api-Version", "registry/2.0".to_owned());
            return Answer { headers: vec![version], ..plain("200 OK", "{}") };
        }
        if let Some((repository, version)) = rest.split_once("/manifests/") {
            return match self.manifests.get(&(repository.to_owned(), version.to_owned())) {
                Some(manifest) => {
                    let kind = "application/vnd.oci.image.manifest.v1+json".to_owned();
                    Answer { headers: vec![("Content-Type", kind)], ..plain("200 OK", manifest.clone()) }
                }
                None => not_found("MANIFEST_UNKNOWN"),
            };
        }
        let Some((_, digest)) = rest.split_once("/blobs/") else { return not_found("PAGE_UNKNOWN") };
        match &self.redirects {
            Some(origin) => {
                let place = format!("{origin}/elsewhere/{digest}");
                Answer { headers: vec![("Location", place)], ..plain("307 Temporary Redirect", "") }
            }
            None => self.blob(digest, headers),
        }
    }

    fn blob(&self, digest: &str, headers: &HashMap<String, String>) -> Answer {
        let Some(blob) = self.blobs.get(digest) else { return not_found("BLOB_UNKNOWN") };
        let from = headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match from {
            Some(from) if from < blob.len() => {
                let range = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
                let rest = blob[from..].to_vec();
                Answer { headers: vec![("Content-Range", range)], ..plain("206 Partial Content", rest) }
            }
            Some(_) => plain("416 Range Not Satisfiable", ""),
            None => Answer {
                cut: self.break_off_at.filter(|length| *length < blob.len()),
                ..plain("200 OK", blob.clone())
            },
        }
    }

    fn refusal(&self, headers: &HashMap<String, String>) -> Option<Answer> {
        let shown = headers.get("authorization").map_or("", String::as_str);
        let (wanted, challenge) = match &self.access {
            Access::Open => return None,
            Access::Basic(user, password) => (basic(user, password), "Basic realm=\"tests\"".to_owned()),
            Access::Token(_) => (
                format!("Bearer {TOKEN}"),
                format!("Bearer realm=\"http://{}/token\",service=\"tests\"", self.address),
            ),
        };
        (shown != wanted).then(|| Answer {
            headers: vec![("WWW-Authenticate", challenge)],
            ..plain(
                "401 Unauthorized",
                r#"{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}"#,
            )
        })
    }

    fn token(&self, headers: &HashMap<String, String>) -> Answer {
        let shown = headers.get("authorization").map_or("", String::as_str);
        match &self.access {
            Access::Token(Some((user, password))) if shown != basic(user, password) => {
                plain("401 Unauthorized", r#"{"errors":[{"code":"DENIED","message":"who are you?"}]}"#)
            }
            _ => plain("200 OK", format!(r#"{{"token":"{TOKEN}","expires_in":300}}"#)),
        }
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn not_found(code: &str) -> Answer {
    plain(
        "404 Not Found",
        format!(r#"{{"errors":[{{"code":"{code}","message":"not known to this registry"}}]}}"#),
    )
}
