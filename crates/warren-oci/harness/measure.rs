//! Measures the steps of a container's start.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use warren_oci::client::ShimClient;
use warren_oci::host_image::HostImage;
use warren_oci::idmap::IdAllocator;
use warren_oci::protocol::{
    Answer, Call, ContainerRequest, ContainerStatus, Event, ExecRequest, LogFile, Message, PodRequest,
    PodState,
};
use warren_oci::spec::{CpuQuota, Limits, Process, Spec};
use warren_oci::zygote::Zygote;
use warren_oci::{cgroup_names, cleanup};

type Failure = Box<dyn std::error::Error>;

const HOME: &str = "bench0001";

/// Starts `starts` pods on the host image, one after the other, runs `true` in each, and removes
/// them.
pub fn run(zygote: &Zygote, starts: usize) -> Result<(), Failure> {
    let data = std::env::temp_dir().join(format!("warren-oci-measure-{}", std::process::id()));
    let result = measure(zygote, &data, starts);
    cleanup::remove_home_cgroup(HOME)?;
    std::fs::remove_dir_all(&data)?;
    result
}

fn measure(zygote: &Zygote, data: &Path, starts: usize) -> Result<(), Failure> {
    let pods = data.join("pods");
    let image = HostImage::prepare(data)?;
    let mut allocator = IdAllocator::load(&pods, HOME)?;
    let mut totals: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut steps: Vec<(String, Vec<Duration>)> = Vec::new();
    for number in 0..starts {
        let uid = format!("pod-{number}");
        let ids = allocator.allocate(&uid)?;
        let directory = pods.join(&uid);
        let pod = pod_request(&uid, &directory, ids, &image);
        let wall = jiff::Timestamp::now();
        let begin = Instant::now();
        let shim = zygote.spawn_shim(&pod)?;
        totals.entry("1 shim forked").or_default().push(begin.elapsed());
        wait_running(&shim.client)?;
        totals.entry("2 program runs").or_default().push(begin.elapsed());
        let exec = Instant::now();
        run_true(&shim.client)?;
        totals.entry("3 exec of `true`, to its exit").or_default().push(exec.elapsed());
        let end = Instant::now();
        shim.client.call(Call::Shutdown, drop)?;
        totals.entry("4 shutdown").or_default().push(end.elapsed());
        add_steps(&mut steps, wall, &std::fs::read_to_string(directory.join("timeline"))?);
        cleanup::remove_pod_directory(&directory)?;
        allocator.release(ids);
    }
    println!("{starts} starts, microseconds                min     p10     p50     p90     max");
    for (name, mut durations) in totals {
        print_row(&name[2..], &mut durations);
    }
    println!("step ends after the request");
    for (name, mut durations) in steps {
        print_row(&name, &mut durations);
    }
    Ok(())
}

fn pod_request(
    uid: &str,
    directory: &Path,
    ids: warren_oci::idmap::IdRange,
    image: &HostImage,
) -> PodRequest {
    let mut process = Process::new(HostImage::default_command());
    process.env = HostImage::default_environment();
    let mut spec = Spec::new(process);
    spec.linux.resources = Limits {
        memory_bytes: Some(512 << 20),
        cpu: Some(CpuQuota::from_millis(1000)),
        cpu_shares: Some(1024),
        pids: Some(512),
    };
    PodRequest {
        uid: uid.to_owned(),
        directory: directory.to_owned(),
        cgroup: cgroup_names::pod(HOME, uid),
        hostname: uid.to_owned(),
        ids,
        network: None,
        runtime: None,
        proxy_port: None,
        sysctls: Vec::new(),
        activation: None,
        containers: vec![ContainerRequest {
            name: "main".to_owned(),
            attempt: 0,
            spec,
            rootfs: image.rootfs(),
            log: LogFile::new(directory.join("main.log")),
        }],
        trace: true,
    }
}

fn wait_running(client: &ShimClient) -> Result<(), Failure> {
    let mut states: Vec<PodState> = Vec::new();
    if let (Answer::State { state }, _) = client.call(Call::Subscribe, drop)? {
        states.push(state);
    }
    loop {
        if let Some(state) = states.pop() {
            match &state.containers["main"].status {
                ContainerStatus::Starting => {}
                ContainerStatus::Running { .. } => return Ok(()),
                other => return Err(format!("the container did not start: {other:?}").into()),
            }
        }
        match client.receive()?.ok_or("the shim is gone")?.message {
            Message::Event(Event::State { state }) => states.push(state),
            other => return Err(format!("unexpected {other:?}").into()),
        }
    }
}

fn run_true(client: &ShimClient) -> Result<(), Failure> {
    client.send(Call::Exec(ExecRequest {
        container: "main".to_owned(),
        args: vec!["/bin/true".to_owned()],
        env: Vec::new(),
        cwd: None,
        user: None,
        terminal: None,
        stdin: false,
    }))?;
    loop {
        match client.receive()?.ok_or("the shim is gone")?.message {
            Message::Event(Event::ExecExited { exit, .. }) if exit.code == 0 => return Ok(()),
            Message::Event(Event::State { .. }) | Message::Reply { result: Ok(_), .. } => {}
            other => return Err(format!("unexpected {other:?}").into()),
        }
    }
}

fn add_steps(steps: &mut Vec<(String, Vec<Duration>)>, begin: jiff::Timestamp, timeline: &str) {
    for line in timeline.lines() {
        let Some((time, name)) = line.split_once(' ') else { continue };
        let Ok(time) = time.parse::<i128>() else { continue };
        let since = Duration::from_nanos(u64::try_from(time - begin.as_nanosecond()).unwrap_or(0));
        match steps.iter_mut().find(|(known, _)| known == name) {
            Some((_, durations)) => durations.push(since),
            None => steps.push((name.to_owned(), vec![since])),
        }
    }
}

fn print_row(name: &str, durations: &mut [Duration]) {
    durations.sort();
    let at = |share: usize| durations[(durations.len() - 1) * share / 100].as_micros();
    println!("  {name:36} {:6}  {:6}  {:6}  {:6}  {:6}", at(0), at(10), at(50), at(90), at(100));
}
