//! Parses Kubernetes quantities (`500m`, `2Gi`, `1e3`) as exact thousandths.

use std::str::FromStr;

/// An amount in thousandths, rounded up as in the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    thousandths: i128,
}

/// The error of a text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a quantity")]
pub struct QuantityError(String);

impl Quantity {
    /// Returns the amount in thousandths, the unit of CPU limits.
    pub fn thousandths(self) -> i128 {
        self.thousandths
    }

    /// Returns the amount in whole units, rounded up: for bytes and processes.
    pub fn units(self) -> i128 {
        self.thousandths.div_euclid(1000) + i128::from(self.thousandths.rem_euclid(1000) != 0)
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Quantity, QuantityError> {
        parse(text).map(|thousandths| Quantity { thousandths }).ok_or_else(|| {
            // The text has any length and ends up in a pod's status: keep its beginning.
            QuantityError(text.chars().take(64).collect())
        })
    }
}

fn parse(text: &str) -> Option<i128> {
    let digits_end = text
        .char_indices()
        .find(|(index, c)| !(c.is_ascii_digit() || *c == '.' || (*index == 0 && matches!(c, '+' | '-'))))
        .map_or(text.len(), |(index, _)| index);
    let (number, suffix) = text.split_at(digits_end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || whole.len() + fraction.len() > 24
    {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    // value = mantissa * multiplier / divisor, in thousandths
    let fraction_divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (multiplier, divisor) = scale(suffix)?;
    let numerator = mantissa.checked_mul(multiplier)?.checked_mul(1000)?;
    let divisor = fraction_divisor.checked_mul(divisor)?;
    let rounded_up = numerator.checked_add(divisor - 1)? / divisor;
    Some(if negative { -(numerator / divisor) } else { rounded_up })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    let power = |exponent: u32, base: i128| base.checked_pow(exponent).map(|value| (value, 1));
    match suffix {
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "" => Some((1, 1)),
        "k" => power(1, 1000),
        "M" => power(2, 1000),
        "G" => power(3, 1000),
        "T" => power(4, 1000),
        "P" => power(5, 1000),
        "E" => power(6, 1000),
        "Ki" => power(1, 1024),
        "Mi" => power(2, 1024),
        "Gi" => power(3, 1024),
        "Ti" => power(4, 1024),
        "Pi" => power(5, 1024),
        "Ei" => power(6, 1024),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let magnitude = 10_i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, magnitude) } else { (magnitude, 1) })
        }
    }
}
