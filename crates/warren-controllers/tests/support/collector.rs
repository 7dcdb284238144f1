//! A tracing collector on loopback: receives spans by the OpenTelemetry protocol over gRPC, and
//! keeps them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A received span.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: String,
    pub name: String,
    pub service: String,
    pub attributes: BTreeMap<String, String>,
    /// Names and attributes.
    pub events: Vec<(String, BTreeMap<String, String>)>,
    pub began: u64,
    pub ended: u64,
}

/// The collector; it stops when dropped.
pub struct Collector {
    pub address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
    task: JoinHandle<()>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans: Arc<Mutex<Vec<Span>>> = Arc::default();
        let kept = spans.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = kept.clone();
                let service = service_fn(move |request| answer(request, kept.clone()));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self { address, spans, task }
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    request: Request<Incoming>,
    kept: Arc<Mutex<Vec<Span>>>,
) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible> {
    assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
    assert_eq!((body[0], body.len()), (0, 5 + length));
    kept.lock().unwrap().extend(decode(&body[5..]));
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// A protocol buffer without its types: the values of each field, in order.
struct Message<'a>(Vec<(u64, Value<'a>)>);

#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    fn parse(mut rest: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let tag = variable(&mut rest);
            let value = match tag & 7 {
                0 => Value::Number(variable(&mut rest)),
                1 => {
                    let (number, after) = rest.split_at(8);
                    rest = after;
                    Value::Number(u64::from_le_bytes(number.try_into().unwrap()))
                }
                2 => {
                    let length = variable(&mut rest) as usize;
                    let (bytes, after) = rest.split_at(length);
                    rest = after;
                    Value::Bytes(bytes)
                }
                other => panic!("wire type {other}"),
            };
            fields.push((tag >> 3, value));
        }
        Self(fields)
    }

    fn all(&self, field: u64) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter_map(move |(number, value)| match value {
            Value::Bytes(bytes) if *number == field => Some(*bytes),
            _ => None,
        })
    }

    fn text(&self, field: u64) -> String {
        String::from_utf8(self.all(field).next().unwrap_or_default().to_vec()).unwrap()
    }

    fn hexadecimal(&self, field: u64) -> String {
        self.all(field).next().unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn number(&self, field: u64) -> u64 {
        let found = self.0.iter().find_map(|(number, value)| match value {
            Value::Number(value) if *number == field => Some(*value),
            _ => None,
        });
        found.unwrap_or_default()
    }

    fn attributes(&self, field: u64) -> BTreeMap<String, String> {
        let pairs = self.all(field).map(Message::parse);
        pairs.map(|pair| (pair.text(1), Message::parse(pair.all(2).next().unwrap()).text(1))).collect()
    }
}

fn variable(rest: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (first, after) = rest.split_first().unwrap();
        *rest = after;
        number |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return number;
        }
    }
}

fn decode(request: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource_spans in Message::parse(request).all(1).map(Message::parse) {
        let resource = Message::parse(resource_spans.all(1).next().unwrap());
        let service = resource.attributes(1)["service.name"].clone();
        for scope_spans in resource_spans.all(2).map(Message::parse) {
            assert_eq!(Message::parse(scope_spans.all(1).next().unwrap()).text(1), service);
            for span in scope_spans.all(2).map(Message::parse) {
                spans.push(Span {
                    trace: span.hexadecimal(1),
                    id: span.hexadecimal(2),
                    parent: span.hexadecimal(4),
                    name: span.text(5),
                    service: service.clone(),
                    attributes: span.attributes(9),
                    events: span
                        .all(11)
                        .map(Message::parse)
                        .map(|event| (event.text(2), event.attributes(3)))
                        .collect(),
                    began: span.number(7),
                    ended: span.number(8),
                });
            }
        }
    }
    spans
}
