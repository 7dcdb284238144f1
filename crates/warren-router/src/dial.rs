//! Connects to a pod.

use std::io;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use warren_decide::route::Route;

/// A connection to a port of a pod.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to pods.
pub trait Dialer: Send + Sync + 'static {
    /// Connects to a port of a pod. An error means that not a byte has been sent.
    fn dial<'a>(&'a self, route: &'a Route, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// Connects to pods by their addresses.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByAddress;

impl Dialer for ByAddress {
    fn dial<'a>(&'a self, route: &'a Route, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let address = route
                .address
                .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "the pod has no address"))?;
            let stream = TcpStream::connect((address, port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
