//! Masks the parts of a transcript that differ between two runs of the same scenario on the same
//! server, and no others.
//!
//! | mask | what is still compared |
//! |---|---|
//! | `<id>` | that the scenario's own unique word appears there |
//! | `<uid1>`, `<uid2>`… | which uids are the same and which differ, in order of appearance |
//! | `<rv1>` < `<rv2>`… | whether a write changed the version, and the order of versions |
//! | `<list-rv>`, `<bookmark-rv>` | that there is one; writes elsewhere on the server move it |
//! | `<time>`, `<microtime>` | that it is a time of now, and how precisely it is written |
//! | `<generated1>`… | that the name is the prefix and five letters of the server's alphabet |
//! | `<age>` | that the cell of a table holds an age in seconds |
//! | `<the object>` | that an error message quotes the object there |
//! | order of `managedFields` | that operations are in order; the seconds of the writes decide the rest |
//! | `<continue>`, `<jwt>`, `<ip>`, `<port>` | that there is one |

use std::collections::{BTreeMap, BTreeSet};

use jiff::{Span, Timestamp};
use serde_json::Value;

use super::transcript::Transcript;

/// The letters of kube-apiserver's generated names, chosen so that they form no words.
const NAME_LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";

/// The order of managers. The server sorts them by operation, then by the second of their write.
/// Two writes of a scenario may or may not be in the same second, so managers of the same operation
/// are sorted by name here.
const MANAGER_ORDER: [&str; 4] = ["operation", "manager", "subresource", "apiVersion"];

/// Masks a whole transcript; `id` is the unique word of its run.
pub fn mask(transcript: &mut Transcript, id: &str) {
    let mut masks = Masks { id: id.to_owned(), now: Timestamp::now(), ..Masks::default() };
    for exchange in &mut transcript.exchanges {
        exchange.body.sort_all_objects();
        exchange.events.iter_mut().flatten().for_each(Value::sort_all_objects);
        masks.learn(&exchange.body, Versions::Object);
        exchange.events.iter().flatten().for_each(|event| masks.learn(event, Versions::Object));
    }
    for exchange in &mut transcript.exchanges {
        for value in exchange.headers.values_mut().flatten() {
            *value = masks.text(value);
        }
        masks.apply(&mut exchange.body, "", Versions::Object);
        exchange.events.iter_mut().flatten().for_each(|event| masks.apply(event, "", Versions::Object));
        // Masks in keys have changed their order.
        exchange.body.sort_all_objects();
        exchange.events.iter_mut().flatten().for_each(Value::sort_all_objects);
    }
    transcript.stopped = transcript.stopped.take().map(|reason| masks.text(&reason));
}

/// The owner of the resourceVersion at a place.
#[derive(Clone, Copy, PartialEq)]
enum Versions {
    Object,
    List,
    Bookmark,
}

#[derive(Default)]
struct Masks {
    id: String,
    now: Timestamp,
    uids: BTreeMap<String, usize>,
    versions: BTreeSet<u64>,
    generated: Vec<(String, String)>,
}

impl Masks {
    /// Collects the versions and generated names, from which the masks are numbered.
    fn learn(&mut self, value: &Value, versions: Versions) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.learn(item, versions)),
            Value::Object(fields) => {
                self.learn_name(value);
                for (key, field) in fields {
                    let inner = inside(value, key, versions);
                    match field.as_str().and_then(|text| text.parse().ok()) {
                        Some(version)
                            if key == "resourceVersion" && inner == Versions::Object && version > 0 =>
                        {
                            self.versions.insert(version);
                        }
                        _ => self.learn(field, inner),
                    }
                }
            }
            _ => {}
        }
    }

    fn learn_name(&mut self, metadata: &Value) {
        let text = |key: &str| metadata.get(key).and_then(Value::as_str);
        let (Some(prefix), Some(name)) = (text("generateName"), text("name")) else { return };
        let Some(end) = name.strip_prefix(prefix) else { return };
        let drawn = end.len() == 5 && end.chars().all(|letter| NAME_LETTERS.contains(letter));
        if drawn && !self.generated.iter().any(|(known, _)| known == name) {
            let label = format!("{prefix}<generated{}>", self.generated.len() + 1);
            self.generated.push((name.to_owned(), label));
        }
    }

    fn apply(&mut self, value: &mut Value, key: &str, versions: Versions) {
        match value {
            Value::String(text) => *text = self.string(key, text, versions),
            Value::Number(_) if key == "nodePort" || key == "healthCheckNodePort" => *value = "<port>".into(),
            Value::Array(items) => {
                items.iter_mut().for_each(|item| self.apply(item, key, versions));
                if field_of(key) == "managedFields" {
                    items.sort_by_key(|entry| MANAGER_ORDER.map(|part| entry[part].to_string()));
                }
            }
            Value::Object(_) => {
                let whole = value.clone();
                if let Value::Object(fields) = value {
                    for (key, mut field) in std::mem::take(fields) {
                        self.apply(&mut field, &key, inside(&whole, &key, versions));
                        fields.insert(self.text(&key), field);
                    }
                }
            }
            _ => {}
        }
    }

    fn string(&mut self, key: &str, text: &str, versions: Versions) -> String {
        match field_of(key) {
            "resourceVersion" if text.parse::<u64>().is_ok_and(|version| version > 0) => match versions {
                Versions::Object => self.version(text),
                Versions::List => "<list-rv>".to_owned(),
                Versions::Bookmark => "<bookmark-rv>".to_owned(),
            },
            "continue" if !text.is_empty() => "<continue>".to_owned(),
            "token" if text.starts_with("ey") && text.matches('.').count() == 2 => "<jwt>".to_owned(),
            "cells" if is_young_age(text) => "<age>".to_owned(),
            "clusterIP" | "clusterIPs" if text.parse::<std::net::IpAddr>().is_ok() => "<ip>".to_owned(),
            _ => self.time(text).unwrap_or_else(|| self.text(text)),
        }
    }

    fn version(&self, text: &str) -> String {
        match text
            .parse()
            .ok()
            .and_then(|version: u64| self.versions.iter().position(|known| *known == version))
        {
            Some(index) => format!("<rv{}>", index + 1),
            None => text.to_owned(),
        }
    }

    /// Masks a time of about now. A time that the scenario chose itself is different and is
    /// compared as it is.
    fn time(&self, text: &str) -> Option<String> {
        let time: Timestamp = text.parse().ok()?;
        let near = Span::new().hours(48);
        let (from, to) = (self.now.checked_sub(near).ok()?, self.now.checked_add(near).ok()?);
        if time < from || time > to {
            return None;
        }
        match text.len() {
            20 => Some("<time>".to_owned()),
            27 => Some("<microtime>".to_owned()),
            _ => Some(format!("<time of {} characters>", text.len())),
        }
    }

    /// Masks the parts that may appear in the middle of any text.
    fn text(&mut self, text: &str) -> String {
        let mut text = text.replace(&self.id, "<id>");
        for (name, label) in &self.generated {
            text = text.replace(name, label);
        }
        text = self.uids_in(&text);
        for before in ["ResourceVersion in the precondition (", "ResourceVersion in record ("] {
            text = self.number_after(&text, before, true);
        }
        text = self.number_after(&text, "too old resource version: 1 (", false);
        text = self.number_after(&text, "current: ", false);
        letters_after(&without_quoted_object(&text), "kube-api-access-")
    }

    fn uids_in(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match rest.get(..36).filter(|candidate| is_uid(candidate)) {
                Some(uid) => {
                    let next = self.uids.len() + 1;
                    let number = *self.uids.entry(uid.to_owned()).or_insert(next);
                    out.push_str(&format!("<uid{number}>"));
                    rest = &rest[36..];
                }
                None => {
                    out.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        out
    }

    /// Masks the number that follows `before`: as an ordered version, or as some version.
    fn number_after(&self, text: &str, before: &str, in_order: bool) -> String {
        let Some((head, tail)) = text.split_once(before) else { return text.to_owned() };
        let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return text.to_owned();
        }
        let label = if in_order { self.version(&tail[..digits]) } else { "<rv>".to_owned() };
        format!("{head}{before}{label}{}", self.number_after(&tail[digits..], before, in_order))
    }
}

/// Returns the owner of the versions below `key` of `value`.
fn inside(value: &Value, key: &str, outer: Versions) -> Versions {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    match key {
        "object" if value.get("type").is_some_and(|kind| kind == "BOOKMARK") => Versions::Bookmark,
        "object" => Versions::Object,
        "metadata"
            if value.get("items").is_some() || value.get("rows").is_some() || kind.ends_with("List") =>
        {
            Versions::List
        }
        "items" | "rows" => Versions::Object,
        _ => outer,
    }
}

/// Returns the field that a key names. A step's `only` records parts under their pointers, perhaps
/// into a list.
fn field_of(key: &str) -> &str {
    key.rsplit('/').find(|part| part.parse::<usize>().is_err()).unwrap_or(key)
}

/// Removes the object that an error about a patch quotes, with its times and versions and in the
/// order of a Go struct. The actual problem follows the quotation.
fn without_quoted_object(text: &str) -> String {
    const BEGIN: &str = "Invalid value: \"{\\\"";
    let Some((head, tail)) = text.split_once(BEGIN) else { return text.to_owned() };
    match tail.split_once("}\": ") {
        Some((_, reason)) => format!("{head}Invalid value: <the object>: {}", without_quoted_object(reason)),
        None => text.to_owned(),
    }
}

/// Returns true for the age that a table shows for a new object of the scenario.
fn is_young_age(text: &str) -> bool {
    text.strip_suffix('s').is_some_and(|digits| {
        (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn is_uid(text: &str) -> bool {
    text.bytes().enumerate().all(|(index, byte)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    })
}

fn letters_after(text: &str, before: &str) -> String {
    let Some((head, tail)) = text.split_once(before) else { return text.to_owned() };
    match tail.get(..5) {
        Some(end) if end.chars().all(|letter| NAME_LETTERS.contains(letter)) => {
            format!("{head}{before}<generated>{}", letters_after(&tail[5..], before))
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::transcript::Exchange;
    use super::*;
    use serde_json::json;

    fn masked(bodies: &[Value]) -> Vec<Value> {
        let exchange = |body: &Value| Exchange { body: body.clone(), ..Exchange::default() };
        let mut transcript = Transcript { exchanges: bodies.iter().map(exchange).collect(), stopped: None };
        mask(&mut transcript, "abcdefgh");
        transcript.exchanges.into_iter().map(|one| one.body).collect()
    }

    #[test]
    fn versions_keep_their_order_and_uids_their_identity() {
        let uid = |digit: char| format!("{digit}1111111-2222-4333-8444-555555555555");
        let object =
            |version: &str, uid: String| json!({"metadata": {"resourceVersion": version, "uid": uid}});
        let bodies = masked(&[object("90", uid('b')), object("101", uid('a')), object("90", uid('b'))]);
        let expected =
            |version: &str, uid: &str| json!({"metadata": {"resourceVersion": version, "uid": uid}});
        assert_eq!(
            bodies,
            [expected("<rv1>", "<uid1>"), expected("<rv2>", "<uid2>"), expected("<rv1>", "<uid1>")]
        );
    }

    #[test]
    fn a_list_has_a_version_of_its_own() {
        let list = json!({"kind": "PodList", "metadata": {"resourceVersion": "7"},
                          "items": [{"metadata": {"resourceVersion": "5"}}]});
        assert_eq!(
            masked(&[list])[0],
            json!({"kind": "PodList", "metadata": {"resourceVersion": "<list-rv>"},
                   "items": [{"metadata": {"resourceVersion": "<rv1>"}}]})
        );
    }

    #[test]
    fn generated_names_are_masked_only_when_drawn_from_the_alphabet() {
        let good = json!({"generateName": "a-", "name": "a-bcdf2"});
        let bad = json!({"generateName": "a-", "name": "a-aeiou"});
        let bodies = masked(&[good, bad]);
        assert_eq!(bodies[0]["name"], "a-<generated1>");
        assert_eq!(bodies[1]["name"], "a-aeiou");
    }

    #[test]
    fn a_quoted_object_is_masked_and_the_reason_behind_it_is_not() {
        let message = r#"patch: Invalid value: "{\"a\":{\"b\":\"c\"}}": unknown field "x""#;
        let body = &masked(&[json!({"message": message})])[0];
        assert_eq!(body["message"], r#"patch: Invalid value: <the object>: unknown field "x""#);
    }

    #[test]
    fn times_of_now_are_masked_and_others_are_not() {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let bodies = masked(&[json!({"a": now, "b": "2020-01-01T00:00:00Z", "c": "1h"})]);
        assert_eq!(bodies[0], json!({"a": "<time>", "b": "2020-01-01T00:00:00Z", "c": "1h"}));
    }
}
