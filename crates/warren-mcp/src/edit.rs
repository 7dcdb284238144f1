//! Replacing a text in a file of a sandbox.

use warren_client::files::{Files, LARGEST};

/// Replaces a text in a file's content. It has to be there, and only once unless all are to be replaced.
pub fn edit(content: &str, old: &str, new: &str, all: bool) -> Result<(String, usize), String> {
    if old.is_empty() {
        return Err("`old_text` is empty; `upload_file` writes a whole file".to_owned());
    }
    if old == new {
        return Err("`new_text` is the same as `old_text`".to_owned());
    }
    match content.matches(old).count() {
        0 => Err("`old_text` is not in the file; read it with `download_file` and copy the text exactly"
            .to_owned()),
        count if count > 1 && !all => Err(format!(
            "`old_text` is in the file {count} times; name more of its surroundings, or set `replace_all`"
        )),
        count => Ok((content.replace(old, new), count)),
    }
}

/// Reads a whole file of text, for [`edit`].
pub async fn read_text(files: &impl Files, path: &str) -> Result<String, String> {
    let part = files.read(path, 0, LARGEST as u64).await?;
    if part.size > LARGEST as u64 {
        return Err(format!("edit `{path}`: {} bytes, and {LARGEST} are possible", part.size));
    }
    String::from_utf8(part.bytes).map_err(|_| format!("edit `{path}`: the file is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_replaces_exactly_what_is_named() {
        assert_eq!(edit("a b a", "b", "c", false), Ok(("a c a".to_owned(), 1)));
        assert_eq!(edit("a b a", "a", "c", true), Ok(("c b c".to_owned(), 2)));
        for (old, word) in [("a", "2 times"), ("x", "not in the file"), ("", "empty")] {
            assert!(edit("a b a", old, "c", false).expect_err(word).contains(word));
        }
    }
}
