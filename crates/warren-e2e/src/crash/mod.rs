//! Kills the processes of a home repeatedly, at every point of a sandbox's life.
//!
//! [`run`] keeps two residents in a real home. In each round it makes a guest, kills the daemon,
//! the guest's shim or the zygote with `kill -9` while the guest is created, started, used, stopped
//! or deleted, and restarts the home. Then the residents must be the same processes and still run
//! commands, acknowledged changes must hold, the guest must reach its requested state, and no new
//! objects may be left on the machine. The same seed makes the same choices, but the guest's
//! progress at the kill depends on the machine. Start reading at `Crash::round`; `victim` finds and
//! kills, `guest` is what a user does.

mod guest;
mod victim;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use warren_client::kube::Client;
use warren_testkit::leaks::{self, Leaks};

use crate::local_home::LocalHome;
use guest::Guest;
use victim::Prey;

/// The deadline of every wait: each takes a fraction of a second on an idle machine, and ten
/// seconds after a failed start.
const DEADLINE: Duration = Duration::from_secs(60);
/// The number of residents: enough to notice if one is taken for the other.
const RESIDENTS: usize = 2;
/// The most tries per round: a victim that is gone before it is killed makes no round.
const TRIES: u64 = 6;

/// The moment of a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// After the create request is sent.
    Create,
    /// After the node has begun with the pod.
    Start,
    /// After a command is requested.
    Exec,
    /// After a suspension is requested; the sandbox's program takes time to end.
    Stop,
    /// After a deletion is requested.
    Delete,
}

impl Moment {
    const ALL: [Moment; 5] = [Moment::Create, Moment::Start, Moment::Exec, Moment::Stop, Moment::Delete];

    /// Returns the length of the moment, slightly more than on an idle machine: the kill comes at
    /// some point of it.
    fn length(self) -> Duration {
        match self {
            Moment::Create => Duration::from_millis(60),
            Moment::Start | Moment::Exec | Moment::Delete => Duration::from_millis(40),
            Moment::Stop => Duration::from_millis(300),
        }
    }
}

/// The process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// `warren up`.
    Daemon,
    /// The process that keeps the guest's containers.
    Shim,
    /// The daemon's helper, which forks shims.
    Zygote,
}

impl Victim {
    const ALL: [Victim; 3] = [Victim::Daemon, Victim::Shim, Victim::Zygote];
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Processes that were killed.
    pub kills: u64,
    /// Victims that ended before they could be killed.
    pub late: u64,
    /// Requests that were acknowledged despite a kill.
    pub acknowledged: u64,
}

/// Kills `rounds` processes of a home.
///
/// # Errors
///
/// Returns the first violation, with the seed and the round.
pub async fn run(home: &LocalHome, rounds: u64, seed: u64) -> Result<Outcome, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut crash = Crash::begin(home).await?;
    let mut outcome = Outcome::default();
    let mut plan: Vec<(Moment, Victim)> = Vec::new();
    for number in 0..rounds * TRIES {
        if outcome.kills == rounds {
            break;
        }
        if plan.is_empty() {
            // Each once before any is repeated.
            plan = Moment::ALL
                .into_iter()
                .flat_map(|moment| Victim::ALL.map(|victim| (moment, victim)))
                .collect();
            random.shuffle(&mut plan);
        }
        let Some((moment, victim)) = plan.pop() else { continue };
        let round = Round {
            number,
            moment,
            victim,
            delay: moment.length().mul_f64(random.f64()),
            is_patient: random.u8(..4) == 0,
        };
        let done = crash.round(&round).await.map_err(|error| format!("seed {seed}, {round}: {error}"))?;
        match done.killed {
            true => outcome.kills += 1,
            false => outcome.late += 1,
        }
        outcome.acknowledged += u64::from(done.killed && done.acknowledged);
    }
    crash.end().await.map_err(|error| format!("seed {seed}, at the end: {error}"))?;
    Ok(outcome)
}

/// The choices for one round.
#[derive(Debug, Clone, Copy)]
struct Round {
    number: u64,
    moment: Moment,
    victim: Victim,
    /// The time from the beginning of the moment until the kill.
    delay: Duration,
    /// True if a guest whose shim was killed before it ran gets the ten seconds until the retry.
    is_patient: bool,
}

impl fmt::Display for Round {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { number, moment, victim, delay, .. } = self;
        write!(formatter, "round {number} ({victim:?} at {moment:?} + {delay:?})")
    }
}

struct Done {
    killed: bool,
    acknowledged: bool,
}

/// A home with residents.
struct Crash<'home> {
    home: &'home LocalHome,
    pods: PathBuf,
    daemon: u32,
    client: Client,
    residents: Vec<Resident>,
    /// The objects on the machine with only the residents.
    before: Leaks,
}

/// A sandbox that must not be affected.
struct Resident {
    guest: Guest,
    marker: String,
    process: Vec<u32>,
}

impl<'home> Crash<'home> {
    async fn begin(home: &'home LocalHome) -> Result<Crash<'home>, String> {
        let daemon = tokio::task::block_in_place(|| home.up());
        let client = home.client().await;
        let mut residents = Vec::new();
        for number in 0..RESIDENTS {
            // Unique to this test, even while another one runs.
            let marker = format!("{}{:07}.25", number + 1, std::process::id());
            let guest = Guest::named(format!("resident-{number}"), &["sleep", &marker]);
            guest.create(&client).await?;
            guest.wait_ready(&client).await?;
            guest.exec_whole(&client, &format!("echo {marker} > /tmp/state")).await?;
            let process = victim::processes_of(&format!("sleep\0{marker}\0"));
            if process.len() != 1 {
                return Err(format!("{} has the processes {process:?}", guest.name()));
            }
            residents.push(Resident { guest, marker, process });
        }
        let pods = home.path().canonicalize().map_err(|error| error.to_string())?.join("pods");
        let before = at_rest(home.path()).await?;
        Ok(Crash { home, pods, daemon, client, residents, before })
    }

    /// Makes a guest, kills a process, and checks the result.
    async fn round(&mut self, round: &Round) -> Result<Done, String> {
        // It takes time to end when it is asked to.
        let script = "trap 'sleep 0.2; exit 0' TERM; while :; do sleep 0.05; done";
        let guest = Guest::named(format!("guest-{}", round.number), &["sh", "-c", script]);
        if !matches!(round.moment, Moment::Create | Moment::Start) {
            guest.create(&self.client).await?;
            guest.wait_ready(&self.client).await?;
        }
        let prey = self.prey(round)?;
        let wish = tokio::spawn(wish(round.moment, guest.clone(), self.client.clone()));
        let killed = victim::kill_in_the_background(prey).await?;
        let acknowledged = match tokio::time::timeout(DEADLINE, wish).await {
            Ok(acknowledged) => acknowledged.map_err(|error| error.to_string())??,
            Err(_) => return Err("a request was never answered".to_owned()),
        };
        self.bring_back(round.victim, killed).await?;
        self.check_residents(round.number).await?;
        self.settle(round, &guest, acknowledged).await?;
        self.check_leaks().await?;
        Ok(Done { killed, acknowledged })
    }

    /// Chooses the process to kill, and the time.
    fn prey(&self, round: &Round) -> Result<Prey, String> {
        let pods = self.pods.clone();
        let begun = (round.moment == Moment::Start).then(|| pods.clone());
        let known = self.before.files.clone();
        match round.victim {
            Victim::Daemon => Prey::known(self.daemon, begun, known, round.delay),
            Victim::Zygote => Prey::known(victim::child_of(self.daemon)?, begun, known, round.delay),
            // A shim that does not exist yet is awaited, and then killed within the milliseconds in
            // which it starts its containers.
            Victim::Shim if matches!(round.moment, Moment::Create | Moment::Start) => {
                Ok(Prey::shim_to_come(pods, known, round.delay / 8))
            }
            Victim::Shim => {
                let shim = victim::shim_beside(&pods, &known).ok_or("a guest that is Ready has no shim")?;
                Prey::known(shim, None, known, round.delay)
            }
        }
    }

    /// Starts a daemon again if there is none.
    async fn bring_back(&mut self, victim: Victim, killed: bool) -> Result<(), String> {
        if victim == Victim::Shim || !killed {
            return Ok(());
        }
        // Without its zygote it ends by itself.
        let daemon = self.daemon;
        let ended = tokio::task::spawn_blocking(move || victim::wait_for_end(daemon, DEADLINE));
        if !ended.await.map_err(|error| error.to_string())?? {
            return Err(format!("the daemon {daemon} runs on without its zygote"));
        }
        self.daemon = tokio::task::block_in_place(|| self.home.up());
        self.client = self.home.client().await;
        Ok(())
    }

    /// Checks that the residents are the same processes, and runs a command in one of them.
    async fn check_residents(&self, number: u64) -> Result<(), String> {
        for resident in &self.residents {
            let found = victim::processes_of(&format!("sleep\0{}\0", resident.marker));
            if found != resident.process {
                let name = resident.guest.name();
                return Err(format!("{name} was {:?} and is {found:?}", resident.process));
            }
        }
        let asked = usize::try_from(number).unwrap_or_default() % self.residents.len();
        let Resident { guest, marker, .. } = &self.residents[asked];
        let kept = guest.exec_until_it_works(&self.client, "cat /tmp/state").await?;
        match kept.trim() == marker {
            true => Ok(()),
            false => Err(format!("{} has lost its file: `{kept}`", guest.name())),
        }
    }

    /// Waits until the guest is in its requested state, and deletes it.
    async fn settle(&self, round: &Round, guest: &Guest, acknowledged: bool) -> Result<(), String> {
        let client = &self.client;
        let is_there = guest.is_there(client).await?;
        match round.moment {
            Moment::Create | Moment::Start => {
                if acknowledged && !is_there {
                    return Err("a create was acknowledged and is lost".to_owned());
                }
                let is_worth_waiting = round.victim != Victim::Shim || round.is_patient;
                if is_there && is_worth_waiting {
                    guest.exec_until_it_works(client, "true").await?;
                }
            }
            Moment::Exec => drop(guest.exec_until_it_works(client, "true").await?),
            Moment::Stop => {
                if acknowledged && !guest.is_suspended(client).await? {
                    return Err("a patch was acknowledged and is lost".to_owned());
                }
                guest.set_mode(client, "Suspended").await?;
                guest.wait_without_pod(client).await?;
                guest.set_mode(client, "Running").await?;
                guest.exec_until_it_works(client, "true").await?;
            }
            Moment::Delete => {
                if acknowledged && is_there && !guest.is_going(client).await? {
                    return Err("a delete was acknowledged and is lost".to_owned());
                }
            }
        }
        guest.delete(client).await?;
        guest.wait_gone(client).await
    }

    async fn check_leaks(&self) -> Result<(), String> {
        let (path, before) = (self.home.path().to_owned(), self.before.clone());
        let looked = tokio::task::spawn_blocking(move || leaks::wait_until_only(&path, &before));
        let looked = looked.await.map_err(|error| error.to_string())?;
        looked.map_err(|now| format!("there was {:#?}\nand now there is {now:#?}", self.before))
    }

    /// Deletes the residents and stops the home: nothing of either may be left.
    async fn end(self) -> Result<(), String> {
        for resident in &self.residents {
            resident.guest.delete(&self.client).await?;
            resident.guest.wait_gone(&self.client).await?;
        }
        tokio::task::block_in_place(|| {
            self.home.assert_nothing_left();
            let ended = self.home.warren(&["down"]);
            if ended.code != Some(0) {
                return Err(format!("{ended:?}"));
            }
            self.home.assert_nothing_left();
            Ok(())
        })
    }
}

/// Makes the user's request of that moment; returns true if it was acknowledged.
async fn wish(moment: Moment, guest: Guest, client: Client) -> Result<bool, String> {
    match moment {
        Moment::Create | Moment::Start => Ok(guest.create(&client).await.is_ok()),
        Moment::Exec => guest.exec_or_be_cut_off(&client).await,
        Moment::Stop => Ok(guest.set_mode(&client, "Suspended").await.is_ok()),
        Moment::Delete => Ok(guest.delete(&client).await.is_ok()),
    }
}

/// Waits for the residents' idle state: a shim and a program for each, and no ending command.
async fn at_rest(data_dir: &Path) -> Result<Leaks, String> {
    let path = data_dir.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let found = leaks::find(&path).map_err(|error| error.to_string())?;
            if found.processes.len() == 2 * RESIDENTS {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                return Err(format!("the residents do not come to rest: {found:#?}"));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
    looked.await.map_err(|error| error.to_string())?
}

/// Stops a home `rounds` times while a guest is starting. No process, mount, cgroup, device or rule
/// may be left, and earlier guests come back with the next start.
///
/// # Errors
///
/// Returns the first violation, with the seed and the round.
pub async fn go_down(home: &LocalHome, rounds: u64, seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut guests: Vec<Guest> = Vec::new();
    for number in 0..rounds {
        let delay = Moment::Create.length().mul_f64(random.f64());
        let failed = |error: String| format!("seed {seed}, round {number} (down after {delay:?}): {error}");
        tokio::task::block_in_place(|| home.up());
        let client = home.client().await;
        let guest = Guest::named(format!("guest-{number}"), &["sleep", "1000000"]);
        guest.create(&client).await.map_err(failed)?;
        guests.push(guest);
        tokio::time::sleep(delay).await;
        tokio::task::block_in_place(|| down(home)).map_err(failed)?;
    }
    tokio::task::block_in_place(|| home.up());
    let client = home.client().await;
    for guest in &guests {
        guest.exec_until_it_works(&client, "true").await.map_err(|error| format!("seed {seed}: {error}"))?;
        guest.delete(&client).await?;
    }
    for guest in &guests {
        guest.wait_gone(&client).await.map_err(|error| format!("seed {seed}: {error}"))?;
    }
    tokio::task::block_in_place(|| {
        home.assert_nothing_left();
        down(home)
    })
}

/// Stops the home and checks the machine: files of pods may stay, for the next start.
fn down(home: &LocalHome) -> Result<(), String> {
    let ended = home.warren(&["down"]);
    if ended.code != Some(0) {
        return Err(format!("{ended:?}"));
    }
    let files = leaks::find(home.path()).map_err(|error| error.to_string())?.files;
    let allowed = Leaks { files, ..Leaks::default() };
    leaks::wait_until_only(home.path(), &allowed).map_err(|found| format!("going down left {found:#?}"))
}
