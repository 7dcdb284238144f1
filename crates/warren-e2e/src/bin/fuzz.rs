//! Fuzzes the embedded API server for a while, each kind in turn, and prints the statistics of its
//! answers: `cargo run --package warren-e2e --bin fuzz -- [KIND…] [--seconds N] [--seed N] [--epoch
//! SEED]`. A finding is printed with the seed of its epoch, and `--epoch SEED KIND` repeats just
//! that.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use warren_e2e::fuzz::{Kind, Tally, resident_bytes, run_epoch};

/// The number of requests to one server.
const EPOCH: u64 = 2000;

struct Arguments {
    kinds: Vec<Kind>,
    seconds: u64,
    seed: u64,
    epoch: Option<u64>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { kinds: Vec::new(), seconds: 60, seed: fastrand::u64(..), epoch: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number =
            || words.next().and_then(|text| text.parse().ok()).ok_or(format!("{word} needs a number"));
        match word.as_str() {
            "--seconds" => parsed.seconds = number()?,
            "--seed" => parsed.seed = number()?,
            "--epoch" => parsed.epoch = Some(number()?),
            name => match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
                Some(kind) => parsed.kinds.push(kind),
                None => return Err(format!("`{name}` is none of {:?}", Kind::ALL.map(Kind::name))),
            },
        }
    }
    if parsed.kinds.is_empty() {
        parsed.kinds = Kind::ALL.to_vec();
    }
    Ok(parsed)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let mut findings = 0;
    for kind in arguments.kinds {
        let began = Instant::now();
        let time = Duration::from_secs(arguments.seconds);
        let mut tally = Tally::default();
        loop {
            let seed = arguments.epoch.unwrap_or_else(|| random.u64(..));
            match run_epoch(kind, seed, EPOCH).await {
                Ok(epoch) => tally.add(&epoch),
                Err(finding) => {
                    println!("FOUND {finding}");
                    findings += 1;
                }
            }
            if began.elapsed() > time || arguments.epoch.is_some() {
                break;
            }
        }
        println!(
            "{:<17} {:>9} requests in {:>4} s, {:>4} MB resident: {tally}",
            kind.name(),
            tally.requests(),
            began.elapsed().as_secs(),
            resident_bytes() >> 20
        );
    }
    println!("seed {}, {findings} findings", arguments.seed);
    ExitCode::from(u8::from(findings > 0))
}
