//! Parses and builds DNS messages (RFC 1035) as far as a server of addresses needs them: one
//! question, IPv4 addresses, no compression in questions, as in every resolver.

use std::net::Ipv4Addr;

const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
const ADDRESS: u16 = 1;
const ANY: u16 = 255;
const INTERNET: u16 = 1;
/// The most addresses in an answer of 512 bytes, which every client accepts, after the longest
/// question.
const MOST_ADDRESSES: usize = 13;
/// The lifetime of an answer in seconds: pods come and go.
const SECONDS: u32 = 5;

/// A query with one question.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Query {
    id: u16,
    is_recursive: bool,
    /// The question as received, to be sent back.
    question: Vec<u8>,
    /// In lower case, without the last dot.
    pub(super) name: String,
    kind: u16,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// These addresses; if empty, the name exists but has no address of the requested kind.
    Addresses(Vec<Ipv4Addr>),
    /// The name does not exist, or not for this client.
    NoSuchName,
    /// Try again later.
    Failed,
    /// The client is refused.
    Refused,
}

impl Query {
    /// Parses a packet; `None` if it is not a question that can be answered.
    pub(super) fn parse(packet: &[u8]) -> Option<Query> {
        let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
        let flags = word(2)?;
        let is_question = flags & 0x8000 == 0;
        let is_plain = flags & 0x7800 == 0;
        if !is_question || !is_plain || word(4)? != 1 {
            return None;
        }
        let mut name = String::new();
        let mut at = HEADER;
        loop {
            let length = usize::from(*packet.get(at)?);
            at += 1;
            match length {
                0 => break,
                1..=63 => {
                    let label = packet.get(at..at + length)?;
                    // With a dot or a zero in a label, the next reader would see another name.
                    if !label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.') {
                        return None;
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                    at += length;
                }
                _ => return None,
            }
            if name.len() > LONGEST_NAME {
                return None;
            }
        }
        let (kind, class) = (word(at)?, word(at + 2)?);
        if class != INTERNET && class != ANY {
            return None;
        }
        let question = packet.get(HEADER..at + 4)?.to_vec();
        Some(Query { id: word(0)?, is_recursive: flags & 0x0100 != 0, question, name, kind })
    }

    /// Returns true if the query asks for IPv4 addresses.
    pub(super) fn wants_addresses(&self) -> bool {
        self.kind == ADDRESS || self.kind == ANY
    }

    /// Builds the packet of an answer.
    pub(super) fn answer(&self, answer: &Answer) -> Vec<u8> {
        let (code, addresses) = match answer {
            Answer::Addresses(addresses) => (0, &addresses[..addresses.len().min(MOST_ADDRESSES)]),
            Answer::Failed => (2, &[][..]),
            Answer::NoSuchName => (3, &[][..]),
            Answer::Refused => (5, &[][..]),
        };
        let recursion = if self.is_recursive { 0x0100 } else { 0 };
        let flags: u16 = 0x8000 | 0x0080 | recursion | code;
        let count = u16::try_from(addresses.len()).unwrap_or_default();
        let mut packet = Vec::with_capacity(512);
        for word in [self.id, flags, 1, count, 0, 0] {
            packet.extend_from_slice(&word.to_be_bytes());
        }
        packet.extend_from_slice(&self.question);
        for address in addresses {
            // A pointer to the name in the question.
            packet.extend_from_slice(&0xc00c_u16.to_be_bytes());
            packet.extend_from_slice(&ADDRESS.to_be_bytes());
            packet.extend_from_slice(&INTERNET.to_be_bytes());
            packet.extend_from_slice(&SECONDS.to_be_bytes());
            packet.extend_from_slice(&4_u16.to_be_bytes());
            packet.extend_from_slice(&address.octets());
        }
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &[&str], kind: u16) -> Vec<u8> {
        let mut packet = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name {
            packet.push(u8::try_from(label.len()).unwrap());
            packet.extend_from_slice(label.as_bytes());
        }
        packet.push(0);
        packet.extend_from_slice(&kind.to_be_bytes());
        packet.extend_from_slice(&INTERNET.to_be_bytes());
        packet
    }

    #[test]
    fn a_question_is_read_and_sent_back_with_its_answer() {
        let packet = question(&["GitHub", "com"], ADDRESS);
        let query = Query::parse(&packet).unwrap();
        assert_eq!((query.name.as_str(), query.wants_addresses()), ("github.com", true));
        let answer = query.answer(&Answer::Addresses(vec![Ipv4Addr::new(1, 2, 3, 4)]));
        assert_eq!(answer[..8], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[12..packet.len()], packet[12..]);
        assert_eq!(answer[answer.len() - 6..], [0, 4, 1, 2, 3, 4]);
        let none = query.answer(&Answer::NoSuchName);
        assert_eq!((none[3] & 15, none[7]), (3, 0));
        assert!(!Query::parse(&question(&["a"], 28)).unwrap().wants_addresses());
        assert!(query.answer(&Answer::Addresses(vec![Ipv4Addr::LOCALHOST; 100])).len() <= 512);
    }

    #[test]
    fn what_is_no_question_is_not_answered() {
        let good = question(&["a", "b"], ADDRESS);
        for length in 0..good.len() {
            assert_eq!(Query::parse(&good[..length]), None);
        }
        let mut answer = good.clone();
        answer[2] |= 0x80;
        assert_eq!(Query::parse(&answer), None);
        let mut pointer = good.clone();
        pointer[12] = 0xc0;
        assert_eq!(Query::parse(&pointer), None);
        assert_eq!(Query::parse(&question(&["a.b"], ADDRESS)), None);
        assert_eq!(Query::parse(&question(&["a\0b"], ADDRESS)), None);
        assert_eq!(Query::parse(&question(&["abcdefghijklmnopqrstuvwxyzabcdefgh"; 12], ADDRESS)), None);
    }
}
