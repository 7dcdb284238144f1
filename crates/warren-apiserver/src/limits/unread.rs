//! The remainder of a request body after the request was refused.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::runtime::Handle;

/// A request body that, if dropped before its end, is read to the end and discarded.
///
/// A client may still be sending when its request is refused. Without this, its connection or
/// stream would be reset, and many clients then ignore the answer.
pub(crate) struct Unread<B: Body<Data = Bytes> + Send + Unpin + 'static> {
    /// `None` at the end of the body.
    body: Option<B>,
    /// The longest time to keep reading.
    time: Duration,
    /// True if the client waits for `100 Continue`, which the first read sends. If nothing is read,
    /// nothing is sent.
    held_back: bool,
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Unread<B> {
    /// Wraps the body of a request.
    pub fn wrap(request: Request<B>, time: Duration) -> Request<Unread<B>> {
        // HTTP/2 resets a stream whose body is dropped, whatever the client expects.
        let held_back = request.version() < Version::HTTP_2 && request.headers().contains_key(header::EXPECT);
        request.map(|body| Unread { body: Some(body), time, held_back })
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for Unread<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.held_back = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for Unread<B> {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !self.held_back && !body.is_end_stream());
        let (Some(mut rest), Ok(runtime)) = (rest, Handle::try_current()) else { return };
        let read = async move { while let Some(Ok(_)) = rest.frame().await {} };
        runtime.spawn(tokio::time::timeout(self.time, read));
    }
}
