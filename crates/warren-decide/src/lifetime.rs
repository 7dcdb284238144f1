//! Reads the annotation `warren.dev/ttl`: the whole time to live of a Sandbox or a claim.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use warren_api::{annotations, go_duration};

use crate::bounded::bounded;
use crate::ownership;

/// Returns when an object ends by its annotation, counted from its creation. `None` without the
/// annotation, for `0`, and for a value that is not a duration ([`nonsense`]).
pub(crate) fn end(metadata: &ObjectMeta) -> Option<Timestamp> {
    let text = ownership::annotation(metadata, annotations::TTL)?;
    let ttl = go_duration::parse(text).ok().filter(|ttl| *ttl > Duration::ZERO)?;
    let Time(created) = metadata.creation_timestamp.as_ref()?;
    created.checked_add(ttl).ok()
}

/// Returns an error text if the annotation's value is not a duration.
pub(crate) fn nonsense(metadata: &ObjectMeta) -> Option<String> {
    let text = ownership::annotation(metadata, annotations::TTL)?;
    go_duration::parse(text).err()?;
    let shown = bounded(text, 64);
    Some(format!("{}: {shown:?} is not a duration such as 90s or 1h, and is ignored", annotations::TTL))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_ends_so_long_after_its_creation() {
        let read = |ttl: &str| {
            let metadata = json!({
                "creationTimestamp": "2027-01-15T08:00:00Z", "annotations": {annotations::TTL: ttl},
            });
            let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
            (end(&metadata).map(|end| end.to_string()), nonsense(&metadata))
        };
        assert_eq!(read("1h30m"), (Some("2027-01-15T09:30:00Z".to_owned()), None));
        assert_eq!(read("0"), (None, None));
        for value in ["", "1 hour", "-5s", "3600", "99999999999999h"] {
            let text =
                format!("warren.dev/ttl: {value:?} is not a duration such as 90s or 1h, and is ignored");
            assert_eq!(read(value), (None, Some(text)));
        }
        assert_eq!(end(&ObjectMeta::default()), None);
    }
}
