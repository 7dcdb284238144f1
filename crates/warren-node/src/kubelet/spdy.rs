//! Implements as much of SPDY/3.1 as a server of forwarded ports and of commands' streams needs:
//! frames in both directions and their compressed headers.
//!
//! There is no flow control: these clients do not use it. Frames of a size that no such client
//! sends are refused before they are read.

use std::io;

use bytes::{BufMut as _, Bytes, BytesMut};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest data frame that is accepted. Clients copy by 32 KiB.
const LONGEST_DATA: usize = 1 << 20;
/// The longest control frame: a handful of short headers.
const LONGEST_CONTROL: usize = 16 << 10;
/// The longest decompressed block of headers.
const LONGEST_HEADERS: usize = 64 << 10;
const VERSION: u16 = 3;
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const HEADERS: u16 = 8;

/// A client's frame, reduced to the relevant parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A new stream.
    Open {
        stream: u32,
        headers: Vec<(String, String)>,
    },
    Data {
        stream: u32,
        data: Bytes,
        last: bool,
    },
    Reset {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    /// A frame to ignore.
    Other,
}

/// Reads frames. The headers of all frames are one compressed stream, so it has state.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    reader: R,
    headers: HeaderReader,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, headers: HeaderReader::new() }
    }

    /// Returns the next frame; `None` at the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0; 8];
        if let Err(error) = self.reader.read_exact(&mut head).await {
            return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
        }
        let [first, second, third, fourth, flags, length @ ..] = head;
        let word = u32::from_be_bytes([first, second, third, fourth]);
        let length = usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
        let is_control = word >> 31 == 1;
        if length > if is_control { LONGEST_CONTROL } else { LONGEST_DATA } {
            return Err(invalid("frame is too long"));
        }
        let mut payload = vec![0; length];
        self.reader.read_exact(&mut payload).await?;
        if !is_control {
            return Ok(Some(Frame::Data { stream: word, data: payload.into(), last: flags & FIN != 0 }));
        }
        if (word >> 16 & 0x7fff) as u16 != VERSION {
            return Err(invalid("not version 3 of the protocol"));
        }
        let number = |at: usize| match payload.get(at..at + 4) {
            Some(&[first, second, third, fourth]) => {
                Ok(u32::from_be_bytes([first, second, third, fourth]) & 0x7fff_ffff)
            }
            _ => Err(invalid("frame is too short")),
        };
        Ok(Some(match word as u16 {
            SYN_STREAM => {
                let stream = number(0)?;
                let block = payload.get(10..).ok_or_else(|| invalid("frame is too short"))?;
                Frame::Open { stream, headers: self.headers.read(block)? }
            }
            HEADERS | SYN_REPLY => {
                // Their content does not matter, but it is part of the compressed stream.
                self.headers.read(payload.get(4..).ok_or_else(|| invalid("frame is too short"))?)?;
                Frame::Other
            }
            RST_STREAM => Frame::Reset { stream: number(0)? },
            PING => Frame::Ping { id: number(0)? },
            _ => Frame::Other,
        }))
    }
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Decompresses blocks of headers: one zlib stream with a preset dictionary over the life of a
/// connection.
///
/// `flate2`, which the rest of Warren uses, has preset dictionaries only with a second
/// implementation of zlib. The implementation that it brings works on a window owned by the caller,
/// and a dictionary is the window's initial content.
struct HeaderReader {
    state: Box<DecompressorOxide>,
    window: Box<[u8]>,
    position: usize,
    begun: bool,
}

impl std::fmt::Debug for HeaderReader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HeaderReader").field("begun", &self.begun).finish_non_exhaustive()
    }
}

/// The window's length: the farthest that deflate looks back.
const WINDOW: usize = 32 << 10;
/// The flag in the first bytes of a zlib stream (method, flags, and the dictionary's checksum if it
/// has one).
const HAS_DICTIONARY: u8 = 0x20;
const DICTIONARY_CHECKSUM: [u8; 4] = [0xe3, 0xc6, 0xa7, 0xc2];

impl HeaderReader {
    fn new() -> Self {
        let dictionary = dictionary();
        let mut window = vec![0; WINDOW].into_boxed_slice();
        window[..dictionary.len()].copy_from_slice(&dictionary);
        Self { state: Box::default(), window, position: dictionary.len(), begun: false }
    }

    fn read(&mut self, mut block: &[u8]) -> io::Result<Vec<(String, String)>> {
        if !self.begun {
            let [_method, flags, rest @ ..] = block else { return Err(invalid("no header of zlib")) };
            block = rest;
            if flags & HAS_DICTIONARY != 0 {
                block = block
                    .strip_prefix(&DICTIONARY_CHECKSUM)
                    .ok_or_else(|| invalid("headers were compressed with another dictionary"))?;
            }
            self.begun = true;
        }
        let mut text = Vec::new();
        loop {
            let (status, consumed, written) = decompress(
                &mut self.state,
                block,
                &mut self.window,
                self.position,
                TINFL_FLAG_HAS_MORE_INPUT,
            );
            text.extend_from_slice(&self.window[self.position..self.position + written]);
            self.position = (self.position + written) % WINDOW;
            block = &block[consumed..];
            match status {
                TINFLStatus::HasMoreOutput if text.len() <= LONGEST_HEADERS => {}
                TINFLStatus::NeedsMoreInput if block.is_empty() => return parse_headers(&text),
                _ => return Err(invalid("headers cannot be decompressed")),
            }
        }
    }
}

/// Parses a number of pairs, each name and value with its length.
fn parse_headers(mut text: &[u8]) -> io::Result<Vec<(String, String)>> {
    let number = |text: &mut &[u8]| -> io::Result<usize> {
        let (first, rest) = text.split_first_chunk::<4>().ok_or_else(|| invalid("headers are cut short"))?;
        *text = rest;
        usize::try_from(u32::from_be_bytes(*first)).map_err(io::Error::other)
    };
    let count = number(&mut text)?;
    let mut headers = Vec::new();
    let word = |text: &mut &[u8]| -> io::Result<String> {
        let length = number(text)?;
        let (word, rest) = text.split_at_checked(length).ok_or_else(|| invalid("headers are cut short"))?;
        *text = rest;
        Ok(String::from_utf8_lossy(word).into_owned())
    };
    for _ in 0..count {
        let name = word(&mut text)?;
        headers.push((name, word(&mut text)?));
    }
    Ok(headers)
}

/// Writes headers. Ours are always empty, so they are stored uncompressed, which is valid too.
#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    begun: bool,
}

impl FrameWriter {
    /// Builds the answer to [`Frame::Open`].
    pub(super) fn reply(&mut self, stream: u32) -> Bytes {
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        if !std::mem::replace(&mut self.begun, true) {
            payload.put_slice(&[0x78, 0x01]);
        }
        // A stored block of four bytes, the number of headers (zero), and an empty block, at which
        // readers stop.
        payload.put_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
        payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
        control(SYN_REPLY, &payload)
    }
}

/// Builds a data frame of a stream; `last` ends the stream.
pub(super) fn data(stream: u32, data: &[u8], last: bool) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + data.len());
    frame.put_u32(stream & 0x7fff_ffff);
    frame.put_u32(u32::from(if last { FIN } else { 0 }) << 24 | (data.len() as u32 & 0xff_ffff));
    frame.put_slice(data);
    frame.freeze()
}

/// A reason to reset a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum ResetReason {
    Protocol = 1,
    Refused = 3,
}

/// Builds a frame that resets a stream.
pub(super) fn reset(stream: u32, reason: ResetReason) -> Bytes {
    let mut payload = BytesMut::new();
    payload.put_u32(stream);
    payload.put_u32(reason as u32);
    control(RST_STREAM, &payload)
}

/// Builds the answer to [`Frame::Ping`].
pub(super) fn pong(id: u32) -> Bytes {
    control(PING, &id.to_be_bytes())
}

/// Builds a ping that checks the client's presence. A server's pings have even numbers, and the
/// answer has the same.
pub(super) fn ping() -> Bytes {
    control(PING, &2_u32.to_be_bytes())
}

fn control(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u16(0x8000 | VERSION);
    frame.put_u16(kind);
    frame.put_u32(payload.len() as u32 & 0xff_ffff);
    frame.put_slice(payload);
    frame.freeze()
}

/// Builds a client's frame that opens a stream: its headers are stored uncompressed, after zlib's
/// own two bytes if they are the first of a connection.
#[cfg(test)]
pub(super) fn open_stream(stream: u32, first: bool, headers: &[(&str, &str)]) -> Bytes {
    let mut text = BytesMut::new();
    text.put_u32(headers.len() as u32);
    for word in headers.iter().flat_map(|(name, value)| [name, value]) {
        text.put_u32(word.len() as u32);
        text.put_slice(word.as_bytes());
    }
    let mut payload = BytesMut::new();
    payload.put_u32(stream);
    payload.put_slice(&[0; 6]);
    if first {
        payload.put_slice(&[0x78, 0x01]);
    }
    payload.put_u8(0);
    payload.put_u16_le(text.len() as u16);
    payload.put_u16_le(!(text.len() as u16));
    payload.put_slice(&text);
    payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
    control(SYN_STREAM, &payload)
}

/// Returns the protocol's preset dictionary (SPDY/3, section 2.6.10.1): names and values with their
/// lengths, and a tail without.
fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::new();
    for word in WORDS.split('|') {
        dictionary.extend_from_slice(&(word.len() as u32).to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(TAIL.as_bytes());
    dictionary
}

const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
    content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|\
    if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
    proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
    user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|\
    keep-alive|origin";

const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
    Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of zlib for `streamtype`, `port` and `requestid` with the dictionary: of an error
    /// stream, and then of a data stream of the same connection.
    const ERROR_STREAM: &[u8] =
        b"\x78\xf9\xe3\xc6\xa7\xc2\x02\x25\x3a\x70\x3a\x2b\x29\x4a\x4d\xcc\x85\x16\x25\xac\xa9\xa0\x80\x86\
        \x14\xcb\x45\xe0\x1c\x60\x61\x60\x61\x00\xa4\x39\x8b\x20\xd1\x98\x09\x4a\xde\x8c\x06\x00\x00\x00\
        \x00\xff\xff";
    const DATA_STREAM: &[u8] = b"\xc2\xaa\x19\x54\x0e\x25\x12\xd6\x0b\x00\x00\x00\xff\xff";

    fn open(stream: u32, block: &[u8]) -> Bytes {
        let mut payload = BytesMut::new();
        payload.put_u32(stream);
        payload.put_slice(&[0; 6]);
        payload.put_slice(block);
        control(SYN_STREAM, &payload)
    }

    async fn read(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let mut reader = FrameReader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn the_dictionary_is_the_protocols() {
        // Adler-32, by which zlib names dictionaries.
        let (first, second) = dictionary().iter().fold((1_u32, 0_u32), |(first, second), byte| {
            let first = (first + u32::from(*byte)) % 65521;
            (first, (second + first) % 65521)
        });
        assert_eq!((second << 16 | first).to_be_bytes(), DICTIONARY_CHECKSUM);
    }

    #[tokio::test]
    async fn headers_are_one_compressed_stream_over_all_frames() {
        let bytes = [open(1, ERROR_STREAM), open(3, DATA_STREAM)].concat();
        let headers = |kind: &str| {
            [("streamtype", kind), ("port", "8080"), ("requestid", "0")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec()
        };
        let expected = [
            Frame::Open { stream: 1, headers: headers("error") },
            Frame::Open { stream: 3, headers: headers("data") },
        ];
        assert_eq!(read(&bytes).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn our_frames_are_read_back() {
        let mut writer = FrameWriter::default();
        let frames = [
            writer.reply(1),
            writer.reply(3),
            data(3, b"hello", false),
            data(3, b"", true),
            pong(7),
            reset(3, ResetReason::Protocol),
        ];
        let expected = [
            Frame::Other,
            Frame::Other,
            Frame::Data { stream: 3, data: Bytes::from_static(b"hello"), last: false },
            Frame::Data { stream: 3, data: Bytes::new(), last: true },
            Frame::Ping { id: 7 },
            Frame::Reset { stream: 3 },
        ];
        assert_eq!(read(&frames.concat()).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn nonsense_is_refused_and_never_believed() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            &control(SYN_STREAM, &[0; 3]),
            &open(1, b"\x78\xbb\x00\x00\x00\x00"),
            &open(1, b"\x78\x01\xff\xff\xff\xff"),
            // One pair is announced and none follows.
            &open(1, b"\x78\x01\x00\x04\x00\xfb\xff\x00\x00\x00\x01\x00\x00\x00\xff\xff"),
            &control(SYN_STREAM, &vec![0; LONGEST_CONTROL + 1]),
        ] {
            assert!(read(bytes).await.is_err(), "{bytes:?}");
        }
        // A decompression bomb.
        let mut bomb = open(1, ERROR_STREAM).to_vec();
        bomb.extend_from_slice(&open(3, &[0xed, 0xc1].repeat(4000)));
        assert!(read(&bomb).await.is_err());
    }
}
