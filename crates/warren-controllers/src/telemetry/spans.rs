//! Spans of reconciles, for a tracing collector. A claim or sandbox carries the context of its
//! request (`opentelemetry.io/trace-context`, a JSON object of W3C headers), and its reconciles are
//! children of that.
//!
//! This is not built on the `tracing` crate's spans: the parent comes from an annotation, not from
//! the call stack, and nothing is recorded unless `--enable-tracing` is set.

mod otlp;
mod protobuf;
mod sandbox;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use warren_api::{annotations, labels};
use warren_decide::ownership;
use warren_decide::propagation::normalise_created_by;
use warren_decide::step::{Action, Kind, Stage, Step};

pub use otlp::{Exporter, OtlpConfig, OtlpError, OtlpProtocol};
pub(crate) use sandbox::SandboxSpans;

/// The longest `tracestate` that is passed on; the standard requires no more, and every running
/// span holds a copy of it.
const LONGEST_STATE: usize = 512;

/// The identity of a span: its trace and its own id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Context {
    trace: u128,
    span: u64,
    is_sampled: bool,
    /// Passed on unchanged.
    state: String,
}

impl Context {
    /// Parses the context of an annotation.
    fn parse(text: &str) -> Option<Self> {
        let headers: Value = serde_json::from_str(text).ok()?;
        let mut parts = headers.get("traceparent")?.as_str()?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // `ff` is not a version, later versions may have more parts, and the first has exactly
        // four.
        if hexadecimal(version, 2)? == 0xff || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let (trace, span) = (hexadecimal(trace, 32)?, u64::try_from(hexadecimal(span, 16)?).ok()?);
        let state = headers.get("tracestate").and_then(Value::as_str).unwrap_or_default();
        let state = if state.len() <= LONGEST_STATE { state.to_owned() } else { String::new() };
        let is_sampled = hexadecimal(flags, 2)? & 1 == 1;
        (trace != 0 && span != 0).then_some(Self { trace, span, is_sampled, state })
    }

    /// Returns the text for an annotation.
    fn carrier(&self) -> String {
        let parent = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled));
        let mut headers = json!({"traceparent": parent});
        if !self.state.is_empty() {
            headers["tracestate"] = json!(self.state);
        }
        headers.to_string()
    }
}

/// Parses lower-case digits only, as the standard says.
fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_plain = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

/// The choice of spans that are sent to the collector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// True if a span with a parent is sent exactly if its parent is.
    pub follows_parent: bool,
    /// The share of all other traces that is sent, from 0 to 1.
    pub ratio: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { follows_parent: true, ratio: 1.0 }
    }
}

impl Sampling {
    /// Returns true if a span is sent. It is chosen by its trace id, as in the Go libraries, so
    /// that programs with the same share keep the same traces.
    fn takes(self, trace: u128, parent: Option<&Context>) -> bool {
        match parent.filter(|_| self.follows_parent) {
            Some(parent) => parent.is_sampled,
            None => (trace as u64 >> 1) < (self.ratio * (1_u64 << 63) as f64) as u64,
        }
    }
}

/// The data of an ended span.
#[derive(Debug)]
struct Record {
    context: Context,
    parent: Option<u64>,
    name: &'static str,
    began: Timestamp,
    ended: Timestamp,
    attributes: Vec<(&'static str, String)>,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Event {
    time: Timestamp,
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
}

/// Makes spans, or none without a collector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracer {
    collected: Option<mpsc::Sender<Record>>,
    sampling: Sampling,
}

impl Tracer {
    /// Returns true if there is a collector.
    pub(crate) fn is_on(&self) -> bool {
        self.collected.is_some()
    }

    /// Begins a span of an object's reconcile, a child of the object's own context.
    pub(crate) fn pass(&self, name: &'static str, metadata: &ObjectMeta) -> Span {
        let carried = ownership::annotation(metadata, annotations::TRACE_CONTEXT);
        let parent = carried.and_then(Context::parse);
        if self.is_on() && carried.is_some() && parent.is_none() {
            tracing::warn!(name = metadata.name, "the trace context cannot be read; a new trace begins");
        }
        let mut span = self.begin(name, parent.as_ref());
        if let Some(created_by) = ownership::label(metadata, labels::CREATED_BY) {
            span.set(labels::CREATED_BY, normalise_created_by(created_by).to_owned());
        }
        span
    }

    fn begin(&self, name: &'static str, parent: Option<&Context>) -> Span {
        if !self.is_on() {
            return Span::default();
        }
        let trace = parent.map_or_else(|| fastrand::u128(1..), |parent| parent.trace);
        let context = Context {
            trace,
            span: fastrand::u64(1..),
            is_sampled: self.sampling.takes(trace, parent),
            state: parent.map(|parent| parent.state.clone()).unwrap_or_default(),
        };
        let now = Timestamp::now();
        let record = Record {
            context,
            parent: parent.map(|parent| parent.span),
            name,
            began: now,
            ended: now,
            attributes: Vec::new(),
            events: Vec::new(),
        };
        Span { open: Some(Box::new(Open { tracer: self.clone(), record })) }
    }
}

/// A running span; it ends when it is dropped. Without a collector it is empty.
#[derive(Debug, Default)]
pub(crate) struct Span {
    open: Option<Box<Open>>,
}

#[derive(Debug)]
struct Open {
    tracer: Tracer,
    record: Record,
}

impl Span {
    fn child(&self, name: &'static str) -> Span {
        match self.open.as_deref() {
            Some(Open { tracer, record }) => tracer.begin(name, Some(&record.context)),
            None => Span::default(),
        }
    }

    fn is_recorded(&self) -> bool {
        self.open.is_some()
    }

    fn set(&mut self, key: &'static str, value: String) {
        if let Some(Open { record, .. }) = self.open.as_deref_mut() {
            record.attributes.push((key, value));
        }
    }

    fn happened(&mut self, name: &'static str, attributes: Vec<(&'static str, String)>) {
        if let Some(Open { record, .. }) = self.open.as_deref_mut() {
            record.events.push(Event { time: Timestamp::now(), name, attributes });
        }
    }

    /// Returns the write that gives an object this span's context, if it has none.
    pub(crate) fn stamp(&self, kind: Kind, metadata: &ObjectMeta) -> Option<Step> {
        let Open { record, .. } = self.open.as_deref()?;
        let known = ownership::annotation(metadata, annotations::TRACE_CONTEXT).is_some();
        if known || metadata.deletion_timestamp.is_some() {
            return None;
        }
        let context = record.context.carrier();
        let body =
            json!({"metadata": {"uid": metadata.uid, "annotations": {annotations::TRACE_CONTEXT: context}}});
        let name = metadata.name.clone().unwrap_or_default();
        Some(Step::new(Stage::Subject, Action::Merge { kind, name, body }))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { tracer, mut record } = *open;
        record.ended = Timestamp::now();
        if let (true, Some(collected)) = (record.context.is_sampled, &tracer.collected) {
            // If the collector is too slow, spans are lost; reconciles do not wait for it.
            let _ = collected.try_send(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Context, Sampling};

    #[test]
    fn a_part_of_the_traces_is_told_or_what_their_parents_are() {
        let parent = |is_sampled| Context { trace: 1, span: 1, is_sampled, state: String::new() };
        let told = |follows_parent, ratio, parent: Option<&Context>| {
            let traces = (0..100_u128).map(|part| (part << 64) | ((part << 64) / 100));
            traces.filter(|trace| Sampling { follows_parent, ratio }.takes(*trace, parent)).count()
        };
        assert_eq!([0.0, 0.25, 1.0].map(|ratio| told(true, ratio, None)), [0, 25, 100]);
        assert_eq!(told(true, 0.0, Some(&parent(true))), 100);
        assert_eq!(told(true, 1.0, Some(&parent(false))), 0);
        assert_eq!(told(false, 0.25, Some(&parent(false))), 25);
        assert!(Sampling::default().takes(u128::MAX, None));
    }

    #[test]
    fn a_context_is_passed_on_as_it_came() {
        let text =
            r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1"}"#;
        assert_eq!(Context::parse(text).unwrap().carrier(), text);
        let unsampled = r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}"#;
        assert_eq!(Context::parse(unsampled).unwrap().carrier(), unsampled);
    }

    #[test]
    fn a_state_that_is_too_long_is_left_behind() {
        let parent = r#""traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01""#;
        let with = |length: usize| format!("{{{parent},\"tracestate\":\"{}\"}}", "a".repeat(length));
        assert_eq!(Context::parse(&with(512)).unwrap().carrier(), with(512));
        assert_eq!(Context::parse(&with(513)).unwrap().carrier(), format!("{{{parent}}}"));
    }

    #[test]
    fn what_is_no_context_is_none() {
        let parents = [
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x",
        ];
        for parent in parents {
            assert_eq!(Context::parse(&format!("{{\"traceparent\":\"{parent}\"}}")), None, "{parent}");
        }
        for text in ["", "{}", "[]", "{\"traceparent\":1}", "nonsense"] {
            assert_eq!(Context::parse(text), None, "{text}");
        }
    }
}
