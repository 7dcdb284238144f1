//! Closed vocabularies as enums: every variant has exactly one spelling on the wire.

/// Declares an enum whose variants are fixed strings on the wire, with `as_str`, `ALL`, `Display`
/// and `parse`.
///
/// Serde's derive gives the spelling only through a serializer, but conditions, events and metrics
/// need it as a `&'static str`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
        }

        impl $name {
            /// All variants, in the order of declaration.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )+];

            /// Returns the spelling on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }

            /// Returns the variant with this spelling, or `None` for an unknown word.
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|candidate| candidate.as_str() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.as_str().to_owned()
            }
        }
    };
}

pub(crate) use words;
