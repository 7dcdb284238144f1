//! Runs seeds: `warren-sim [FIRST [COUNT [guards|terminating]]]`. Prints the first violations and ends with 1 if there are any.

use std::process::ExitCode;

use warren_sim::{Broken, Options, run};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let (Ok(first), Ok(count)) = (number(0, 0), number(1, 20_000)) else {
        eprintln!("usage: warren-sim [FIRST [COUNT [guards|terminating]]]");
        return ExitCode::from(2);
    };
    let broken = match arguments.get(2).map(String::as_str) {
        Some("guards") => Some(Broken::NoGuards),
        Some("terminating") => Some(Broken::CountsNoTerminating),
        _ => None,
    };
    let (mut violations, mut writes, mut claims, mut crashes) = (0_u64, 0, 0, 0);
    for seed in first..first + count {
        match run(Options { seed, moves: 1500, broken }) {
            Ok(report) => {
                writes += report.writes;
                claims += report.claims;
                crashes += report.crashes;
            }
            Err(violation) => {
                violations += 1;
                if violations <= 10 {
                    println!("{violation}");
                }
            }
        }
    }
    println!("{count} seeds, {violations} violations; {claims} claims, {writes} writes, {crashes} crashes");
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
