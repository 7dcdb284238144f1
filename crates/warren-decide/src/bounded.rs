//! Text of others in words of ours: never longer than it has to be.

use std::borrow::Cow;

/// The server takes no longer note of an event.
pub(crate) const LONGEST_NOTE: usize = 1024;

/// The text, cut to at most `limit` bytes with a mark where it was cut.
pub(crate) fn bounded(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let mark = "…";
    let mut end = limit.saturating_sub(mark.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{mark}", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn a_cut_is_marked_and_falls_between_characters() {
        assert_eq!(bounded("short", 5), "short");
        assert_eq!(bounded("longer", 5), "lo…");
        assert_eq!(bounded("ääää", 7), "ää…");
        assert_eq!(bounded("ä", 0), "…");
    }
}
