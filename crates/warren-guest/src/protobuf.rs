//! As much of the protobuf wire format as the messages of `process.v1` need: varints, and fields with a
//! length. Unknown fields are skipped, as the format asks for.

use bytes::{BufMut as _, Bytes, BytesMut};

/// A message that is cut off or has a field of no known kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Bytes(Bytes),
}

/// Reads the fields of a message, in their order.
#[derive(Debug)]
pub(crate) struct Fields(pub(crate) Bytes);

impl Fields {
    /// Returns the next field and its number.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, Value)>, Malformed> {
        while !self.0.is_empty() {
            let key = self.varint()?;
            let number = key >> 3;
            let value = match key & 7 {
                0 => Value::Number(self.varint()?),
                2 => {
                    let length = self.varint()?;
                    Value::Bytes(self.take(length)?)
                }
                // Fixed lengths, which no field that we know has.
                1 => {
                    self.take(8)?;
                    continue;
                }
                5 => {
                    self.take(4)?;
                    continue;
                }
                _ => return Err(Malformed),
            };
            return Ok(Some((number, value)));
        }
        Ok(None)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.0.first().ok_or(Malformed)?;
            let _ = self.0.split_to(1);
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: u64) -> Result<Bytes, Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        if length > self.0.len() {
            return Err(Malformed);
        }
        Ok(self.0.split_to(length))
    }
}

impl Value {
    /// Reads a field of text.
    pub(crate) fn text(self) -> Result<String, Malformed> {
        match self {
            Value::Bytes(bytes) => String::from_utf8(bytes.into()).map_err(|_| Malformed),
            Value::Number(_) => Err(Malformed),
        }
    }

    /// Reads a field of bytes, or a message.
    pub(crate) fn bytes(self) -> Result<Bytes, Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) => Err(Malformed),
        }
    }

    /// Reads an `int32`, whose negative values have ten bytes.
    pub(crate) fn int32(self) -> Result<i32, Malformed> {
        match self {
            Value::Number(number) => Ok(number as i32),
            Value::Bytes(_) => Err(Malformed),
        }
    }

    /// Reads a `uint32`.
    pub(crate) fn uint32(self) -> Result<u32, Malformed> {
        match self {
            Value::Number(number) => Ok(number as u32),
            Value::Bytes(_) => Err(Malformed),
        }
    }
}

fn put_varint(to: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        to.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.put_u8(value as u8);
}

/// Writes an `int32`, which is left out if it is 0.
pub(crate) fn put_int32(to: &mut BytesMut, number: u8, value: i32) {
    if value != 0 {
        to.put_u8(number << 3);
        put_varint(to, i64::from(value) as u64);
    }
}

/// Writes bytes or a message, also if they are empty.
pub(crate) fn put_bytes(to: &mut BytesMut, number: u8, value: &[u8]) {
    to.put_u8(number << 3 | 2);
    put_varint(to, value.len() as u64);
    to.put_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_are_written() {
        let mut message = BytesMut::new();
        put_int32(&mut message, 1, 300);
        put_int32(&mut message, 2, -1);
        put_int32(&mut message, 3, 0);
        put_bytes(&mut message, 4, b"abc");
        // A fixed field of another version.
        message.extend_from_slice(&[5 << 3 | 5, 1, 2, 3, 4]);
        let mut fields = Fields(message.freeze());
        let (number, value) = fields.next().unwrap().unwrap();
        assert_eq!((number, value.int32()), (1, Ok(300)));
        let (number, value) = fields.next().unwrap().unwrap();
        assert_eq!((number, value.int32()), (2, Ok(-1)));
        let (number, value) = fields.next().unwrap().unwrap();
        assert_eq!((number, value.text()), (4, Ok("abc".to_owned())));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn noise_is_an_error_or_skipped_and_never_a_panic() {
        for bytes in [
            &[0x0a][..],
            &[0x0a, 5, 1],
            &[0x0f],
            &[0x80; 11],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(Fields(Bytes::copy_from_slice(bytes)).next(), Err(Malformed), "{bytes:?}");
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..random.usize(0..30)).map(|_| random.u8(..)).collect();
            let mut fields = Fields(bytes.into());
            while let Ok(Some(_)) = fields.next() {}
        }
    }
}
