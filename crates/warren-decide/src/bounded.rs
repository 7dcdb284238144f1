//! Limits the length of text that comes from others and goes into our messages.

use std::borrow::Cow;

/// The API server's length limit for an event's note.
pub(crate) const LONGEST_NOTE: usize = 1024;

/// Returns the text, cut to at most `limit` bytes. A mark shows that it was cut.
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
