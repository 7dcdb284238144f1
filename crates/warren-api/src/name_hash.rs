//! The hash of a name, by which children, network policies and routers refer to it.

/// 32-bit FNV-1a of a name's UTF-8 bytes, written as eight lowercase hexadecimal digits.
///
/// Labels carry this hash because label values are limited to 63 characters and names are not.
/// NetworkPolicies, Services, routers and other controllers depend on it, so it must never change.
/// `my-sandbox` gives `374de8f5`; the tests below have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameHash(u32);

impl NameHash {
    // The offset basis and the prime of 32-bit FNV.
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;

    /// Computes the hash of a name. It is also used for the JSON text of a template.
    pub const fn of(name: &str) -> Self {
        let bytes = name.as_bytes();
        let mut hash = Self::OFFSET_BASIS;
        let mut index = 0;
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u32).wrapping_mul(Self::PRIME);
            index += 1;
        }
        Self(hash)
    }

    /// Returns the number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for NameHash {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:08x}", self.0)
    }
}

impl From<NameHash> for String {
    fn from(hash: NameHash) -> Self {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::NameHash;

    #[test]
    fn published_vectors() {
        for (name, hash) in [
            ("", "811c9dc5"),
            ("a", "e40c292c"),
            ("my-sandbox", "374de8f5"),
            ("hello-world", "428d118e"),
            ("test-template", "69155462"),
            ("test-pool", "59733166"),
            ("my-sandbox-conflict", "6da45cea"),
        ] {
            assert_eq!(NameHash::of(name).to_string(), hash, "hash of {name:?}");
        }
    }

    #[test]
    fn always_eight_digits() {
        // Find a name whose hash begins with a zero digit: one in sixteen does.
        let padded = (0..1000)
            .map(|number| NameHash::of(&format!("sandbox-{number}")))
            .find(|hash| hash.value() < 0x1000_0000)
            .expect("a thousand names hold such a hash");
        assert_eq!(padded.to_string().len(), 8);
        assert!(padded.to_string().starts_with('0'));
    }
}
