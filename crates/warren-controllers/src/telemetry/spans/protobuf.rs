//! Encodes spans for the OpenTelemetry protocol as protocol buffers. The messages are few and
//! frozen (OTLP 1.x); a generator and its runtime would be ten times this code.

use jiff::Timestamp;

use super::{Event, Record};

/// `SPAN_KIND_INTERNAL`.
const KIND_INTERNAL: u64 = 1;

/// Builds an `ExportTraceServiceRequest` with these spans, from a service of this name and these
/// attributes.
pub(super) fn request(
    service: &str,
    version: &str,
    attributes: &[(String, String)],
    records: &[Record],
) -> Vec<u8> {
    let mut scope_spans = Vec::new();
    message(&mut scope_spans, 1, |scope| {
        text(scope, 1, service);
        text(scope, 2, version);
    });
    for record in records {
        message(&mut scope_spans, 2, |out| span(out, record));
    }
    let mut request = Vec::new();
    message(&mut request, 1, |resource_spans| {
        message(resource_spans, 1, |resource| {
            attribute(resource, 1, "service.name", service);
            attributes.iter().for_each(|(key, value)| attribute(resource, 1, key, value));
        });
        bytes(resource_spans, 2, &scope_spans);
    });
    request
}

fn span(out: &mut Vec<u8>, record: &Record) {
    bytes(out, 1, &record.context.trace.to_be_bytes());
    bytes(out, 2, &record.context.span.to_be_bytes());
    text(out, 3, &record.context.state);
    if let Some(parent) = record.parent {
        bytes(out, 4, &parent.to_be_bytes());
    }
    text(out, 5, record.name);
    tag(out, 6, 0);
    variable(out, KIND_INTERNAL);
    time(out, 7, record.began);
    time(out, 8, record.ended);
    for (key, value) in &record.attributes {
        attribute(out, 9, key, value);
    }
    for Event { time: at, name, attributes } in &record.events {
        message(out, 11, |event| {
            time(event, 1, *at);
            text(event, 2, name);
            for (key, value) in attributes {
                attribute(event, 3, key, value);
            }
        });
    }
}

fn attribute(out: &mut Vec<u8>, field: u64, key: &str, value: &str) {
    message(out, field, |pair| {
        text(pair, 1, key);
        // Written even if empty: a value without any type would be no value.
        message(pair, 2, |any| bytes(any, 1, value.as_bytes()));
    });
}

fn message(out: &mut Vec<u8>, field: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    bytes(out, field, &inner);
}

/// Writes a text; nothing if it is empty, as that is the default.
fn text(out: &mut Vec<u8>, field: u64, text: &str) {
    if !text.is_empty() {
        bytes(out, field, text.as_bytes());
    }
}

fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    tag(out, field, 2);
    variable(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn time(out: &mut Vec<u8>, field: u64, time: Timestamp) {
    tag(out, field, 1);
    let nanoseconds = u64::try_from(time.as_nanosecond()).unwrap_or_default();
    out.extend_from_slice(&nanoseconds.to_le_bytes());
}

fn tag(out: &mut Vec<u8>, field: u64, wire: u64) {
    variable(out, field << 3 | wire);
}

fn variable(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
