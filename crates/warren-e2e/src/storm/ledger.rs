//! Records the writes that the server has acknowledged, and those with an unknown outcome.

use std::collections::BTreeMap;

use super::Seen;

/// The known state of every object.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    objects: BTreeMap<String, Known>,
    /// The highest version in any answer.
    highest: u64,
}

/// The known state of one object.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// The acknowledged state; `None` is an acknowledged absence.
    pub acknowledged: Option<Seen>,
    /// A write without an answer: the value it would have left, or `None` for a deletion.
    pub unanswered: Option<Option<u64>>,
}

/// The objects of one writer, for one round.
#[derive(Debug)]
pub(super) struct Share {
    pub objects: BTreeMap<String, Known>,
    /// The lower limit of versions in answers.
    pub highest: u64,
}

impl Ledger {
    /// Distributes the objects among writers, each of which has exclusive access to its own.
    pub fn take_shares(&mut self, writers: usize) -> Vec<Share> {
        let mut shares: Vec<Share> =
            (0..writers).map(|_| Share { objects: BTreeMap::new(), highest: self.highest }).collect();
        for (writer, share) in shares.iter_mut().enumerate() {
            for number in 0..12 {
                let name = format!("storm-{writer}-{number}");
                let known = self.objects.remove(&name).unwrap_or_default();
                share.objects.insert(name, known);
            }
        }
        shares
    }

    pub fn give_back(&mut self, share: Share) {
        self.highest = self.highest.max(share.highest);
        self.objects.extend(share.objects);
    }

    /// Records a version.
    pub fn saw(&mut self, version: u64) -> Result<(), String> {
        if version <= self.highest {
            return Err(format!("version {version} came after {}", self.highest));
        }
        self.highest = version;
        Ok(())
    }

    /// Compares a list with the acknowledged writes, and settles the unknown ones: returns how many
    /// writes without an answer happened, and how many did not.
    pub fn settle(&mut self, version: u64, found: &[(String, Seen)]) -> Result<(u64, u64), String> {
        if version < self.highest {
            return Err(format!("the version went back from {} to {version}", self.highest));
        }
        let mut found: BTreeMap<&str, Seen> =
            found.iter().map(|(name, seen)| (name.as_str(), *seen)).collect();
        let (mut done, mut lost) = (0, 0);
        for (name, known) in &mut self.objects {
            let actual = found.remove(name.as_str());
            let unanswered = known.unanswered.take();
            if actual == known.acknowledged {
                lost += u64::from(unanswered.is_some());
                continue;
            }
            let happened = unanswered.is_some_and(|wanted| match (wanted, actual) {
                (None, None) => true,
                (Some(value), Some(actual)) => {
                    actual.value == value
                        && actual.version > known.acknowledged.map_or(0, |seen| seen.version)
                }
                _ => false,
            });
            if !happened {
                return Err(format!(
                    "{name}: {:?} was acknowledged, {unanswered:?} was under way, and now it is {actual:?}",
                    known.acknowledged
                ));
            }
            done += 1;
            known.acknowledged = actual;
        }
        if let Some((name, seen)) = found.into_iter().next() {
            return Err(format!("{name}: nobody wrote it, and it is {seen:?}"));
        }
        self.highest = version;
        Ok((done, lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(known: Known) -> Ledger {
        Ledger { objects: BTreeMap::from([("a".to_owned(), known)]), highest: 10 }
    }

    fn settle(known: Known, found: Option<Seen>) -> Result<(u64, u64), String> {
        let found: Vec<_> = found.into_iter().map(|seen| ("a".to_owned(), seen)).collect();
        ledger(known).settle(20, &found)
    }

    #[test]
    fn what_was_lost_is_noticed() {
        let seen = |value, version| Some(Seen { value, version });
        let acknowledged = Known { acknowledged: seen(1, 5), unanswered: None };
        assert_eq!(settle(acknowledged, seen(1, 5)), Ok((0, 0)));
        assert!(settle(acknowledged, None).is_err(), "an acknowledged object is gone");
        assert!(settle(acknowledged, seen(1, 4)).is_err(), "another version");
        assert!(settle(Known::default(), seen(1, 5)).is_err(), "an acknowledged deletion was undone");
        let open = Known { unanswered: Some(Some(2)), ..acknowledged };
        assert_eq!(settle(open, seen(1, 5)), Ok((0, 1)));
        assert_eq!(settle(open, seen(2, 6)), Ok((1, 0)));
        assert!(settle(open, seen(3, 6)).is_err(), "a value that nobody wrote");
        assert!(settle(open, None).is_err());
        let deletion = Known { unanswered: Some(None), ..acknowledged };
        assert_eq!(settle(deletion, None), Ok((1, 0)));
        assert!(ledger(acknowledged).settle(9, &[]).is_err(), "the version went back");
    }
}
