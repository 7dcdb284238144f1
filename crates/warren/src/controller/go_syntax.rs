//! Parses flags as Go's `flag` package does, so that the arguments of an existing Deployment work
//! unchanged: one dash or two, `=` or a space before the value, bare booleans, durations such as
//! `1m30s`.

use std::ffi::OsString;

use jiff::SignedDuration;
use warren_api::go_duration::{self, GoDurationError};

const SUBCOMMAND: &str = "controller";

/// Adds the second dash that the parser needs to the flags of `warren controller`.
pub fn normalise(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_none_or(|subcommand| subcommand != SUBCOMMAND) {
        return arguments;
    }
    for argument in arguments.iter_mut().skip(2).take_while(|argument| *argument != "--") {
        // More than one character, starting with a letter: `-1` is a value, `-h` is a flag of its
        // own.
        let is_long = argument.to_str().and_then(|text| text.strip_prefix('-')).is_some_and(|name| {
            name.len() > 1 && name.starts_with(|first: char| first.is_ascii_alphabetic())
        });
        if is_long {
            let mut long = OsString::from("-");
            long.push(&*argument);
            *argument = long;
        }
    }
    arguments
}

/// Parses a duration, which may be negative: if a flag does not allow that, the value is wrong, not
/// its syntax.
pub fn duration(text: &str) -> Result<SignedDuration, GoDurationError> {
    let signed = |length| SignedDuration::try_from(length).map_err(|_| GoDurationError::TooLong);
    match go_duration::parse(text) {
        Err(GoDurationError::Negative) => Ok(-signed(go_duration::parse(text.trim_start_matches('-'))?)?),
        length => signed(length?),
    }
}

/// Parses a boolean in any of Go's spellings.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it is neither `true` nor `false`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::{boolean, duration, normalise};

    fn normalised(text: &str) -> String {
        let arguments = normalise(text.split(' ').map(Into::into));
        arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_dash_becomes_two_for_the_controller_only() {
        assert_eq!(
            normalised("warren controller -extensions -kube-api-qps -1 --leader-elect=false -h -x=1 -- -abc"),
            "warren controller --extensions --kube-api-qps -1 --leader-elect=false -h --x=1 -- -abc"
        );
        assert_eq!(normalised("warren run -it x"), "warren run -it x");
    }

    #[test]
    fn values_are_read_as_go_reads_them() {
        assert_eq!(duration("1m30s"), Ok(SignedDuration::from_secs(90)));
        assert_eq!(duration("1.5h"), Ok(SignedDuration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(SignedDuration::from_millis(250)));
        assert_eq!(duration("0"), Ok(SignedDuration::ZERO));
        assert_eq!(duration("-1.5s"), Ok(SignedDuration::from_millis(-1500)));
        for wrong in ["", "5", "--1s", "-+1s", "x", "1y"] {
            assert!(duration(wrong).is_err(), "{wrong} was taken");
        }
        assert_eq!((boolean("T"), boolean("0")), (Ok(true), Ok(false)));
        assert!(boolean("yes").is_err());
    }
}
