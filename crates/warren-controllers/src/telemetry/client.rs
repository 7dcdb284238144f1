//! Measures, and on request holds back, what a client asks of the API server: a layer around its transport.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use tokio::time::{Instant, Sleep};
use tower::{Layer, Service};

use super::metrics::Metrics;

/// The most requests per second, and how many may go at once before that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second.
    pub queries_per_second: f64,
    /// How many may go at once.
    pub burst: u32,
}

/// Puts [`MeteredService`] around a transport.
#[derive(Clone, Debug)]
pub struct MeteredLayer {
    metrics: Arc<Metrics>,
    host: Arc<str>,
    limit: Option<RateLimit>,
}

impl MeteredLayer {
    pub(crate) fn new(metrics: Arc<Metrics>, host: &str, limit: Option<RateLimit>) -> Self {
        Self { metrics, host: host.into(), limit }
    }

    /// Puts it around a transport.
    pub fn around<S>(&self, transport: S) -> MeteredService<S> {
        self.layer(transport)
    }
}

impl<S> Layer<S> for MeteredLayer {
    type Service = MeteredService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let bucket = self.limit.map(Bucket::new);
        MeteredService { inner, layer: self.clone(), bucket, held_back: None }
    }
}

/// A transport that counts what passes.
#[derive(Debug)]
pub struct MeteredService<S> {
    inner: S,
    layer: MeteredLayer,
    bucket: Option<Bucket>,
    held_back: Option<Duration>,
}

impl<S, B, R> Service<Request<B>> for MeteredService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if let Some(bucket) = &mut self.bucket
            && self.held_back.is_none()
        {
            self.held_back = Some(ready!(bucket.poll_token(context)));
        }
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = method(request.method());
        let MeteredLayer { metrics, host, .. } = &self.layer;
        let (metrics, host) = (metrics.clone(), host.to_string());
        if let Some(held_back) = self.held_back.take() {
            metrics.limiter_time.observe([method.into(), host.clone().into()], held_back.as_secs_f64());
        }
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            metrics
                .request_time
                .observe([method.into(), host.clone().into()], started.elapsed().as_secs_f64());
            let code = match &answer {
                Ok(response) => response.status().as_str().to_owned(),
                // As the Go client calls what never got an answer.
                Err(_) => "<error>".to_owned(),
            };
            metrics.requests.add([code.into(), method.into(), host.into()], 1);
            answer
        })
    }
}

fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}

/// A token bucket that starts full. Kept as the time at which it was, or will be, empty.
#[derive(Debug)]
struct Bucket {
    /// How long one token takes.
    interval: Duration,
    /// How long all tokens take.
    depth: Duration,
    empty_at: Instant,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Bucket {
    fn new(limit: RateLimit) -> Self {
        // A rate too small to be told from nothing is one request a day.
        let interval = Duration::try_from_secs_f64(1.0 / limit.queries_per_second)
            .unwrap_or(Duration::MAX)
            .min(Duration::from_secs(24 * 60 * 60));
        let depth = interval.saturating_mul(limit.burst.max(1));
        let now = Instant::now();
        Self { interval, depth, empty_at: now.checked_sub(depth).unwrap_or(now), waiting: None }
    }

    /// Takes a token, and tells how long that took.
    fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Duration> {
        if self.waiting.is_none() {
            let now = Instant::now();
            let earliest = now.checked_sub(self.depth).unwrap_or(now);
            self.empty_at = self.empty_at.max(earliest) + self.interval;
            if self.empty_at <= now {
                return Poll::Ready(Duration::ZERO);
            }
            self.waiting = Some((now, Box::pin(tokio::time::sleep_until(self.empty_at))));
        }
        if let Some((since, sleep)) = &mut self.waiting {
            ready!(sleep.as_mut().poll(context));
            let waited = since.elapsed();
            self.waiting = None;
            return Poll::Ready(waited);
        }
        Poll::Ready(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::Instant;

    use super::{Bucket, RateLimit};

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = Bucket::new(RateLimit { queries_per_second: 10.0, burst: 3 });
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..5 {
            poll_fn(|context| bucket.poll_token(context)).await;
            times.push(start.elapsed().as_millis());
        }
        assert_eq!(times[..3], [0, 0, 0]);
        assert!((100..110).contains(&times[3]), "{times:?}");
        assert!((200..210).contains(&times[4]), "{times:?}");
    }
}
