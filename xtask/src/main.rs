//! The project's own tasks, listed by `cargo xtask --help`. Each module is one task. Nothing here
//! is released.
//!
//! Start reading at [`Task`]. `kube` is only the command line of `warren_testkit::kube`.

mod archive;
mod bench;
mod dependencies;
mod dist;
mod edges;
mod generate;
mod image;
mod kube;
mod oci_conformance;
mod runsc;
mod simulate;
mod test;
mod ui;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure Warren beside what a user would pick instead.
    Bench(bench::Arguments),
    /// A real Kubernetes control plane on this machine, for tests.
    #[command(subcommand)]
    Kube(kube::Task),
    /// Check the crates of others: licences, sources, and dependencies that nothing uses.
    CheckDependencies,
    /// Compare the dependencies between crates with the design.
    CheckEdges,
    /// Make everything that a release has: archives, packages, image, chart, checksums.
    Dist(dist::Arguments),
    /// Write the files that are made from the code.
    Gen(generate::Arguments),
    /// Make an OCI archive of Warren, without a container engine.
    Image(image::Arguments),
    /// Run the validation suite of opencontainers/runtime-tools against `warren oci`.
    OciConformance(oci_conformance::Arguments),
    /// Build gVisor's `runsc` into the cache if it is not there, and print where it is.
    Runsc,
    /// Run seeds of the simulation of the control plane.
    Simulate(simulate::Arguments),
    /// Run the tests and sum their results.
    Test(test::Arguments),
    /// Build the web page into `warren-service`; needs npm.
    Ui(ui::Arguments),
    /// Make real containers in a virtual machine with an ordinary kernel: Linux 6.1, cgroups of
    /// version 2.
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Kube(task) => kube::run(task),
        Task::CheckDependencies => dependencies::run(),
        Task::CheckEdges => edges::run(),
        Task::Dist(arguments) => dist::run(&arguments),
        Task::Gen(arguments) => generate::run(&arguments),
        Task::Image(arguments) => image::run(&arguments),
        Task::OciConformance(arguments) => oci_conformance::run(&arguments),
        Task::Runsc => runsc::run(),
        Task::Simulate(arguments) => simulate::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Ui(arguments) => ui::run(&arguments),
        Task::Vm(arguments) => vm::run(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
