//! Packet rules (nftables). A whole table is replaced atomically, so no packet meets a partial one.

use std::io;
use std::net::Ipv4Addr;

use super::netlink::{Message, Netlink, flags};

/// The family of rules for both IP versions.
const FAMILY_INET: u8 = 1;
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;

/// The number of intervals per message. An attribute holds less than 64 KiB, and an interval takes
/// 44 bytes.
const INTERVALS_PER_MESSAGE: usize = 1000;
/// Enough for some ten thousand intervals. The usual buffer holds 200 KiB.
const SEND_BUFFER: usize = 8 << 20;

/// A table: all rules of one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// The sets of addresses that rules refer to.
    pub sets: Vec<Set>,
    /// The chains. The target of a jump must come before its source.
    pub chains: Vec<Chain>,
}

/// A set of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    /// The name in the table.
    pub name: String,
    /// Pairs of first and last address, both included. They are sorted and do not touch each other.
    pub intervals: Vec<(Ipv4Addr, Ipv4Addr)>,
}

/// A chain of rules that are tried in order. A packet that reaches the end continues as if there
/// were none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The name in the table.
    pub name: String,
    /// The hook through which packets arrive. `None` if only by jumps.
    pub hook: Option<Hook>,
    /// The rules in order.
    pub rules: Vec<Rule>,
}

/// The point at which the kernel passes packets to a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// On arrival, before anything else.
    Arrival,
    /// Before delivery to this machine.
    Input,
    /// While being forwarded.
    Forward,
    /// Before sending, where the source may be changed.
    SourceNat,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The conditions, all of which must hold.
    pub matches: Vec<Match>,
    /// The effect on a matching packet.
    pub verdict: Verdict,
}

/// A condition on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// It arrived through a device with this name prefix.
    FromDevices(String),
    /// It leaves through a device with this name prefix.
    ToDevices(String),
    /// It leaves through a device without this name prefix.
    NotToDevices(String),
    /// It is IPv4.
    Version4,
    /// It is not IPv4.
    NotVersion4,
    /// It belongs to a connection that was accepted before.
    Established,
    /// An answer would not leave through the device that it came from: the source address is
    /// forged.
    WrongSource,
    /// Its source is in a set.
    SourceIn(String),
    /// Its destination is in a set.
    DestinationIn(String),
    /// Its destination is this address.
    Destination(Ipv4Addr),
    /// Its protocol (TCP, UDP, …) has this number.
    Protocol(u8),
    /// Its destination port is in this range, both ends included.
    Ports(u16, u16),
}

/// The effect on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Accepts it.
    Accept,
    /// Drops it silently.
    Drop,
    /// Drops it and tells the sender that it is forbidden.
    Reject,
    /// Returns to the chain that jumped here.
    Return,
    /// Continues with another chain, and returns at its end.
    Jump(String),
    /// Sends it with this machine's address as the source.
    Masquerade,
}

/// Puts a table in force and replaces the one of that name.
pub fn replace(table: &Table) -> io::Result<()> {
    let mut messages = removal(&table.name);
    messages.push(table_message(NEW_TABLE, flags::CREATE, &table.name));
    for (number, set) in (1..).zip(&table.sets) {
        messages.extend(set_messages(&table.name, set, number));
    }
    messages.extend(table.chains.iter().map(|chain| chain_message(&table.name, chain)));
    for chain in &table.chains {
        messages.extend(chain.rules.iter().map(|rule| rule_message(&table.name, &chain.name, rule)));
    }
    commit(&messages)
}

/// Removes a table if it exists.
pub fn remove(name: &str) -> io::Result<()> {
    commit(&removal(name))
}

/// Builds the removal of a table that may not exist. It is created first, because older kernels
/// have no other way without an error.
fn removal(name: &str) -> Vec<Message> {
    vec![table_message(NEW_TABLE, flags::CREATE, name), table_message(DELETE_TABLE, 0, name)]
}

fn commit(messages: &[Message]) -> io::Result<()> {
    let mark = |kind: u16| {
        let mut fixed = [0; 4];
        fixed[2..].copy_from_slice(&SUBSYSTEM.to_be_bytes());
        Message::new(kind, 0, &fixed)
    };
    let mut netlink = Netlink::netfilter()?;
    // If this fails, small tables still fit.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&netlink, SEND_BUFFER);
    netlink.transaction(&mark(BATCH_BEGIN), messages, &mark(BATCH_END))
}

fn message(kind: u16, flags: u16) -> Message {
    Message::new(SUBSYSTEM << 8 | kind, flags, &[FAMILY_INET, 0, 0, 0])
}

fn table_message(kind: u16, flags: u16, name: &str) -> Message {
    const NAME: u16 = 1;
    let mut message = message(kind, flags);
    message.text(NAME, name);
    message
}

fn chain_message(table: &str, chain: &Chain) -> Message {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const TYPE: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    let mut message = message(NEW_CHAIN, flags::CREATE);
    message.text(TABLE, table).text(NAME, &chain.name);
    if let Some(hook) = chain.hook {
        let (number, priority, kind) = match hook {
            // Run before connection tracking, so that a forged packet never becomes part of a
            // connection.
            Hook::Arrival => (0, -300, "filter"),
            Hook::Input => (1, 0, "filter"),
            Hook::Forward => (2, 0, "filter"),
            Hook::SourceNat => (4, 100, "nat"),
        };
        message.nested(HOOK, |inner| {
            inner.big_endian(HOOK_NUMBER, number).bytes(HOOK_PRIORITY, &i32::to_be_bytes(priority));
        });
        message.big_endian(POLICY, ACCEPT as u32).text(TYPE, kind);
    }
    message
}

fn set_messages(table: &str, set: &Set, number: u32) -> Vec<Message> {
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LENGTH: u16 = 5;
    const ID: u16 = 10;
    const INTERVALS: u32 = 4;
    /// The type that `nft` calls `ipv4_addr`. Only `nft` uses it, to print the set.
    const ADDRESS: u32 = 7;
    let mut whole = message(NEW_SET, flags::CREATE);
    whole
        .text(TABLE, table)
        .text(NAME, &set.name)
        .big_endian(FLAGS, INTERVALS)
        .big_endian(KEY_TYPE, ADDRESS)
        .big_endian(KEY_LENGTH, 4)
        .big_endian(ID, number);
    let elements = set.intervals.chunks(INTERVALS_PER_MESSAGE).map(|intervals| {
        const TABLE: u16 = 1;
        const SET: u16 = 2;
        const ELEMENTS: u16 = 3;
        let mut message = message(NEW_ELEMENTS, flags::CREATE);
        message.text(TABLE, table).text(SET, &set.name).nested(ELEMENTS, |list| {
            for (first, last) in intervals {
                element(list, *first, false);
                // An interval ends with the address after it. The highest address has none.
                if let Some(after) = u32::from(*last).checked_add(1) {
                    element(list, after.into(), true);
                }
            }
        });
        message
    });
    std::iter::once(whole).chain(elements).collect()
}

fn element(list: &mut Message, address: Ipv4Addr, is_end: bool) {
    const KEY: u16 = 1;
    const FLAGS: u16 = 3;
    const INTERVAL_END: u32 = 1;
    list.nested(LIST_ELEMENT, |element| {
        element.nested(KEY, |key| value(key, &address.octets()));
        if is_end {
            element.big_endian(FLAGS, INTERVAL_END);
        }
    });
}

const LIST_ELEMENT: u16 = 1;
const REGISTER: u32 = 1;
const VERDICT_REGISTER: u32 = 0;
const ACCEPT: i32 = 1;
const DROP: i32 = 0;
const JUMP: i32 = -3;
const RETURN: i32 = -5;

fn value(message: &mut Message, bytes: &[u8]) {
    const VALUE: u16 = 1;
    message.bytes(VALUE, bytes);
}

fn rule_message(table: &str, chain: &str, rule: &Rule) -> Message {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    let mut message = message(NEW_RULE, flags::CREATE | flags::APPEND);
    message.text(TABLE, table).text(CHAIN, chain).nested(EXPRESSIONS, |list| {
        for found in &rule.matches {
            found.write(list);
        }
        rule.verdict.write(list);
    });
    message
}

fn expression(list: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    list.nested(LIST_ELEMENT, |expression| {
        expression.text(NAME, name).nested(DATA, fill);
    });
}

/// Loads metadata of the packet into the register.
fn load_meta(list: &mut Message, key: u32) {
    expression(list, "meta", |data| {
        data.big_endian(1, REGISTER).big_endian(2, key);
    });
}

/// Loads bytes of a header: 1 is the network's, 2 the transport's.
fn load_header(list: &mut Message, header: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        data.big_endian(1, REGISTER).big_endian(2, header).big_endian(3, offset).big_endian(4, length);
    });
}

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

fn compare(list: &mut Message, operation: u32, bytes: &[u8]) {
    expression(list, "cmp", |data| {
        data.big_endian(1, REGISTER).big_endian(2, operation).nested(3, |inner| value(inner, bytes));
    });
}

fn look_up(list: &mut Message, set: &str) {
    expression(list, "lookup", |data| {
        data.text(1, set).big_endian(2, REGISTER);
    });
}

const SOURCE_OFFSET: u32 = 12;
const DESTINATION_OFFSET: u32 = 16;

impl Match {
    fn write(&self, list: &mut Message) {
        const FROM_DEVICE: u32 = 6;
        const TO_DEVICE: u32 = 7;
        const VERSION: u32 = 15;
        const PROTOCOL: u32 = 16;
        const VERSION_4: u8 = 2;
        match self {
            // Comparing fewer bytes than a name has matches its prefix.
            Match::FromDevices(prefix) => {
                load_meta(list, FROM_DEVICE);
                compare(list, EQUAL, prefix.as_bytes());
            }
            Match::ToDevices(prefix) => {
                load_meta(list, TO_DEVICE);
                compare(list, EQUAL, prefix.as_bytes());
            }
            Match::NotToDevices(prefix) => {
                load_meta(list, TO_DEVICE);
                compare(list, NOT_EQUAL, prefix.as_bytes());
            }
            Match::Version4 => {
                load_meta(list, VERSION);
                compare(list, EQUAL, &[VERSION_4]);
            }
            Match::NotVersion4 => {
                load_meta(list, VERSION);
                compare(list, NOT_EQUAL, &[VERSION_4]);
            }
            Match::Established => {
                const STATE: u32 = 0;
                const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
                expression(list, "ct", |data| {
                    data.big_endian(1, REGISTER).big_endian(2, STATE);
                });
                expression(list, "bitwise", |data| {
                    data.big_endian(1, REGISTER)
                        .big_endian(2, REGISTER)
                        .big_endian(3, 4)
                        .nested(4, |mask| value(mask, &ESTABLISHED_OR_RELATED.to_ne_bytes()))
                        .nested(5, |xor| value(xor, &[0; 4]));
                });
                compare(list, NOT_EQUAL, &[0; 4]);
            }
            Match::WrongSource => {
                const OUTPUT_DEVICE: u32 = 1;
                const SOURCE_AND_INPUT_DEVICE: u32 = 1 | 1 << 3;
                expression(list, "fib", |data| {
                    data.big_endian(1, REGISTER)
                        .big_endian(2, OUTPUT_DEVICE)
                        .big_endian(3, SOURCE_AND_INPUT_DEVICE);
                });
                compare(list, EQUAL, &[0; 4]);
            }
            Match::SourceIn(set) => {
                load_header(list, 1, SOURCE_OFFSET, 4);
                look_up(list, set);
            }
            Match::DestinationIn(set) => {
                load_header(list, 1, DESTINATION_OFFSET, 4);
                look_up(list, set);
            }
            Match::Destination(address) => {
                load_header(list, 1, DESTINATION_OFFSET, 4);
                compare(list, EQUAL, &address.octets());
            }
            Match::Protocol(number) => {
                load_meta(list, PROTOCOL);
                compare(list, EQUAL, &[*number]);
            }
            Match::Ports(first, last) => {
                load_header(list, 2, 2, 2);
                if first == last {
                    compare(list, EQUAL, &first.to_be_bytes());
                } else {
                    compare(list, AT_LEAST, &first.to_be_bytes());
                    compare(list, AT_MOST, &last.to_be_bytes());
                }
            }
        }
    }
}

impl Verdict {
    fn write(&self, list: &mut Message) {
        let (code, chain) = match self {
            Verdict::Accept => (ACCEPT, None),
            Verdict::Drop => (DROP, None),
            Verdict::Return => (RETURN, None),
            Verdict::Jump(chain) => (JUMP, Some(chain)),
            Verdict::Reject => {
                // The code for "forbidden by an administrator", for either IP version.
                const OF_EITHER_VERSION: u32 = 2;
                const PROHIBITED: u8 = 3;
                expression(list, "reject", |data| {
                    data.big_endian(1, OF_EITHER_VERSION).bytes(2, &[PROHIBITED]);
                });
                return;
            }
            Verdict::Masquerade => {
                expression(list, "masq", |_| {});
                return;
            }
        };
        expression(list, "immediate", |data| {
            data.big_endian(1, VERDICT_REGISTER).nested(2, |inner| {
                const VERDICT: u16 = 2;
                inner.nested(VERDICT, |verdict| {
                    verdict.bytes(1, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        verdict.text(2, chain);
                    }
                });
            });
        });
    }
}
