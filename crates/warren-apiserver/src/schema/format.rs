//! Formats of strings and numbers that kube-apiserver checks.

/// The value of `format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// No format, or one that is not checked.
    #[default]
    None,
    Int32,
    Int64,
    Float,
    Double,
    DateTime,
    /// A time of the built-in kinds, written with microseconds.
    MicroTime,
    Date,
    Ipv4,
    Ipv6,
    Cidr,
    Uuid,
    Byte,
}

const NAMES: [(Format, &str); 11] = [
    (Format::Int32, "int32"),
    (Format::Int64, "int64"),
    (Format::Float, "float"),
    (Format::Double, "double"),
    (Format::DateTime, "date-time"),
    (Format::Date, "date"),
    (Format::Ipv4, "ipv4"),
    (Format::Ipv6, "ipv6"),
    (Format::Cidr, "cidr"),
    (Format::Uuid, "uuid"),
    (Format::Byte, "byte"),
];

impl Format {
    pub fn from_name(name: &str) -> Format {
        NAMES.iter().find(|(_, known)| *known == name).map(|(format, _)| *format).unwrap_or_default()
    }

    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(format, _)| *format == self).map(|(_, name)| *name)
    }

    /// Returns true if a string has the format.
    pub fn accepts(self, text: &str) -> bool {
        match self {
            Format::None | Format::Int32 | Format::Int64 | Format::Float | Format::Double => true,
            Format::DateTime | Format::MicroTime => is_time(text),
            Format::Date => text.parse::<jiff::civil::Date>().is_ok(),
            Format::Ipv4 => text.parse::<std::net::Ipv4Addr>().is_ok(),
            Format::Ipv6 => text.parse::<std::net::Ipv6Addr>().is_ok(),
            Format::Cidr => text.split_once('/').is_some_and(|(address, length)| {
                let longest = match address.parse::<std::net::IpAddr>() {
                    Ok(std::net::IpAddr::V4(_)) => 32,
                    Ok(std::net::IpAddr::V6(_)) => 128,
                    Err(_) => return false,
                };
                length.parse::<u8>().is_ok_and(|length| length <= longest)
            }),
            Format::Uuid => text.parse::<uuid::Uuid>().is_ok(),
            Format::Byte => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.decode(text).is_ok()
            }
        }
    }
}

/// Returns the message of kube-apiserver's decoder for an invalid time, or `None` if it is valid.
pub(super) fn time_error(text: &str, format: Format) -> Option<String> {
    let (layout, fraction) = match format {
        Format::DateTime => ("2006-01-02T15:04:05Z07:00", ""),
        Format::MicroTime => ("2006-01-02T15:04:05.000000Z07:00", ".000000"),
        _ => return None,
    };
    let mut rest = text;
    // A separator belongs to the element before it.
    for (element, digits, separator) in
        [("2006", 4, "-"), ("01", 2, "-"), ("02", 2, "T"), ("15", 2, ":"), ("04", 2, ":"), ("05", 2, "")]
    {
        let complain = |rest: &str, element: &str| {
            Some(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}"))
        };
        match rest.split_at_checked(digits) {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest = after,
            _ => return complain(rest, element),
        }
        match rest.strip_prefix(separator) {
            Some(after) => rest = after,
            None => return complain(rest, separator),
        }
    }
    let complain = |rest: &str, element: &str| {
        Some(format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {element:?}"))
    };
    let digits =
        rest.strip_prefix('.').map_or(0, |after| after.bytes().take_while(u8::is_ascii_digit).count());
    match (fraction, digits) {
        ("", 0) => {}
        ("", _) => rest = &rest[1 + digits..],
        (_, 6..) => rest = &rest[fraction.len()..],
        _ => return complain(rest, fraction),
    }
    let zone = rest.as_bytes();
    let is_offset = zone.len() == 6
        && matches!(zone[0], b'+' | b'-')
        && zone[3] == b':'
        && [1, 2, 4, 5].iter().all(|at| zone[*at].is_ascii_digit());
    if rest != "Z" && !is_offset {
        return match rest.strip_prefix('Z') {
            Some(extra) => Some(format!("parsing time {text:?}: extra text: {extra:?}")),
            None => complain(rest, "Z07:00"),
        };
    }
    (!is_time(text)).then(|| format!("parsing time {text:?}: day out of range"))
}

/// Returns true for a valid time. A [`jiff::Timestamp`] cannot hold the last day of the year 9999,
/// so times of that year are checked in 9998.
fn is_time(text: &str) -> bool {
    let is = |text: &str| text.parse::<jiff::Timestamp>().is_ok();
    is(text) || text.strip_prefix("9999-").is_some_and(|rest| is(&format!("9998-{rest}")))
}

#[cfg(test)]
mod tests {
    use super::{Format, time_error};

    #[test]
    fn times_are_read_as_the_real_server_reads_them() {
        for good in ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05+01:00"] {
            assert_eq!(time_error(good, Format::DateTime), None, "{good}");
        }
        assert_eq!(time_error("2026-01-02T03:04:05.123456Z", Format::MicroTime), None);
        for (bad, format, element) in [
            ("yesterday", Format::DateTime, "\"yesterday\" as \"2006\""),
            ("2026-1-02T03:04:05Z", Format::DateTime, "\"1-02T03:04:05Z\" as \"01\""),
            ("2026-01-02", Format::DateTime, "\"\" as \"T\""),
            ("2026-01-02T03:04:05", Format::DateTime, "\"\" as \"Z07:00\""),
            ("2026-01-02T03:04:05Z", Format::MicroTime, "\"Z\" as \".000000\""),
        ] {
            let message = time_error(bad, format).unwrap();
            assert!(message.ends_with(element), "{message}");
        }
        assert!(time_error("2026-02-31T03:04:05Z", Format::DateTime).is_some());
        assert!(time_error("", Format::DateTime).is_some());
    }

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("date-time", "2026-01-02T03:04:05Z", "yesterday"),
            ("date", "2026-01-02", "2026-13-02"),
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("ipv6", "::1", "10.0.0.1"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("uuid", "11111111-2222-4333-8444-555555555555", "1"),
            ("byte", "YQ==", "!"),
        ] {
            let format = Format::from_name(format);
            assert!(format.accepts(good), "{good}");
            assert!(!format.accepts(bad), "{bad}");
        }
        assert!(Format::from_name("anything").accepts("x"));
    }
}
