//! Compares `warren run -- true`, which makes a new sandbox, with other ways to run a command in
//! isolation on one machine.

use std::path::Path;
use std::time::Duration;

use warren_testkit::docker::Docker;

use crate::bundle::{Bundle, bubblewrap};
use crate::contender::Contender;
use crate::home::Home;
use crate::legacy_cgroups::LegacyCgroups;
use crate::summary::{Summary, table};

/// The number of first rounds that are not counted, because they fill caches.
const WARM_UP_ROUNDS: usize = 3;

/// Runs every contender that works on this machine `rounds` times, in turns, and prints the times.
pub fn measure(warren: &Path, rounds: usize, json: bool) -> anyhow::Result<()> {
    let bundle = Bundle::create()?;
    let home = Home::start(warren)?;
    let docker = Docker::start().and_then(|docker| {
        docker.import("bench", &bundle.rootfs())?;
        Ok(docker)
    });
    let candidates = [
        Ok(home.cold_run()),
        docker.as_ref().map(docker_run).map_err(|error| anyhow::anyhow!("docker: {error:#}")),
        LegacyCgroups::where_needed()
            .and_then(|place| Ok(bundle.contender("crun run", "crun")?.place(place))),
        bundle.contender("runc run", "runc"),
        Ok(bubblewrap(&bundle.rootfs())),
    ];
    let mut contenders = Vec::new();
    for candidate in candidates {
        match candidate.and_then(|contender| warm_up(&contender).map(|()| contender)) {
            Ok(contender) => contenders.push(contender),
            // Warren itself is the first contender. Without it there is nothing to compare.
            Err(error) if contenders.is_empty() => return Err(error),
            Err(error) => eprintln!("left out: {error:#}"),
        }
    }
    let summaries = take_turns(&contenders, rounds)?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&summaries)?),
        false => print!("{}", table(&summaries)),
    }
    Ok(())
}

/// Returns `docker run --rm`, as a user types it.
fn docker_run(docker: &Docker) -> Contender {
    Contender::new("docker run --rm", "docker", ["run", "--rm", "bench", "/bin/true"])
        .environment("DOCKER_HOST", docker.host())
}

fn warm_up(contender: &Contender) -> anyhow::Result<()> {
    (0..WARM_UP_ROUNDS).try_for_each(|_| contender.time_once().map(drop))
}

fn take_turns(contenders: &[Contender], rounds: usize) -> anyhow::Result<Vec<Summary>> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); contenders.len()];
    for _ in 0..rounds {
        for (contender, times) in contenders.iter().zip(&mut times) {
            times.push(contender.time_once()?);
        }
    }
    Ok(contenders
        .iter()
        .zip(times)
        .filter_map(|(contender, times)| Summary::of(contender.name, times))
        .collect())
}
