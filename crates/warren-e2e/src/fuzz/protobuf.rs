//! Generates messages in protobuf's wire format, with fields that may or may not exist.

use fastrand::Rng;

use super::mutate::word;

/// Returns an envelope as Kubernetes' clients send it, with a message of random fields.
pub(super) fn envelope(random: &mut Rng, api_version: &str, kind: &str) -> Vec<u8> {
    let mut type_meta = Vec::new();
    field(&mut type_meta, 1, api_version.as_bytes());
    field(&mut type_meta, 2, kind.as_bytes());
    let mut all = b"k8s\0".to_vec();
    field(&mut all, 1, &type_meta);
    let mut object = Vec::new();
    if random.u8(..4) > 0 {
        let mut metadata = Vec::new();
        field(&mut metadata, 1, b"protobuf");
        metadata.extend(message(random, 3));
        field(&mut object, 1, &metadata);
    }
    let levels = random.usize(1..8);
    object.extend(message(random, levels));
    field(&mut all, 2, &object);
    all
}

/// Returns random fields with small numbers, nested up to this depth.
fn message(random: &mut Rng, levels: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..random.usize(..5) {
        let number = random.u64(1..24);
        match random.u8(..9) {
            0 => {
                varint(&mut all, number << 3);
                let value = *super::mutate::pick(random, &[0, 1, 127, 1 << 20, u64::MAX, u64::MAX >> 1]);
                varint(&mut all, value);
            }
            1 => {
                varint(&mut all, number << 3 | 1);
                all.extend(random.u64(..).to_le_bytes());
            }
            2 => {
                varint(&mut all, number << 3 | 5);
                all.extend(random.u32(..).to_le_bytes());
            }
            3 => varint(&mut all, number << 3 | random.u64(3..8)),
            4 | 5 => field(&mut all, number, word(random).as_bytes()),
            6 => {
                // A length that exceeds the rest.
                varint(&mut all, number << 3 | 2);
                varint(&mut all, random.u64(..) >> random.u32(..64));
            }
            _ if levels > 0 => {
                let inner = message(random, levels - 1);
                field(&mut all, number, &inner);
            }
            _ => {}
        }
    }
    all
}

/// Returns this many levels of the same field, more than any message has.
pub(super) fn deep(levels: usize) -> Vec<u8> {
    let mut inner = Vec::new();
    for _ in 0..levels {
        let mut outer = Vec::new();
        field(&mut outer, 2, &inner);
        inner = outer;
    }
    let mut all = b"k8s\0".to_vec();
    field(&mut all, 2, &inner);
    all
}

fn field(all: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(all, number << 3 | 2);
    varint(all, bytes.len() as u64);
    all.extend_from_slice(bytes);
}

fn varint(all: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        all.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    all.push(value as u8);
}
