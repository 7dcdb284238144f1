//! Compiles a bundle's rules for system calls.

use warren_sys::seccomp::{Comparison, Condition, Filter, Rule, Verdict};

use super::Error;
use super::config::{Seccomp, SeccompArgument};
use super::system_calls;

pub(super) fn compile(seccomp: &Seccomp) -> Result<Filter, Error> {
    let otherwise = verdict(&seccomp.default_action, seccomp.default_errno_ret)?;
    if let Some(flag) = seccomp.flags.iter().find(|flag| flag.as_str() != "SECCOMP_FILTER_FLAG_LOG") {
        return Err(Error::Config(format!("the flag {flag} of the system call filter is not supported")));
    }
    let mut rules = Vec::new();
    for rule in &seccomp.syscalls {
        let verdict = verdict(&rule.action, rule.errno_ret)?;
        let conditions = rule.args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
        // Names of another architecture or a later kernel cannot be called here.
        for number in rule.names.iter().filter_map(|name| system_calls::number(name)) {
            rules.push(Rule { number, conditions: conditions.clone(), verdict });
        }
    }
    // The kernel accepts 4096 instructions; a rule has at most forty.
    let filter = Filter::compile_in_order(&rules, otherwise);
    match filter.instructions() {
        0..=4096 => Ok(filter),
        count => Err(Error::Config(format!(
            "the system call filter has {count} instructions, more than the kernel takes"
        ))),
    }
}

fn verdict(action: &str, number: Option<u16>) -> Result<Verdict, Error> {
    let number = number.unwrap_or(libc::EPERM as u16);
    Ok(match action {
        "SCMP_ACT_ALLOW" => Verdict::Allow,
        "SCMP_ACT_LOG" => Verdict::Log,
        "SCMP_ACT_ERRNO" => Verdict::Fail(number),
        "SCMP_ACT_TRAP" => Verdict::Trap,
        "SCMP_ACT_TRACE" => Verdict::Trace(number),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Verdict::KillThread,
        "SCMP_ACT_KILL_PROCESS" => Verdict::KillProcess,
        other => {
            return Err(Error::Config(format!(
                "the action {other} of the system call filter is not supported"
            )));
        }
    })
}

fn condition(argument: &SeccompArgument) -> Result<Condition, Error> {
    if argument.index > 5 {
        return Err(Error::Config(format!("a system call has no argument {}", argument.index)));
    }
    let (comparison, mask, value) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (Comparison::Equal, u64::MAX, argument.value),
        "SCMP_CMP_NE" => (Comparison::NotEqual, u64::MAX, argument.value),
        "SCMP_CMP_LT" => (Comparison::Less, u64::MAX, argument.value),
        "SCMP_CMP_LE" => (Comparison::LessOrEqual, u64::MAX, argument.value),
        "SCMP_CMP_GT" => (Comparison::Greater, u64::MAX, argument.value),
        "SCMP_CMP_GE" => (Comparison::GreaterOrEqual, u64::MAX, argument.value),
        "SCMP_CMP_MASKED_EQ" => (Comparison::Equal, argument.value, argument.value_two & argument.value),
        other => {
            return Err(Error::Config(format!(
                "the comparison {other} of the system call filter is not known"
            )));
        }
    };
    Ok(Condition { argument: argument.index, mask, comparison, value })
}
