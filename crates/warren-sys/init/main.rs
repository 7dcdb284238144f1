//! The first process of an idle container. It keeps the container alive, reaps orphans, and ends on
//! request.
//!
//! It is a program of a single page without libraries, because every idle sandbox runs one: the
//! kernel accounts for each of its mappings, and its work before it waits is part of every start.
//! `build.rs` compiles it, `warren_sys::init` contains it.
#![no_std]
#![no_main]

use core::arch::{asm, naked_asm};
use core::panic::PanicInfo;

#[cfg(target_arch = "x86_64")]
mod call {
    pub const EXIT: usize = 60;
    pub const WAIT: usize = 61;
    pub const MASK: usize = 14;
    pub const NEXT_SIGNAL: usize = 128;
}

#[cfg(target_arch = "aarch64")]
mod call {
    pub const EXIT: usize = 93;
    pub const WAIT: usize = 260;
    pub const MASK: usize = 135;
    pub const NEXT_SIGNAL: usize = 137;
}

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;

/// The signals to wait for. They are blocked and so not delivered otherwise.
static SIGNALS: u64 = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);

const fn bit(signal: isize) -> u64 {
    1 << (signal - 1)
}

/// The entry point. The kernel jumps here with a stack and without a return address.
///
/// # Safety
///
/// Only the kernel may call it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {run}", "ud2", run = sym run);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, xzr", "bl {run}", "brk #1", run = sym run);
}

/// Runs until `SIGTERM` or `SIGINT`. Signals need no forwarding: when a container's first process
/// ends, so do all others.
extern "C" fn run() -> ! {
    const BLOCK: usize = 0;
    let signals = &raw const SIGNALS as usize;
    // SAFETY: the kernel reads eight bytes. With a null pointer it writes nothing.
    unsafe { system_call(call::MASK, [BLOCK, signals, 0, size_of::<u64>()]) };
    loop {
        // SAFETY: as above. With null pointers the kernel writes no signal details and reads no
        // timeout.
        let signal = unsafe { system_call(call::NEXT_SIGNAL, [signals, 0, 0, size_of::<u64>()]) };
        match signal {
            SIGINT | SIGTERM => exit(0),
            SIGCHLD => reap(),
            // A child was stopped, continued or traced.
            _ => {}
        }
    }
}

/// Reaps all children that have ended. One `SIGCHLD` may stand for several.
fn reap() {
    const ANY: usize = usize::MAX;
    const DO_NOT_WAIT: usize = 1;
    // SAFETY: the null pointers skip the exit status and the resource usage.
    while unsafe { system_call(call::WAIT, [ANY, 0, DO_NOT_WAIT, 0]) } > 0 {}
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: the call takes no pointer and does not return.
        unsafe { system_call(call::EXIT, [code, 0, 0, 0]) };
    }
}

/// # Safety
///
/// The requirements are those of the system call `number`.
unsafe fn system_call(number: usize, arguments: [usize; 4]) -> isize {
    let [first, second, third, fourth] = arguments;
    let result;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel keeps all registers but these three. The caller is responsible for the
    // call's effect on memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel keeps all registers but the first. The caller is responsible for the
    // call's effect on memory.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            options(nostack),
        );
    }
    result
}

/// Ends the process. The language requires this handler, but nothing here panics.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(101)
}
