//! A deadline for the first byte of a connection, so that silent clients cannot hold connections
//! open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream with a deadline for its first byte. Afterwards the deadlines of the protocol apply.
pub(crate) struct FirstByteInTime<S> {
    stream: S,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> FirstByteInTime<S> {
    pub fn new(stream: S, time: Duration) -> FirstByteInTime<S> {
        FirstByteInTime { stream, deadline: Some(Box::pin(tokio::time::sleep(time))) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstByteInTime<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        match (&mut this.deadline, &polled) {
            (Some(deadline), Poll::Pending) => match deadline.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            },
            (Some(_), Poll::Ready(_)) => {
                this.deadline = None;
                polled
            }
            (None, _) => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstByteInTime<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
