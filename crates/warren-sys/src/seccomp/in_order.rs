//! Rules that are tried in order, for bundles with rules of their own
//! ([`super::Filter::compile_in_order`]).

use super::{ARGUMENTS, JUMP_EQUAL, JUMP_GREATER_EQUAL, LOAD, NUMBER, RETURN, jump, statement};

/// The effect of a rule of [`Filter::compile_in_order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Allows the call.
    Allow,
    /// Allows the call and writes it to the audit log.
    Log,
    /// Fails the call with this error number.
    Fail(u16),
    /// Sends `SIGSYS` to the process.
    Trap,
    /// Notifies the process's tracer, with this number.
    Trace(u16),
    /// Kills the thread.
    KillThread,
    /// Kills the process.
    KillProcess,
}

impl Verdict {
    pub(super) fn value(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Log => libc::SECCOMP_RET_LOG,
            Self::Fail(number) => libc::SECCOMP_RET_ERRNO | u32::from(number),
            Self::Trap => libc::SECCOMP_RET_TRAP,
            Self::Trace(number) => libc::SECCOMP_RET_TRACE | u32::from(number),
            Self::KillThread => libc::SECCOMP_RET_KILL_THREAD,
            Self::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// A rule for one system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The system call.
    pub number: u32,
    /// Conditions on its arguments, all of which must hold.
    pub conditions: Vec<Condition>,
    /// The effect.
    pub verdict: Verdict,
}

/// A condition on all 64 bits of an argument, which is masked and compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// The number of the argument, 0 to 5.
    pub argument: u8,
    /// The bits to compare.
    pub mask: u64,
    /// The kind of comparison.
    pub comparison: Comparison,
    /// The value to compare with.
    pub value: u64,
}

/// The kinds of comparison of a [`Condition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// Less.
    Less,
    /// Less or equal.
    LessOrEqual,
    /// Greater.
    Greater,
    /// Greater or equal.
    GreaterOrEqual,
}

/// Masks the loaded value.
pub(super) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
/// Jumps if the loaded value is greater.
pub(super) const JUMP_GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;

impl Rule {
    pub(super) fn compile(&self, code: &mut Vec<libc::sock_filter>) {
        let mut body: Vec<libc::sock_filter> = Vec::new();
        // Build from the end, because each condition jumps over the code after it.
        body.push(statement(RETURN, self.verdict.value()));
        for condition in self.conditions.iter().rev() {
            let mut part = condition.compile(body.len());
            part.append(&mut body);
            body = part;
        }
        code.push(statement(LOAD, NUMBER));
        // A conditional jump reaches 255 instructions; six conditions take fewer.
        code.push(jump(JUMP_EQUAL, self.number, 0, u8::try_from(body.len()).unwrap_or(u8::MAX)));
        code.append(&mut body);
    }
}

impl Condition {
    /// Emits code that continues with the next instruction if the condition holds, and otherwise
    /// jumps over the `rest` behind it.
    fn compile(&self, rest: usize) -> Vec<libc::sock_filter> {
        use Comparison as C;
        let (high, low) = ((self.value >> 32) as u32, self.value as u32);
        let load = |offset: u32, mask: u32| {
            let place = ARGUMENTS + 8 * u32::from(self.argument) + offset;
            [statement(LOAD, place), statement(AND, mask)]
        };
        let away = |distance: usize| u8::try_from(distance).unwrap_or(u8::MAX);
        // Compare the high half first (on a little-endian machine it is the second word). Two jumps
        // decide most comparisons. The low half matters only if the high halves are equal.
        let mut code = Vec::new();
        code.extend(load(4, (self.mask >> 32) as u32));
        let low_half = load(0, self.mask as u32);
        let jump_low = |kind: u16, yes: bool| {
            if yes { jump(kind, low, 0, away(rest)) } else { jump(kind, low, away(rest), 0) }
        };
        match self.comparison {
            // If the high halves differ, it fails. The low half and its jump are three more
            // instructions.
            C::Equal => {
                code.push(jump(JUMP_EQUAL, high, 0, away(rest + 3)));
                code.extend(low_half);
                code.push(jump_low(JUMP_EQUAL, true));
            }
            // If the high halves differ, it holds.
            C::NotEqual => {
                code.push(jump(JUMP_EQUAL, high, 0, 3));
                code.extend(low_half);
                code.push(jump_low(JUMP_EQUAL, false));
            }
            C::Greater | C::GreaterOrEqual => {
                code.push(jump(JUMP_GREATER, high, 4, 0));
                code.push(jump(JUMP_EQUAL, high, 0, away(rest + 3)));
                code.extend(low_half);
                let kind = if self.comparison == C::Greater { JUMP_GREATER } else { JUMP_GREATER_EQUAL };
                code.push(jump_low(kind, true));
            }
            C::Less | C::LessOrEqual => {
                code.push(jump(JUMP_GREATER, high, away(rest + 4), 0));
                code.push(jump(JUMP_EQUAL, high, 0, 3));
                code.extend(low_half);
                let kind = if self.comparison == C::Less { JUMP_GREATER_EQUAL } else { JUMP_GREATER };
                code.push(jump_low(kind, false));
            }
        }
        code
    }
}
