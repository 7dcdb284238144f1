//! Reads `multipart/form-data` piece by piece, as it arrives, with no more in memory than a piece and
//! the headers of a part.

use std::fmt;

use bytes::{Bytes, BytesMut};

/// Headers of a part longer than this are refused.
const LONGEST_HEADERS: usize = 16 << 10;
/// The longest boundary that RFC 2046 allows.
const LONGEST_BOUNDARY: usize = 70;

/// Something that a body consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A part begins.
    Part(Disposition),
    /// More of its content.
    Data(Bytes),
    /// It ends.
    PartEnd,
    /// The whole body ends; what follows is ignored.
    End,
}

/// The names of a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disposition {
    /// The form's field.
    pub name: Option<String>,
    /// The file's name, with directories if it has any.
    pub filename: Option<String>,
}

/// A body that is not `multipart/form-data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MultipartError {
    /// The content type names no boundary, or none that can be.
    NoBoundary,
    /// The headers of a part have no end.
    LongHeaders,
    /// A boundary is followed by something else than a line's end.
    BadBoundary,
}

impl fmt::Display for MultipartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            MultipartError::NoBoundary => "the content type is not multipart/form-data with a boundary",
            MultipartError::LongHeaders => "the headers of a part are too long",
            MultipartError::BadBoundary => "a boundary is not followed by the end of its line",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first boundary.
    Preamble,
    /// Behind a boundary.
    Boundary,
    Headers,
    Content,
    Ended,
}

/// Reads one body.
#[derive(Debug)]
pub struct Multipart {
    /// With the line's end and the two hyphens that come before it.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

impl Multipart {
    /// Begins with the content type of a request.
    pub fn new(content_type: &str) -> Result<Multipart, MultipartError> {
        let (kind, parameters) = content_type.split_once(';').ok_or(MultipartError::NoBoundary)?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(MultipartError::NoBoundary);
        }
        let boundary = parameters_of(parameters).find(|(name, _)| name == "boundary").map(|(_, value)| value);
        let boundary = boundary.filter(|text| (1..=LONGEST_BOUNDARY).contains(&text.len()));
        let delimiter = format!("\r\n--{}", boundary.ok_or(MultipartError::NoBoundary)?).into_bytes();
        // The first boundary may be at the very beginning, without a line's end before it.
        Ok(Multipart { delimiter, buffer: BytesMut::from(&b"\r\n"[..]), state: State::Preamble })
    }

    /// Takes what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.state != State::Ended {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns what comes next; `None` until more has arrived.
    pub fn event(&mut self) -> Result<Option<Event>, MultipartError> {
        loop {
            match self.state {
                State::Ended => return Ok(None),
                State::Preamble | State::Content => {
                    let is_content = self.state == State::Content;
                    match find(&self.buffer, &self.delimiter) {
                        Some(0) => {
                            let _ = self.buffer.split_to(self.delimiter.len());
                            self.state = State::Boundary;
                            if is_content {
                                return Ok(Some(Event::PartEnd));
                            }
                        }
                        Some(length) => {
                            let data = self.buffer.split_to(length).freeze();
                            if is_content {
                                return Ok(Some(Event::Data(data)));
                            }
                        }
                        None => {
                            // The end may be the beginning of a boundary.
                            let certain = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                            if certain == 0 {
                                return Ok(None);
                            }
                            let data = self.buffer.split_to(certain).freeze();
                            if is_content {
                                return Ok(Some(Event::Data(data)));
                            }
                        }
                    }
                }
                State::Boundary => {
                    if self.buffer.starts_with(b"--") {
                        self.buffer.clear();
                        self.state = State::Ended;
                        return Ok(Some(Event::End));
                    }
                    let blank = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
                    let rest = &self.buffer[blank..];
                    if rest.starts_with(b"\r\n") {
                        // The line's end stays: headers, also if there are none, end with an empty line.
                        let _ = self.buffer.split_to(blank);
                        self.state = State::Headers;
                    } else if blank > LONGEST_HEADERS
                        || !(b"\r\n".starts_with(rest) || rest == b"-" && blank == 0)
                    {
                        return Err(MultipartError::BadBoundary);
                    } else {
                        return Ok(None);
                    }
                }
                State::Headers => match find(&self.buffer, b"\r\n\r\n") {
                    Some(length) if length <= LONGEST_HEADERS => {
                        let headers = self.buffer.split_to(length + 4);
                        self.state = State::Content;
                        let disposition = disposition(&String::from_utf8_lossy(&headers));
                        return Ok(Some(Event::Part(disposition)));
                    }
                    None if self.buffer.len() <= LONGEST_HEADERS => return Ok(None),
                    _ => return Err(MultipartError::LongHeaders),
                },
            }
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = wanted[0];
    let mut from = 0;
    while let Some(offset) = bytes[from..].iter().position(|byte| *byte == first) {
        let at = from + offset;
        if bytes[at..].len() < wanted.len() {
            return None;
        }
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// Reads the names in `Content-Disposition`.
fn disposition(headers: &str) -> Disposition {
    let mut found = Disposition::default();
    for line in headers.split("\r\n") {
        let Some((header, value)) = line.split_once(':') else { continue };
        if !header.trim().eq_ignore_ascii_case("content-disposition") {
            continue;
        }
        let Some((_, parameters)) = value.split_once(';') else { continue };
        let mut extended = None;
        for (name, value) in parameters_of(parameters) {
            match name.as_str() {
                "name" => found.name = Some(unescape(&value)),
                "filename" => found.filename = Some(unescape(&value)),
                "filename*" => extended = extended_value(&value),
                _ => {}
            }
        }
        found.filename = extended.or(found.filename);
    }
    found
}

/// Undoes what clients do to characters that cannot be in quotes (WHATWG HTML, multipart/form-data).
fn unescape(value: &str) -> String {
    value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// `utf-8''name`, as RFC 5987 has it.
fn extended_value(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, encoded) = rest.split_once('\'')?;
    charset.eq_ignore_ascii_case("utf-8").then_some(())?;
    String::from_utf8(crate::root::decode(encoded.as_bytes())).ok()
}

/// Reads `name=value; name="value"`. Names are in lower case.
fn parameters_of(text: &str) -> impl Iterator<Item = (String, String)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        let (name, after) = rest.split_once('=')?;
        let name = name.trim().to_ascii_lowercase();
        let after = after.trim_start_matches([' ', '\t']);
        let Some(quoted) = after.strip_prefix('"') else {
            let (value, next) = after.split_once(';').unwrap_or((after, ""));
            rest = next;
            return Some((name, value.trim().to_owned()));
        };
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        rest = "";
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    rest = &quoted[at + 1..];
                    break;
                }
                '\\' => match characters.clone().next() {
                    Some((_, escaped @ ('"' | '\\'))) => {
                        value.push(escaped);
                        characters.next();
                    }
                    _ => value.push('\\'),
                },
                plain => value.push(plain),
            }
        }
        Some((name, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a body that arrives in pieces of these lengths, over and over.
    fn parts(body: &[u8], pieces: &[usize]) -> Result<Vec<(Disposition, Vec<u8>)>, MultipartError> {
        let mut multipart = Multipart::new("multipart/form-data; boundary=XX")?;
        let (mut parts, mut rest, mut has_ended) = (Vec::new(), body, false);
        for length in pieces.iter().cycle() {
            let (piece, next) = rest.split_at((*length).min(rest.len()));
            multipart.push(piece);
            rest = next;
            while let Some(event) = multipart.event()? {
                match event {
                    Event::Part(disposition) => parts.push((disposition, Vec::new())),
                    Event::Data(data) => parts.last_mut().unwrap().1.extend_from_slice(&data),
                    Event::PartEnd => {}
                    Event::End => has_ended = true,
                }
            }
            if rest.is_empty() {
                break;
            }
        }
        assert!(has_ended, "the body has an end");
        Ok(parts)
    }

    fn file(filename: &str) -> Disposition {
        Disposition { name: Some("file".to_owned()), filename: Some(filename.to_owned()) }
    }

    #[test]
    fn content_is_the_same_however_it_arrives() {
        let content = b"one\r\n--X\r\n--XY two\r\n\r\n-- \r";
        let mut body =
            b"preamble\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a/b.txt\"\r\n\r\n"
                .to_vec();
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n--XX \r\n\r\nno headers\r\n--XX\r\nA: b\r\n\r\n\r\n--XX--\r\nepilogue");
        for length in 1..body.len() {
            let parts = parts(&body, &[length]).unwrap();
            assert_eq!(parts.len(), 3, "{length}");
            assert_eq!(parts[0], (file("a/b.txt"), content.to_vec()), "{length}");
            assert_eq!(parts[1], (Disposition::default(), b"no headers".to_vec()), "{length}");
            assert_eq!(parts[2].1, b"", "{length}");
        }
    }

    #[test]
    fn names_of_files_keep_their_directories_and_characters() {
        for (header, filename) in [
            (r#"filename="dir/x.txt""#, "dir/x.txt"),
            (r#"filename="/abs/ü.txt""#, "/abs/ü.txt"),
            (r#"filename="a;b=c.txt""#, "a;b=c.txt"),
            (r#"filename="a\"b\\c\d""#, r#"a"b\c\d"#),
            (r#"filename="a%22b.txt""#, r#"a"b.txt"#),
            (r#"filename="plain"; filename*=utf-8''%C3%BC%2Fx"#, "ü/x"),
            (r"filename=bare.txt", "bare.txt"),
        ] {
            let headers = format!("X: y\r\nContent-Disposition: form-data; name=\"file\"; {header}\r\n\r\n");
            assert_eq!(disposition(&headers), file(filename), "{header}");
        }
    }

    #[test]
    fn boundaries_are_found_in_content_types() {
        for good in ["multipart/form-data; boundary=abc", "Multipart/Form-Data; x=y; Boundary=\"a b\""] {
            assert!(Multipart::new(good).is_ok(), "{good}");
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for bad in ["application/json", "multipart/form-data", "multipart/form-data; boundary=", &long] {
            assert_eq!(Multipart::new(bad).err(), Some(MultipartError::NoBoundary), "{bad}");
        }
    }

    #[test]
    fn headers_without_an_end_are_refused() {
        let body = format!("--XX\r\nA: {}", "b".repeat(LONGEST_HEADERS + 1));
        assert_eq!(parts(body.as_bytes(), &[100]), Err(MultipartError::LongHeaders));
        assert_eq!(parts(b"--XXY\r\n\r\n", &[100]), Err(MultipartError::BadBoundary));
    }

    /// Random bodies of the characters that matter, in random pieces: what is written is what is read.
    #[test]
    fn random_content_survives_random_pieces() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let content: Vec<u8> = (0..random.usize(0..60)).map(|_| b"\r\n-XA"[random.usize(0..5)]).collect();
            if find(&content, b"\r\n--XX").is_some() || content.starts_with(b"--XX") {
                continue;
            }
            let mut body = b"--XX\r\ncontent-disposition: form-data; name=file; filename=f\r\n\r\n".to_vec();
            body.extend_from_slice(&content);
            body.extend_from_slice(b"\r\n--XX--");
            let pieces: Vec<usize> = (0..5).map(|_| random.usize(1..20)).collect();
            let parts = parts(&body, &pieces).unwrap();
            assert_eq!(parts, [(file("f"), content)], "seed {seed}");
        }
        // And of nothing but noise there is an error or nothing, never a panic.
        for _ in 0..2000 {
            let noise: Vec<u8> =
                (0..random.usize(0..200)).map(|_| b"\r\n-XA:;=\"\\' \xff"[random.usize(0..13)]).collect();
            let mut multipart = Multipart::new("multipart/form-data; boundary=XX").unwrap();
            multipart.push(b"--XX\r\nContent-Disposition:");
            for piece in noise.chunks(7) {
                multipart.push(piece);
                while let Ok(Some(_)) = multipart.event() {}
            }
        }
    }
}
