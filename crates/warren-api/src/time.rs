//! Parsing of times.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer, de};

/// Parses a time. Servers accept the last day of the year 9999, which people use for "never", but a
/// [`Timestamp`] cannot be so late: it becomes the latest one.
pub(crate) fn within_reach<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| read(&text).map(Time).map_err(de::Error::custom)).transpose()
}

fn read(text: &str) -> Result<Timestamp, k8s_openapi::jiff::Error> {
    text.parse().or_else(|error| {
        // Check the same day a year earlier: both years have as many days.
        let is_time = text
            .strip_prefix("9999-")
            .is_some_and(|rest| format!("9998-{rest}").parse::<Timestamp>().is_ok());
        if is_time { Ok(Timestamp::MAX) } else { Err(error) }
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::read;

    #[test]
    fn the_end_of_time_is_a_time() {
        for never in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999Z", "9999-12-31T00:00:00-11:00"] {
            assert_eq!(read(never).unwrap(), Timestamp::MAX, "{never}");
        }
        assert_eq!(read("9999-12-30T00:00:00Z").unwrap().to_string(), "9999-12-30T00:00:00Z");
        assert_eq!(read("2026-11-17T10:00:00+01:00").unwrap().to_string(), "2026-11-17T09:00:00Z");
        for nonsense in ["9999-12-32T00:00:00Z", "9999-", "never", ""] {
            assert!(read(nonsense).is_err(), "{nonsense}");
        }
    }
}
