//! Reads the kernel's figures about this process, under the names that Prometheus' client libraries
//! share.

use std::fs;

use super::family::Text;

pub(crate) fn write(text: &mut Text) {
    let Some(found) = Process::read() else { return };
    let mut put = |name, help, kind: &str, number| text.number(name, help, kind, number);
    put(
        "process_cpu_seconds_total",
        "Processor time used by this process, in seconds.",
        "counter",
        found.processor_seconds,
    );
    put("process_resident_memory_bytes", "Memory of this process that is resident.", "gauge", found.resident);
    put("process_virtual_memory_bytes", "Address space of this process.", "gauge", found.virtual_memory);
    put(
        "process_start_time_seconds",
        "When this process was started, in seconds since 1970.",
        "gauge",
        found.start,
    );
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        put("process_open_fds", "File descriptors that are open.", "gauge", open.count() as f64);
    }
    if let Some(most) = most_descriptors() {
        put("process_max_fds", "File descriptors that may be open.", "gauge", most);
    }
}

struct Process {
    processor_seconds: f64,
    resident: f64,
    virtual_memory: f64,
    start: f64,
}

impl Process {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Self::parse(&stat, boot)
    }

    /// Parses `/proc/self/stat`. The program's name is in parentheses and may contain anything.
    fn parse(stat: &str, boot: f64) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // proc(5) numbers fields from 1; the first one here is its third.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Some(Self {
            processor_seconds: (field(14)? + field(15)?) / ticks,
            start: boot + field(22)? / ticks,
            virtual_memory: field(23)?,
            resident: field(24)? * rustix::param::page_size() as f64,
        })
    }
}

fn most_descriptors() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Process;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 4 0 1000 4096000 25 0";
        let found = Process::parse(stat, 100.0).unwrap();
        assert_eq!((found.processor_seconds, found.start, found.virtual_memory), (2.0, 110.0, 4_096_000.0));
    }
}
