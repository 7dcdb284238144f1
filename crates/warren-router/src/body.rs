//! Bodies on their way through: they are counted, not kept.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::answer::BodyError;
use crate::grpc;

/// A body ended before its end, for a reason of ours.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("the request body is larger than allowed")]
    TooLarge,
    #[error("nothing came for too long")]
    Silent,
}

/// When a request last got on.
#[derive(Debug)]
pub(crate) struct Activity {
    started: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
    too_large: AtomicBool,
}

impl Activity {
    pub(crate) fn begin() -> Arc<Activity> {
        Arc::new(Activity {
            started: Instant::now(),
            last: AtomicU64::new(0),
            too_large: AtomicBool::new(false),
        })
    }

    fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Returns once nothing has come from the client for `limit`.
    pub(crate) async fn silent_for(&self, limit: Duration) {
        loop {
            let last = self.started + Duration::from_millis(self.last.load(Ordering::Relaxed));
            let end = last + limit;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }

    pub(crate) fn was_too_large(&self) -> bool {
        self.too_large.load(Ordering::Relaxed)
    }
}

/// The body of a request on its way to a sandbox.
pub(crate) struct RequestBody {
    body: Incoming,
    activity: Arc<Activity>,
    /// The bytes that may still come.
    room: u64,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, activity: Arc<Activity>, room: u64) -> Self {
        Self { body, activity, room }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        self.activity.touch();
        let frame = frame?;
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        match self.room.checked_sub(length) {
            Some(room) => self.room = room,
            None => {
                self.activity.too_large.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err(Stopped::TooLarge.into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The time limit of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    /// The longest time between two pieces.
    Silence(Duration),
    /// The end of the call. An error is told in trailers, as gRPC does.
    Call(Option<Instant>),
}

/// The body of an answer on its way to the client. It carries what must stay until its end: `Held`.
pub(crate) struct ResponseBody<Held> {
    body: Incoming,
    limit: Limit,
    timer: Option<Pin<Box<Sleep>>>,
    /// The timer counts. It is set only when the sandbox keeps us waiting.
    is_waiting: bool,
    has_ended: bool,
    held: Held,
}

impl<Held> ResponseBody<Held> {
    pub(crate) fn new(body: Incoming, limit: Limit, held: Held) -> Self {
        let timer = match limit {
            Limit::Silence(limit) => Some(tokio::time::sleep(limit)),
            Limit::Call(end) => end.map(tokio::time::sleep_until),
        };
        Self { body, limit, timer: timer.map(Box::pin), is_waiting: false, has_ended: false, held }
    }

    /// Ends the answer before its end.
    fn stop(&mut self, status: StatusCode, error: BodyError) -> Frames {
        match self.limit {
            Limit::Silence(_) => Poll::Ready(Some(Err(error))),
            Limit::Call(_) => {
                self.has_ended = true;
                let message = match status {
                    StatusCode::GATEWAY_TIMEOUT => "The call took longer than its deadline.",
                    _ => "The sandbox ended the call before its end.",
                };
                Poll::Ready(Some(Ok(Frame::trailers(grpc::trailers(status, message)))))
            }
        }
    }
}

type Frames = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// Counts what has gone out.
pub(crate) trait CountBytes {
    fn count(&mut self, bytes: usize);
}

impl<Held: CountBytes + Unpin> Body for ResponseBody<Held> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Frames {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Err(error))) => this.stop(StatusCode::BAD_GATEWAY, error.into()),
            Poll::Ready(frame) => {
                this.is_waiting = false;
                if let Some(Ok(frame)) = &frame {
                    this.held.count(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let is_waiting = std::mem::replace(&mut this.is_waiting, true);
                let Some(timer) = &mut this.timer else { return Poll::Pending };
                if let (Limit::Silence(limit), false) = (this.limit, is_waiting) {
                    timer.as_mut().reset(Instant::now() + limit);
                }
                ready!(timer.as_mut().poll(context));
                this.stop(StatusCode::GATEWAY_TIMEOUT, Stopped::Silent.into())
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
