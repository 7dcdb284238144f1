//! Seccomp filters: compilation of rules to BPF, and installation.
//!
//! The program is a binary search over ranges of system call numbers, a dozen instructions deep.
//! Usual compilers make a list of comparisons with hundreds of instructions, and the kernel walks
//! it for every number when the filter is installed. That would be a tenth of a container's start.

mod in_order;

use std::collections::BTreeMap;
use std::io;

pub use self::in_order::{Comparison, Condition, Rule, Verdict};

/// The effect on a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Allows it.
    Allow,
    /// Fails it with this error number.
    Fail(u16),
    /// Allows it unless an argument is forbidden.
    Check(Check),
}

/// A condition on the low 32 bits of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Fails with `EPERM` if any of these bits is set.
    NoneOf {
        /// The number of the argument, from 0.
        argument: u8,
        /// The bits.
        bits: u32,
    },
    /// Fails with `EPERM` if the argument is one of these.
    Not {
        /// The number of the argument, from 0.
        argument: u8,
        /// The values.
        values: Vec<u32>,
    },
    /// Fails with `EPERM` unless the argument is one of these.
    Only {
        /// The number of the argument, from 0.
        argument: u8,
        /// The values.
        values: Vec<u32>,
    },
}

/// A compiled filter. It can be installed any number of times.
#[derive(Debug, Clone)]
pub struct Filter(Vec<libc::sock_filter>);

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_GREATER_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
const OUR_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const OUR_ARCHITECTURE: u32 = 0xC000_00B7;

impl Filter {
    /// Compiles `rules`. A missing number fails with `otherwise`. A number above all of them is
    /// unknown to us and fails with `ENOSYS`, so that programs fall back. A call of a foreign
    /// architecture (32-bit code) kills the process, because its numbers have other meanings.
    pub fn compile(rules: &BTreeMap<u32, Action>, otherwise: u16) -> Self {
        let mut code = vec![
            statement(LOAD, ARCHITECTURE),
            jump(JUMP_EQUAL, OUR_ARCHITECTURE, 1, 0),
            statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
            statement(LOAD, NUMBER),
        ];
        search(&mut code, &ranges(rules, otherwise));
        Self(code)
    }

    /// Compiles rules that are tried in order. The first match decides, else `otherwise`. Calls of
    /// a foreign architecture kill the process, as in [`Self::compile`].
    pub fn compile_in_order(rules: &[Rule], otherwise: Verdict) -> Self {
        let mut code = vec![
            statement(LOAD, ARCHITECTURE),
            jump(JUMP_EQUAL, OUR_ARCHITECTURE, 1, 0),
            statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        ];
        for rule in rules {
            rule.compile(&mut code);
        }
        code.push(statement(RETURN, otherwise.value()));
        Self(code)
    }

    /// Installs the filter permanently for this process and its descendants. Needs
    /// no-new-privileges, or `CAP_SYS_ADMIN` in the process's user namespace.
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` points to `len` instructions that outlive the call. The kernel copies
        // and checks them and never writes through the pointer.
        let result =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns its length in instructions.
    pub fn instructions(&self) -> usize {
        self.0.len()
    }
}

/// Returns ranges of numbers with the same action, as their first numbers, without gaps.
fn ranges(rules: &BTreeMap<u32, Action>, otherwise: u16) -> Vec<(u32, Action)> {
    let denied = Action::Fail(otherwise);
    let mut ranges: Vec<(u32, Action)> = Vec::new();
    let mut begin = |number: u32, action: &Action| {
        // A check needs a range of its own, because it is code and no verdict.
        if ranges.last().is_none_or(|(_, last)| last != action || matches!(last, Action::Check(_))) {
            ranges.push((number, action.clone()));
        }
    };
    let mut next = 0;
    for (&number, action) in rules {
        if number > next {
            begin(next, &denied);
        }
        begin(number, action);
        next = number + 1;
    }
    begin(next, &Action::Fail(libc::ENOSYS as u16));
    ranges
}

fn search(code: &mut Vec<libc::sock_filter>, ranges: &[(u32, Action)]) {
    let [.., _] = ranges else { return };
    if let [(_, action)] = ranges {
        return verdict(code, action);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let mut below = Vec::new();
    search(&mut below, lower);
    // A conditional jump reaches 255 instructions, an unconditional one any number.
    match u8::try_from(below.len()) {
        Ok(distance) => code.push(jump(JUMP_GREATER_EQUAL, upper[0].0, distance, 0)),
        Err(_) => {
            code.push(jump(JUMP_GREATER_EQUAL, upper[0].0, 0, 1));
            code.push(statement(JUMP, below.len() as u32));
        }
    }
    code.append(&mut below);
    search(code, upper);
}

fn verdict(code: &mut Vec<libc::sock_filter>, action: &Action) {
    let allow = statement(RETURN, libc::SECCOMP_RET_ALLOW);
    let refuse = statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    match action {
        Action::Allow => code.push(allow),
        Action::Fail(number) => code.push(statement(RETURN, libc::SECCOMP_RET_ERRNO | u32::from(*number))),
        Action::Check(Check::NoneOf { argument, bits }) => {
            code.extend([load_argument(*argument), jump(JUMP_SET, *bits, 0, 1), refuse, allow]);
        }
        Action::Check(Check::Not { argument, values }) => {
            code.push(load_argument(*argument));
            code.extend(values.iter().flat_map(|value| [jump(JUMP_EQUAL, *value, 0, 1), refuse]));
            code.push(allow);
        }
        Action::Check(Check::Only { argument, values }) => {
            code.push(load_argument(*argument));
            code.extend(values.iter().flat_map(|value| [jump(JUMP_EQUAL, *value, 0, 1), allow]));
            code.push(refuse);
        }
    }
}

/// Loads the low half of an argument. The calls that are checked take an `int` there and ignore the
/// upper half, or (`clone`) have no flag in it.
fn load_argument(argument: u8) -> libc::sock_filter {
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    statement(LOAD, ARGUMENTS + 8 * u32::from(argument) + low_half)
}

const fn statement(code: u16, k: u32) -> libc::sock_filter {
    jump(code, k, 0, 0)
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the few instructions that we emit, as the kernel would.
    fn run(filter: &Filter, architecture: u32, number: u32, argument: u64) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&number.to_ne_bytes());
        data[4..8].copy_from_slice(&architecture.to_ne_bytes());
        data[16..24].copy_from_slice(&argument.to_ne_bytes());
        let (mut at, mut value) = (0, 0);
        loop {
            let instruction = filter.0[at];
            at += 1;
            let taken = match instruction.code {
                LOAD => {
                    let offset = instruction.k as usize;
                    value = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
                    continue;
                }
                RETURN => return instruction.k,
                JUMP => {
                    at += instruction.k as usize;
                    continue;
                }
                in_order::AND => {
                    value &= instruction.k;
                    continue;
                }
                in_order::JUMP_GREATER => value > instruction.k,
                JUMP_EQUAL => value == instruction.k,
                JUMP_GREATER_EQUAL => value >= instruction.k,
                JUMP_SET => value & instruction.k != 0,
                other => panic!("unknown instruction {other}"),
            };
            at += usize::from(if taken { instruction.jt } else { instruction.jf });
        }
    }

    #[test]
    fn conditions_see_all_bits_of_an_argument() {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        let interesting =
            [0, 1, 7, 8, u64::from(u32::MAX), 1 << 32, (1 << 32) + 7, (5 << 32) + 1, 5 << 32, u64::MAX];
        for comparison in [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual] {
            for value in interesting {
                for mask in [u64::MAX, 0xf, 0xffff_ffff_0000_0000] {
                    let condition = Condition { argument: 0, mask, comparison, value };
                    // A doubled condition holds when the condition does.
                    let rules = [
                        Rule { number: 3, conditions: vec![condition, condition], verdict: Verdict::Trap },
                        Rule { number: 4, conditions: Vec::new(), verdict: Verdict::Fail(7) },
                    ];
                    let filter = Filter::compile_in_order(&rules, Verdict::Allow);
                    for argument in interesting {
                        let masked = argument & mask;
                        let holds = match comparison {
                            Equal => masked == value,
                            NotEqual => masked != value,
                            Less => masked < value,
                            LessOrEqual => masked <= value,
                            Greater => masked > value,
                            GreaterOrEqual => masked >= value,
                        };
                        let expected = if holds { libc::SECCOMP_RET_TRAP } else { libc::SECCOMP_RET_ALLOW };
                        let found = run(&filter, OUR_ARCHITECTURE, 3, argument);
                        assert_eq!(found, expected, "{argument:#x} {comparison:?} {value:#x} with {mask:#x}");
                    }
                    assert_eq!(run(&filter, OUR_ARCHITECTURE, 4, 0), libc::SECCOMP_RET_ERRNO | 7);
                    assert_eq!(run(&filter, OUR_ARCHITECTURE, 5, 0), libc::SECCOMP_RET_ALLOW);
                }
            }
        }
    }

    #[test]
    fn every_number_gets_its_rule() {
        let allow = libc::SECCOMP_RET_ALLOW;
        let fail = |number: i32| libc::SECCOMP_RET_ERRNO | number as u32;
        let mut rules = BTreeMap::new();
        // Leave out every third number, so that there are far more ranges than a short jump spans.
        for number in 0..600 {
            if number % 3 != 0 {
                rules.insert(number, Action::Allow);
            }
        }
        rules.insert(56, Action::Check(Check::NoneOf { argument: 0, bits: 0x7E02_0000 }));
        rules.insert(57, Action::Check(Check::Not { argument: 0, values: vec![38, 40] }));
        rules.insert(58, Action::Check(Check::Only { argument: 0, values: vec![0, 8, u32::MAX] }));
        rules.insert(60, Action::Fail(libc::ENOSYS as u16));
        let filter = Filter::compile(&rules, libc::EPERM as u16);
        for number in 0..700 {
            let expected = match number {
                56..=58 => continue,
                60 | 600.. => fail(libc::ENOSYS),
                number if number % 3 == 0 => fail(libc::EPERM),
                _ => allow,
            };
            assert_eq!(run(&filter, OUR_ARCHITECTURE, number, 0), expected, "number {number}");
        }
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 56, 0x11), allow);
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 56, 0x1000_0011), fail(libc::EPERM));
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 57, 2), allow);
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 57, 40), fail(libc::EPERM));
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 58, 8), allow);
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 58, 9), fail(libc::EPERM));
        // The x32 convention is our architecture with a bit set in the number.
        assert_eq!(run(&filter, OUR_ARCHITECTURE, 0x4000_0001, 0), fail(libc::ENOSYS));
        assert_eq!(run(&filter, 0x4000_0003, 1, 0), libc::SECCOMP_RET_KILL_PROCESS);
    }
}
