//! Measures a client's requests to the API server, and optionally limits their rate.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::{Layer, Service};

use super::metrics::Metrics;

/// A rate limit: requests per second, with a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second.
    pub queries_per_second: f64,
    /// The number of requests that may be sent at once.
    pub burst: u32,
}

/// A layer that puts [`MeteredService`] around a transport.
#[derive(Clone, Debug)]
pub struct MeteredLayer {
    metrics: Arc<Metrics>,
    host: Arc<str>,
}

impl MeteredLayer {
    pub(crate) fn new(metrics: Arc<Metrics>, host: &str) -> Self {
        Self { metrics, host: host.into() }
    }

    /// Wraps a transport.
    pub fn around<S>(&self, transport: S) -> MeteredService<S> {
        self.layer(transport)
    }
}

impl<S> Layer<S> for MeteredLayer {
    type Service = MeteredService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        MeteredService { inner, layer: self.clone() }
    }
}

/// A transport that counts requests.
#[derive(Debug)]
pub struct MeteredService<S> {
    inner: S,
    layer: MeteredLayer,
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
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = method(request.method());
        let MeteredLayer { metrics, host } = &self.layer;
        let (metrics, host) = (metrics.clone(), host.to_string());
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            metrics
                .request_time
                .observe([method.into(), host.clone().into()], started.elapsed().as_secs_f64());
            let code = match &answer {
                Ok(response) => response.status().as_str().to_owned(),
                // The Go client's code for a request without an answer.
                Err(_) => "<error>".to_owned(),
            };
            metrics.requests.add([code.into(), method.into(), host.into()], 1);
            answer
        })
    }
}

/// Wraps a client so that its requests wait for a rate limit. The inner client stays unlimited.
pub(crate) fn hold_back(client: Client, metrics: Arc<Metrics>, host: &str, limit: RateLimit) -> Client {
    let namespace = client.default_namespace().to_owned();
    let (bucket, host): (_, Arc<str>) = (Arc::new(Mutex::new(Bucket::new(limit))), host.into());
    let transport = tower::service_fn(move |request: Request<Body>| {
        let (client, metrics, bucket, host) = (client.clone(), metrics.clone(), bucket.clone(), host.clone());
        async move {
            let asked = Instant::now();
            // The lock is fair, so waiting for it is waiting in line.
            bucket.lock().await.take().await;
            let values = [method(request.method()).into(), host.to_string().into()];
            metrics.limiter_time.observe(values, asked.elapsed().as_secs_f64());
            client.send(request).await
        }
    });
    Client::new(transport, namespace)
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

/// A token bucket that starts full, stored as the time at which it was, or will be, empty.
#[derive(Debug)]
struct Bucket {
    interval: Duration,
    depth: Duration,
    empty_at: Instant,
}

impl Bucket {
    fn new(limit: RateLimit) -> Self {
        // A rate close to zero becomes one request per day.
        let interval = Duration::try_from_secs_f64(1.0 / limit.queries_per_second)
            .unwrap_or(Duration::MAX)
            .min(Duration::from_secs(24 * 60 * 60));
        let depth = interval.saturating_mul(limit.burst.max(1));
        let now = Instant::now();
        Self { interval, depth, empty_at: now.checked_sub(depth).unwrap_or(now) }
    }

    /// Waits for a token and takes it. A cancelled wait takes none.
    async fn take(&mut self) {
        let now = Instant::now();
        let earliest = now.checked_sub(self.depth).unwrap_or(now);
        let turn = self.empty_at.max(earliest) + self.interval;
        if turn > now {
            tokio::time::sleep_until(turn).await;
        }
        self.empty_at = turn;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use futures::FutureExt as _;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use tokio::time::Instant;

    use super::{Bucket, RateLimit, hold_back};
    use crate::telemetry::family::Text;
    use crate::telemetry::metrics::Metrics;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let mut bucket = Bucket::new(RateLimit { queries_per_second: 10.0, burst: 3 });
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..5 {
            bucket.take().await;
            times.push(start.elapsed().as_millis());
        }
        assert!(bucket.take().now_or_never().is_none(), "a token that is not there yet was given");
        bucket.take().await;
        times.push(start.elapsed().as_millis());
        assert_eq!(times[..3], [0, 0, 0]);
        assert!((100..110).contains(&times[3]), "{times:?}");
        assert!((200..210).contains(&times[4]), "{times:?}");
        assert!((300..310).contains(&times[5]), "who gave up has taken none: {times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_are_measured_from_when_they_asked() {
        let server = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
        let metrics = Arc::new(Metrics::default());
        let limit = RateLimit { queries_per_second: 1.0, burst: 1 };
        let client =
            hold_back(Client::new(tower::service_fn(server), "default"), metrics.clone(), "server:1", limit);
        let ask = || client.send(Request::new(Body::empty()));
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        assert!([first, second, third].iter().all(Result::is_ok));
        let mut text = Text::default();
        metrics.limiter_time.write(&mut text);
        let page = text.finish();
        let sum = page.lines().find_map(|line| {
            line.strip_prefix(
                "rest_client_rate_limiter_duration_seconds_sum{host=\"server:1\",verb=\"GET\"} ",
            )
        });
        assert_eq!(sum.unwrap().parse::<f64>().unwrap().round(), 3.0, "{page}");
    }
}
