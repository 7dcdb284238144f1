//! Releases unused memory of an idle process, and measures its processor time.

use std::io;
use std::time::Duration;

/// Returns the processor time that all threads of this process have used.
pub fn processor_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to our own `timespec`, which the call fills in.
    match unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) } {
        0 => {
            let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
            Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Releases unused memory: free memory that the allocator keeps, and the program's code, little of
/// which is needed after the start. Code that is needed again is read from the kernel's page cache.
pub fn give_back() -> io::Result<()> {
    trim_heap();
    code()?.into_iter().try_for_each(forget)
}

/// Trims both heaps: our own, and that of C code such as the database.
fn trim_heap() {
    // SAFETY: the call takes no pointer. It visits the heap of this thread and abandoned memory of
    // others.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer, and holds the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: usize,
    length: usize,
}

/// Returns the mappings of the code of this program and its libraries, if any.
fn code() -> io::Result<Vec<Range>> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(code_of).collect())
}

/// Parses a line of the table of mappings. Returns a range if it is a private mapping of code from
/// a file.
fn code_of(line: &str) -> Option<Range> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    // The kernel's own mappings (`[vdso]`) have no file.
    let is_code = fields.next()? == "r-xp" && fields.nth(2)? != "0";
    let start = usize::from_str_radix(start, 16).ok()?;
    let length = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    is_code.then_some(Range { start, length })
}

fn forget(range: Range) -> io::Result<()> {
    // SAFETY: these are pages of a private file mapping that were never written. They are not
    // writable now, and code without relocations (the program is linked statically, at fixed
    // addresses) never was. So the kernel reads the same contents again at the next access. No Rust
    // object is in them.
    match unsafe { libc::madvise(range.start as *mut libc::c_void, range.length, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_forgotten() {
        let code = "00a1c000-0245e000 r-xp 0081b000 fe:00 9994483                            /usr/bin/warren";
        assert_eq!(code_of(code), Some(Range { start: 0xa1c000, length: 0x1a42000 }));
        for other in [
            "00200000-00a1c000 r--p 00000000 fe:00 9994483                            /usr/bin/warren",
            "0246a000-02475000 rw-p 02267000 fe:00 9994483                            /usr/bin/warren",
            "00a1c000-0245e000 rwxp 0081b000 fe:00 9994483                            /usr/bin/warren",
            "7ffc83fd9000-7ffc83fdb000 r-xp 00000000 00:00 0                          [vdso]",
            "180c0000-18c51000 rw-p 00000000 00:00 0                                  [heap]",
            "",
        ] {
            assert_eq!(code_of(other), None, "{other}");
        }
    }

    /// Maps this test's program once more as code, so that there is much to release.
    fn mapped_program() -> &'static [u8] {
        use std::os::fd::AsRawFd as _;
        let program = std::fs::File::open("/proc/self/exe").expect("open this program");
        let length = usize::try_from(program.metadata().expect("look at it").len()).expect("a size");
        // SAFETY: this is a new mapping at an address that the kernel chooses, never unmapped.
        let start = unsafe {
            let how = libc::PROT_READ | libc::PROT_EXEC;
            libc::mmap(std::ptr::null_mut(), length, how, libc::MAP_PRIVATE, program.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        // SAFETY: the mapping has this length, and a running program is never written.
        unsafe { std::slice::from_raw_parts(start.cast(), length) }
    }

    #[test]
    fn what_is_given_back_is_there_again_when_it_is_used() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("read who we are");
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("a line");
            line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
        };
        let sum = |bytes: &[u8]| {
            bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
        };
        let program = mapped_program();
        let content = sum(program);
        let before = resident();
        give_back().expect("give memory back");
        let after = resident();
        assert!(after + program.len() / 2 < before, "{after} of {before}");
        assert_eq!(sum(program), content);
    }

    #[test]
    fn processor_time_grows_with_work() {
        let before = processor_time().expect("ask");
        while processor_time().expect("ask") == before {}
    }
}
