//! Resource quantities: `500m`, `1Gi`, `2e3`.

use serde_json::Value;

/// Suffixes for powers of 1000, beginning with 10⁻⁹.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Suffixes for powers of 1024, beginning with 1024¹.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Nano units in one unit. Finer amounts are rounded up.
const NANO: i128 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

pub(super) fn value(quantity: &Value) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "only compared, and with others of its kind")]
    parse(quantity).map(|(nano, _)| nano as f64 / NANO as f64)
}

/// Formats a quantity as kube-apiserver does, with the largest suffix that leaves no fraction.
pub(crate) fn canonical_quantity(quantity: &Value) -> Option<String> {
    let (nano, format) = parse(quantity)?;
    let whole = nano / NANO;
    if format == Format::Binary && nano % NANO == 0 && whole.abs() >= 1024 {
        let mut power = 0;
        let mut rest = whole;
        while rest % 1024 == 0 && power < BINARY.len() {
            rest /= 1024;
            power += 1;
        }
        let suffix = power.checked_sub(1).map_or("", |index| BINARY[index]);
        return Some(format!("{rest}{suffix}"));
    }
    if nano == 0 {
        return Some("0".to_owned());
    }
    let mut index = 0;
    let mut rest = nano;
    while rest % 1000 == 0 && index + 1 < DECIMAL.len() {
        rest /= 1000;
        index += 1;
    }
    Some(match format {
        Format::Exponent if index != 3 => format!("{rest}e{}", index as i64 * 3 - 9),
        Format::Exponent => rest.to_string(),
        Format::Decimal | Format::Binary => format!("{rest}{}", DECIMAL[index]),
    })
}

/// Returns the amount in nano units, and the format it was written in.
fn parse(quantity: &Value) -> Option<(i128, Format)> {
    let text = match quantity {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_owned(),
        _ => return None,
    };
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')));
    let (number, suffix) = split.map_or((text.as_str(), ""), |index| text.split_at(index));
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let only_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !only_digits(whole) || !only_digits(fraction) {
        return None;
    }
    let (factor, shift, format) = if let Some(index) = BINARY.iter().position(|known| *known == suffix) {
        (1024i128.checked_pow(u32::try_from(index).ok()? + 1)?, 0, Format::Binary)
    } else if let Some(index) = DECIMAL.iter().position(|known| *known == suffix) {
        (1, i32::try_from(index).ok()? * 3 - 9, Format::Decimal)
    } else {
        (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?, Format::Exponent)
    };
    // digits · factor · 10^shift, in nano units.
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let power = 9i32.checked_add(shift)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(factor)?;
    let scale = 10i128.checked_pow(power.unsigned_abs());
    let nano = match (power >= 0, scale) {
        (true, scale) => scaled.checked_mul(scale?)?,
        // Round up, so that a request is never less than what the client wrote.
        (false, Some(scale)) => scaled / scale + i128::from(scaled % scale != 0),
        (false, None) => i128::from(scaled != 0),
    };
    Some((if negative { -nano } else { nano }, format))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{canonical_quantity, value};

    #[test]
    fn quantities() {
        for (quantity, expected, canonical) in [
            (json!("500m"), 0.5, "500m"),
            (json!("0.5"), 0.5, "500m"),
            (json!(0.1), 0.1, "100m"),
            (json!(1), 1.0, "1"),
            (json!(-1), -1.0, "-1"),
            (json!("1Gi"), 1_073_741_824.0, "1Gi"),
            (json!("1024Mi"), 1_073_741_824.0, "1Gi"),
            (json!("1536Mi"), 1_610_612_736.0, "1536Mi"),
            (json!("0.5Gi"), 536_870_912.0, "512Mi"),
            (json!("1073741824"), 1_073_741_824.0, "1073741824"),
            (json!("1000"), 1000.0, "1k"),
            (json!("2"), 2.0, "2"),
            (json!("1e3"), 1000.0, "1e3"),
            (json!("0"), 0.0, "0"),
        ] {
            assert_eq!(value(&quantity), Some(expected), "{quantity}");
            assert_eq!(canonical_quantity(&quantity).as_deref(), Some(canonical), "{quantity}");
        }
        for text in ["", "abc", "1Qi", "1.2.3", "--1", "1e", "many"] {
            assert_eq!(canonical_quantity(&text.into()), None, "{text}");
        }
    }
}
