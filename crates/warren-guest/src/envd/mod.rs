//! E2B's envd API: processes, files and directories, as E2B's published SDKs ask for them. Access
//! is decided before a request gets here. A client that reaches the port may do everything that the
//! sandbox may do. Start reading at `process`.

mod connect;
mod files;
mod filesystem;
mod paths;
mod process;
mod user;
mod watch;

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use warren_proto::envd::{FILESYSTEM_SERVICE, PROCESS_SERVICE};

use self::connect::{Code, Failure};
use self::process::Processes;
use self::user::Users;
use self::watch::Watchers;
use crate::Daemon;
use crate::reply::{self, Body};

/// The state that the API keeps between calls.
#[derive(Debug)]
pub(crate) struct Envd {
    users: Users,
    processes: Processes,
    watchers: Watchers,
}

/// The state of the API, which is made by the first request.
#[derive(Debug, Default)]
pub(crate) struct Lazy(OnceLock<Arc<Envd>>);

impl Lazy {
    fn get(&self) -> Arc<Envd> {
        let make = || {
            Arc::new(Envd {
                users: Users::prepare(),
                processes: Processes::default(),
                watchers: Watchers::default(),
            })
        };
        self.0.get_or_init(make).clone()
    }

    /// Returns whether nothing would be lost if the daemon ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.get().is_none_or(|envd| envd.processes.is_empty() && envd.watchers.is_empty())
    }
}

/// Answers one request.
pub(crate) async fn answer(
    daemon: Arc<Daemon>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let envd = daemon.envd.get();
    let path = request.uri().path().to_owned();
    let is_post = request.method() == Method::POST;
    Ok(match path.as_str() {
        "/health" => reply::empty(StatusCode::NO_CONTENT),
        "/files" => files::answer(envd, request).await,
        "/envs" => {
            let variables: std::collections::BTreeMap<String, String> = std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect();
            reply::json(StatusCode::OK, &json!(variables))
        }
        path => match (path.strip_prefix(PROCESS_SERVICE), path.strip_prefix(FILESYSTEM_SERVICE)) {
            (Some(method), _) if is_post => process::answer(envd, method, request).await,
            (_, Some(method)) if is_post => filesystem::answer(envd, method, request).await,
            (Some(_), _) | (_, Some(_)) => reply::empty(StatusCode::METHOD_NOT_ALLOWED),
            (None, None) => {
                connect::unary(Err(Failure::new(Code::NotFound, "there is nothing of that name")))
            }
        },
    })
}

/// Does something that may wait for a disk, beside the event loop.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Failure::new(Code::Internal, "the work was not finished")))
}
