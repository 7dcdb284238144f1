//! Capabilities: names, sets, and dropping them.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// A set of capabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

/// Sorted by number.
const NAMES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

impl Capabilities {
    /// Parses names such as `CAP_CHOWN` or `CHOWN`. The error is the first unknown name.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut set = 0;
        for name in names {
            let short = name.strip_prefix("CAP_").unwrap_or(name);
            let number = NAMES.iter().position(|known| *known == short).ok_or_else(|| name.to_owned())?;
            set |= 1 << number;
        }
        Ok(Self(set))
    }

    /// Removes all other capabilities from the bounding set, so that no later program can gain
    /// them.
    pub fn bound(self) -> io::Result<()> {
        // A newer kernel may have more capabilities than we have names for. EINVAL marks the end.
        for number in 0..64 {
            if self.0 & (1 << number) != 0 {
                continue;
            }
            let one = CapabilitySet::from_bits_retain(1 << number);
            match rustix::thread::remove_capability_from_bounding_set(one) {
                Err(rustix::io::Errno::INVAL) if number >= NAMES.len() => break,
                Err(error) => return Err(error.into()),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Sets effective and permitted to this set, and clears inheritable and ambient.
    pub fn set(self) -> io::Result<()> {
        let set = CapabilitySet::from_bits_retain(self.0);
        rustix::thread::clear_ambient_capability_set()?;
        Ok(rustix::thread::set_capabilities(
            None,
            CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() },
        )?)
    }
}

/// Makes all permitted capabilities effective again, after a change of user.
pub fn take_up_permitted() -> io::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets })?)
}

/// The capability sets of a process, without the bounding set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessCapabilities {
    /// The capabilities in force.
    pub effective: Capabilities,
    /// The capabilities that the process may make effective.
    pub permitted: Capabilities,
    /// The capabilities that a program with file capabilities can inherit.
    pub inheritable: Capabilities,
    /// The capabilities that any executed program inherits.
    pub ambient: Capabilities,
}

impl ProcessCapabilities {
    /// Sets the sets of this process. An ambient capability is skipped unless it is also permitted
    /// and inheritable, which the kernel requires.
    pub fn set(self) -> io::Result<()> {
        let bits = |set: Capabilities| CapabilitySet::from_bits_retain(set.0);
        rustix::thread::clear_ambient_capability_set()?;
        rustix::thread::set_capabilities(
            None,
            CapabilitySets {
                effective: bits(self.effective),
                permitted: bits(self.permitted),
                inheritable: bits(self.inheritable),
            },
        )?;
        let ambient = self.ambient.0 & self.permitted.0 & self.inheritable.0;
        for number in (0..NAMES.len()).filter(|number| ambient & (1 << number) != 0) {
            let one = CapabilitySet::from_bits_retain(1 << number);
            rustix::thread::configure_capability_in_ambient_set(one, true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_kernels_numbers() {
        let set = |name| Capabilities::from_names([name]).unwrap().0;
        assert_eq!(set("CAP_CHOWN"), CapabilitySet::CHOWN.bits());
        assert_eq!(set("SYS_ADMIN"), CapabilitySet::SYS_ADMIN.bits());
        assert_eq!(set("CAP_SETFCAP"), CapabilitySet::SETFCAP.bits());
        assert_eq!(set("CAP_CHECKPOINT_RESTORE"), CapabilitySet::CHECKPOINT_RESTORE.bits());
        assert_eq!(Capabilities::from_names(["CAP_CHOWN", "CAP_FLY"]), Err("CAP_FLY".to_owned()));
    }
}
