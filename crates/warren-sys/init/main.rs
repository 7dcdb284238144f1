//! The first process of a container that has nothing better to run: it keeps the container alive, reaps what is orphaned inside, and
//! goes when asked to.
//!
//! A program of its own, without a library and of one page, because every sandbox that waits has one: what it maps, the kernel keeps
//! account of for each, and what it does before it waits is part of every start. `build.rs` compiles it, `warren_sys::init` has it.
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

/// What we wait for, and what is not delivered otherwise.
static SIGNALS: u64 = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);

const fn bit(signal: isize) -> u64 {
    1 << (signal - 1)
}

/// Where the kernel begins: on a stack, with no one to return to.
///
/// # Safety
/// For the kernel alone.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {run}", "ud2", run = sym run);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x29, xzr", "bl {run}", "brk #1", run = sym run);
}

/// Runs until `SIGTERM` or `SIGINT`. The end of a container's first process is that of all its others, so nothing is passed on.
extern "C" fn run() -> ! {
    const BLOCK: usize = 0;
    let signals = &raw const SIGNALS as usize;
    // SAFETY: the kernel reads eight bytes, and by a null pointer it returns nothing.
    unsafe { system_call(call::MASK, [BLOCK, signals, 0, size_of::<u64>()]) };
    loop {
        // SAFETY: as above; by null pointers there are no details of the signal, and no end of the wait.
        let signal = unsafe { system_call(call::NEXT_SIGNAL, [signals, 0, 0, size_of::<u64>()]) };
        match signal {
            SIGINT | SIGTERM => exit(0),
            SIGCHLD => reap(),
            // Stopped and continued, or traced.
            _ => {}
        }
    }
}

/// One `SIGCHLD` may stand for many children.
fn reap() {
    const ANY: usize = usize::MAX;
    const DO_NOT_WAIT: usize = 1;
    // SAFETY: the zeroes are null pointers: how a child ended, and what it used, is not asked for.
    while unsafe { system_call(call::WAIT, [ANY, 0, DO_NOT_WAIT, 0]) } > 0 {}
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { system_call(call::EXIT, [code, 0, 0, 0]) };
    }
}

/// # Safety
/// As the call that `number` says.
unsafe fn system_call(number: usize, arguments: [usize; 4]) -> isize {
    let [first, second, third, fourth] = arguments;
    let result;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel keeps all registers but these three; what the call does to memory, the caller answers for.
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
    // SAFETY: the kernel keeps all registers but the first; what the call does to memory, the caller answers for.
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

/// Nothing here panics; the language wants to know.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(101)
}
