//! Sandboxes as tools of the Model Context Protocol: create and delete them, run commands and code
//! in them, read and write their files.
//!
//! One [`serve`] call is one client on a pair of streams; [`http::Clients`] serves many over HTTP.
//! A client sees only the sandboxes that its credential made, unless [`Config::all`] is set, and
//! all of them are deleted when it goes. If this process is killed, their lease ends them. It
//! parses no arguments, listens on no socket, knows no keys and starts no daemon: its caller brings
//! a [`Connect`] and checked requests. Start reading at [`server`], which does what the tools say.

mod arguments;
mod commands;
mod contexts;
mod edit;
mod handler;
pub mod http;
mod output;
mod resources;
mod sandboxes;
mod server;
mod tools;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use warren_client::kube::Client;

pub use server::Server;

/// A connection on its way, or why there is none.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Client, String>> + Send + 'a>>;

/// Reaches the home. Called for every tool call, so that a home which was restarted is found again.
pub trait Connect: Send + Sync + 'static {
    /// Connects, and starts the home first if it is not running and can be started from here.
    fn connect(&self) -> Connecting<'_>;

    /// Connects to a home that runs already.
    fn reconnect(&self) -> Connecting<'_>;

    /// Returns the URL of the router of a local home that runs.
    fn router(&self) -> Result<String, String>;
}

impl<C: Connect + ?Sized> Connect for Arc<C> {
    fn connect(&self) -> Connecting<'_> {
        self.as_ref().connect()
    }

    fn reconnect(&self) -> Connecting<'_> {
        self.as_ref().reconnect()
    }

    fn router(&self) -> Result<String, String> {
        self.as_ref().router()
    }
}

/// The settings for one client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Marks what this client makes; a valid label value that is not guessable.
    pub session: String,
    /// True if the client also sees and uses sandboxes that others made.
    pub all: bool,
    /// The namespace that it works in; the client's default if none is named.
    pub namespace: Option<String>,
    /// The image of sandboxes for which the client names nothing.
    pub image: Option<String>,
    /// True if the home is Warren's own, with its node.
    pub local_home: bool,
    /// The time that sandboxes outlive this process if it is killed. Renewed at a third of it.
    pub lease: Duration,
    /// The most sandboxes that the client may have at a time.
    pub most_sandboxes: usize,
}

/// Serves one client until its stream ends or `shutdown` does, and then deletes everything that it
/// made.
pub async fn serve<R, W>(
    config: Config,
    connect: impl Connect,
    (reader, writer): (R, W),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let server = Server::new(config, Box::new(connect));
    tokio::pin!(shutdown);
    let served = async {
        let running = match server.clone().serve((reader, writer)).await {
            Ok(running) => running,
            // A client that goes before it says anything is no failure.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(ServeError::Protocol(error.to_string())),
        };
        running.waiting().await.map(drop).map_err(|error| ServeError::Protocol(error.to_string()))
    };
    let result = tokio::select! {
        result = served => result,
        () = &mut shutdown => Ok(()),
        never = server.keep() => match never {},
    };
    server.close().await.map_err(ServeError::Cleanup)?;
    result
}

/// A client could not be served to its end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The two sides do not understand each other.
    #[error("speak MCP with the client: {0}")]
    Protocol(String),
    /// Sandboxes of the client could not be deleted.
    #[error("delete the client's sandboxes, which now end with their lease: {0}")]
    Cleanup(String),
}
