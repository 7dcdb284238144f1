//! Decoding of Kubernetes' protobuf. kubectl uses it for objects that it creates itself (`kubectl
//! create namespace`). Bodies are converted to JSON with a table of field numbers. Answers are
//! always JSON, which such clients accept too.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

/// The table of messages: each message's name, then one indented line per field with number, JSON
/// name, flags and type. Flags: `r` repeated, `m` map, `p` pointer (zero differs from absent), `n`
/// inlined into the surrounding object. Types: `s` string, `b` bytes, `t` bool, `i` integer, `d`
/// double, or a message. `schemas/generate.py` makes the file.
const TABLE: &str = include_str!("../schemas/builtin.fields");

/// The first bytes of every encoded object.
const MAGIC: &[u8] = b"k8s\0";
/// The maximum nesting. No real object reaches it.
const DEEPEST: usize = 32;

const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";

#[derive(Debug, Error, PartialEq)]
pub(crate) enum ProtobufError {
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotKubernetes,
    #[error("unexpected EOF")]
    Truncated,
    #[error("illegal wire type")]
    WireType,
    #[error("message nests too deeply")]
    TooDeep,
    #[error("no protobuf form of {0} is known")]
    Unknown(String),
}

struct Field {
    name: &'static str,
    repeated: bool,
    map: bool,
    pointer: bool,
    inline: bool,
    type_: &'static str,
}

type Message = HashMap<u64, Field>;

static MESSAGES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let mut messages: HashMap<&'static str, Message> = HashMap::new();
    let mut current = "";
    for line in TABLE.lines() {
        let Some(field) = line.strip_prefix("  ") else {
            current = line;
            messages.insert(current, Message::new());
            continue;
        };
        let mut words = field.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (number, name, flags, type_) = (word(), word(), word(), word());
        let field = Field {
            name,
            repeated: flags.contains('r'),
            map: flags.contains('m'),
            pointer: flags.contains('p'),
            inline: flags.contains('n'),
            type_,
        };
        if let (Ok(number), Some(message)) = (number.parse(), messages.get_mut(current)) {
            message.insert(number, field);
        }
    }
    messages
});

/// Decodes a whole body: the envelope with `apiVersion` and `kind`, and the message inside.
pub(crate) fn decode(message: &str, body: &[u8]) -> Result<Value, ProtobufError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::NotKubernetes)?;
    let (mut object, mut raw) = (Map::new(), &[][..]);
    for entry in Entries(envelope) {
        match entry? {
            (1, Wire::Bytes(type_meta)) => {
                for entry in Entries(type_meta) {
                    if let (number @ 1..=2, Wire::Bytes(text)) = entry? {
                        let name = if number == 1 { "apiVersion" } else { "kind" };
                        object.insert(name.to_owned(), string(text));
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    read_message(message, raw, &mut object, 0)?;
    Ok(Value::Object(object))
}

fn read_message(
    message: &str,
    bytes: &[u8],
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth > DEEPEST {
        return Err(ProtobufError::TooDeep);
    }
    let fields = MESSAGES.get(message).ok_or_else(|| ProtobufError::Unknown(message.to_owned()))?;
    for entry in Entries(bytes) {
        let (number, wire) = entry?;
        // Drop a field of a newer release, like an unknown JSON field.
        let Some(field) = fields.get(&number) else { continue };
        if field.inline {
            let Wire::Bytes(bytes) = wire else { return Err(ProtobufError::WireType) };
            read_message(field.type_, bytes, object, depth + 1)?;
        } else if field.map {
            let Wire::Bytes(bytes) = wire else { return Err(ProtobufError::WireType) };
            let (key, value) = map_entry(field.type_, bytes, depth)?;
            let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            if let Some(map) = map.as_object_mut() {
                map.insert(key, value);
            }
        } else {
            let value = read_value(field.type_, wire, depth)?;
            if field.repeated {
                let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Some(list) = list.as_array_mut() {
                    list.push(value);
                }
            } else if field.pointer || !is_zero(&value) {
                object.insert(field.name.to_owned(), value);
            }
        }
    }
    Ok(())
}

/// Returns true for a value that JSON would leave out.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Object(object) => object.is_empty(),
        Value::Bool(true) | Value::Array(_) => false,
    }
}

fn map_entry(type_: &str, bytes: &[u8], depth: usize) -> Result<(String, Value), ProtobufError> {
    let mut key = String::new();
    let mut value = if type_ == "s" || type_ == "b" { "".into() } else { Value::Null };
    for entry in Entries(bytes) {
        match entry? {
            (1, Wire::Bytes(text)) => key = String::from_utf8_lossy(text).into_owned(),
            (2, wire) => value = read_value(type_, wire, depth)?,
            _ => {}
        }
    }
    Ok((key, value))
}

fn read_value(type_: &str, wire: Wire<'_>, depth: usize) -> Result<Value, ProtobufError> {
    Ok(match (type_, wire) {
        ("s", Wire::Bytes(text)) => string(text),
        ("b", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        ("t", Wire::Number(number)) => (number != 0).into(),
        ("i", Wire::Number(number)) => number.cast_signed().into(),
        ("d", Wire::Number(bits)) => f64::from_bits(bits).into(),
        (TIME, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (MICRO_TIME, Wire::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ")?,
        (QUANTITY, Wire::Bytes(bytes)) => {
            let text = Entries(bytes).find_map(|entry| match entry {
                Ok((1, Wire::Bytes(text))) => Some(string(text)),
                _ => None,
            });
            text.unwrap_or_else(|| "0".into())
        }
        (INT_OR_STRING, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (FIELDS, Wire::Bytes(bytes)) => {
            let raw = Entries(bytes).find_map(|entry| match entry {
                Ok((1, Wire::Bytes(raw))) => serde_json::from_slice(raw).ok(),
                _ => None,
            });
            raw.unwrap_or_default()
        }
        (message, Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            read_message(message, bytes, &mut object, depth + 1)?;
            Value::Object(object)
        }
        (_, Wire::Number(_)) => return Err(ProtobufError::WireType),
    })
}

fn string(text: &[u8]) -> Value {
    String::from_utf8_lossy(text).into_owned().into()
}

fn time(bytes: &[u8], format: &str) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanoseconds) = (None, 0);
    for entry in Entries(bytes) {
        match entry? {
            (1, Wire::Number(number)) => seconds = Some(number.cast_signed()),
            (2, Wire::Number(number)) => nanoseconds = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    // A missing number of seconds means that the time is not set.
    let moment = seconds.and_then(|seconds| Timestamp::new(seconds, nanoseconds).ok());
    Ok(moment.map_or(Value::Null, |moment| moment.strftime(format).to_string().into()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (false, 0, Value::from(""));
    for entry in Entries(bytes) {
        match entry? {
            (1, Wire::Number(kind)) => is_text = kind == 1,
            (2, Wire::Number(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(value)) => text = string(value),
            _ => {}
        }
    }
    Ok(if is_text { text } else { number.into() })
}

/// A value in wire format.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Result<(u64, Wire<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}

impl<'a> Entries<'a> {
    fn entry(&mut self) -> Result<(u64, Wire<'a>), ProtobufError> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Number(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Number(u32::from_le_bytes(self.array()?).into()),
            _ => return Err(ProtobufError::WireType),
        };
        Ok((tag >> 3, wire))
    }

    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtobufError::WireType)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], ProtobufError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{MAGIC, MESSAGES, ProtobufError, decode};
    use crate::definition::Definition;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    #[test]
    fn a_config_map_becomes_json() {
        let metadata = [field(1, b"one"), field(3, b""), field(8, b"")].concat();
        let data = [field(1, b"key"), field(2, b"value")].concat();
        let empty = field(1, b"empty");
        let map = [field(1, &metadata), field(2, &data), field(2, &empty)].concat();
        let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        let body = [MAGIC, &field(1, &type_meta), &field(2, &map)].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value", "empty": ""},
        });
        assert_eq!(decode("io.k8s.api.core.v1.ConfigMap", &body), Ok(expected));
        for end in 0..body.len() {
            // A truncated body is refused or decodes to less. It must never cause a panic.
            let _ = decode("io.k8s.api.core.v1.ConfigMap", &body[..end]);
        }
        assert_eq!(decode("io.k8s.api.core.v1.ConfigMap", b"{}"), Err(ProtobufError::NotKubernetes));
    }

    #[test]
    fn every_message_that_a_field_names_is_there() {
        let special = [super::TIME, super::MICRO_TIME, super::QUANTITY, super::INT_OR_STRING, super::FIELDS];
        for (name, message) in MESSAGES.iter() {
            for field in message.values().filter(|field| field.type_.len() > 1) {
                let known = special.contains(&field.type_) || MESSAGES.contains_key(field.type_);
                assert!(known, "{name}.{} is a {}", field.name, field.type_);
            }
        }
        // Clients never send objects of measured kinds.
        let sent =
            |definition: &Definition| !definition.group.contains("apiext") && !definition.behaviour.measured;
        for definition in crate::kinds::definitions().iter().filter(|definition| sent(definition)) {
            let crate::definition::SchemaSource::Builtin(name) = definition.versions[0].schema.source else {
                panic!()
            };
            assert!(MESSAGES.contains_key(name), "{name}");
        }
    }
}
