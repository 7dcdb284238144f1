//! Durations as Kubernetes users write them: Go's syntax, such as `90s`, `1h30m` or `1.5h`.

use std::time::Duration;

/// The error for a text that is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoDurationError {
    /// It is not in Go's syntax.
    #[error("not a duration such as 90s, 1h30m or 1.5h")]
    Malformed,
    /// It is negative, which no field here allows.
    #[error("a negative duration")]
    Negative,
    /// It is longer than a duration can be.
    #[error("a duration that is too long")]
    TooLong,
}

/// Parses a duration in Go's syntax: numbers with units (`ns`, `us`, `µs`, `ms`, `s`, `m`, `h`), or
/// a bare `0`. Negative durations are refused, except for a negative zero.
pub fn parse(text: &str) -> Result<Duration, GoDurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(GoDurationError::Malformed);
    }
    let mut nanoseconds: u128 = 0;
    while !rest.is_empty() {
        let (amount, after) = take_amount(rest)?;
        let (unit, after) = take_unit(after)?;
        nanoseconds = amount
            .nanoseconds(unit)
            .and_then(|part| nanoseconds.checked_add(part))
            .ok_or(GoDurationError::TooLong)?;
        rest = after;
    }
    // Go stores durations as signed 64-bit nanoseconds, so its programs cannot represent longer
    // ones.
    let nanoseconds = i64::try_from(nanoseconds).map_err(|_| GoDurationError::TooLong)?;
    match (negative, u64::try_from(nanoseconds)) {
        (true, Ok(1..)) => Err(GoDurationError::Negative),
        (_, Ok(nanoseconds)) => Ok(Duration::from_nanos(nanoseconds)),
        (_, Err(_)) => Err(GoDurationError::TooLong),
    }
}

/// A decimal number as digits and scale: `1.25` is 125 with two digits after the point.
struct Amount {
    digits: u128,
    scale: u128,
}

impl Amount {
    fn nanoseconds(&self, unit: u128) -> Option<u128> {
        Some(self.digits.checked_mul(unit)? / self.scale)
    }
}

fn take_amount(text: &str) -> Result<(Amount, &str), GoDurationError> {
    let end = text.find(|next: char| !next.is_ascii_digit() && next != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(GoDurationError::Malformed);
    }
    // Digits after the twelfth are less than a nanosecond, even of hours.
    let fraction = &fraction[..fraction.len().min(12)];
    let digits = format!("{whole}{fraction}").parse().map_err(|_| GoDurationError::TooLong)?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or_default());
    Ok((Amount { digits, scale }, rest))
}

fn take_unit(text: &str) -> Result<(u128, &str), GoDurationError> {
    let end = text.find(|next: char| next.is_ascii_digit() || next == '.').unwrap_or(text.len());
    let (unit, rest) = text.split_at(end);
    let nanoseconds = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(GoDurationError::Malformed),
    };
    Ok((nanoseconds, rest))
}

/// Formats a duration in Go's syntax, to the millisecond.
#[must_use]
pub fn format(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (hours, minutes) = (milliseconds / 3_600_000, milliseconds / 60_000 % 60);
    let (seconds, rest) = (milliseconds / 1_000 % 60, milliseconds % 1_000);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    if rest > 0 {
        text.push_str(format!("{seconds}.{rest:03}").trim_end_matches('0'));
        text.push('s');
    } else if seconds > 0 || text.is_empty() {
        text.push_str(&format!("{seconds}s"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{GoDurationError, format, parse};

    #[test]
    fn what_go_accepts_is_accepted() {
        let seconds = |text: &str| parse(text).map(|duration| duration.as_secs_f64());
        assert_eq!(seconds("0"), Ok(0.0));
        assert_eq!(seconds("-0"), Ok(0.0));
        assert_eq!(seconds("90s"), Ok(90.0));
        assert_eq!(seconds("1m30s"), Ok(90.0));
        assert_eq!(seconds("+1.5h"), Ok(5400.0));
        assert_eq!(seconds(".5m"), Ok(30.0));
        assert_eq!(seconds("5.s"), Ok(5.0));
        assert_eq!(seconds("1h1m1s1ms"), Ok(3661.001));
        assert_eq!(parse("100µs"), Ok(Duration::from_micros(100)));
        assert_eq!(parse("1.00000000000000000001ns"), Ok(Duration::from_nanos(1)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "-", "5", "5 s", "s", ".s", "1..5s", "1d", "5m ", "five minutes", "1e3s", "٣s"] {
            assert_eq!(parse(text), Err(GoDurationError::Malformed), "{text:?}");
        }
        assert_eq!(parse("-5s"), Err(GoDurationError::Negative));
        for text in ["9999999999999h", "99999999999999999999999999999999999999999s"] {
            assert_eq!(parse(text), Err(GoDurationError::TooLong), "{text:?}");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in ["0s", "1s", "1.5s", "0.02s", "10m", "1h30m", "2h0.001s", "25h1m1s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
    }
}
