//! The break-out suite: attempts of hostile code in a sandbox to see, change or exhaust what is
//! outside.
//!
//! Each attempt is a function named after it. It is checked twice: from the inside by the kernel's
//! answers, and from the outside, after every attempt, by comparing the state of the host and of a
//! neighbour ([`arena::Arena::check_outside`]). Start reading at [`attempts`].

pub mod arena;
mod files;
mod kernel;
mod network;
mod processes;
mod resources;
mod runtime;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use self::arena::Arena;

/// The isolation between hostile code and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walls {
    /// Namespaces and filters of the host's kernel.
    Native,
    /// In addition a kernel in user space, which handles the sandbox's system calls.
    Gvisor,
    /// Namespaces and filters in the home of an ordinary user: hostile code runs with the uid of
    /// that user's other files and processes.
    OrdinaryUser,
}

/// One attempt to break out.
#[derive(Clone, Copy)]
pub struct Attempt {
    /// The function's name and topic.
    pub name: &'static str,
    /// Succeeds if the attempt was contained.
    pub run: for<'a> fn(&'a Arena) -> LocalBoxFuture<'a, Result<()>>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

/// The time limit of an attempt, even on a busy machine.
const LONGEST: Duration = Duration::from_secs(180);

macro_rules! attempts {
    ($($topic:ident: $($name:ident)*;)*) => {
        vec![$($(Attempt {
            name: concat!(stringify!($topic), "::", stringify!($name)),
            run: |arena| Box::pin($topic::$name(arena)),
        },)*)*]
    };
}

/// Returns all attempts, in order.
pub fn attempts() -> Vec<Attempt> {
    attempts! {
        processes:
            find_processes_of_the_host
            signal_a_process_of_the_host
            signal_everybody
            trace_a_process_of_the_host
            read_the_memory_of_a_process_of_the_host
            take_a_descriptor_from_another_process
            enter_namespaces_through_proc
            make_new_namespaces
            clone_into_new_namespaces
            gain_by_set_user_id
            gain_by_file_capabilities
            become_a_user_who_is_not_mapped
            run_with_realtime_priority
            be_spared_when_memory_runs_out
            raise_resource_limits
            leave_a_process_behind
            refuse_to_end
            hide_an_exec_from_its_cgroup;
        kernel:
            mount_something
            mount_by_descriptors
            load_a_module
            load_another_kernel
            run_programs_in_the_kernel
            handle_page_faults_of_others
            submit_work_to_io_uring
            use_the_keyrings
            open_files_by_handle
            set_the_clock
            read_and_clear_the_kernel_log
            touch_ports_and_swap_and_accounting
            watch_the_whole_machine
            rename_the_machine
            make_calls_of_another_architecture
            run_a_program_of_another_architecture
            turn_off_the_filter;
        files:
            write_settings_of_the_kernel
            set_the_core_pattern
            press_sysrq
            write_to_sysfs
            abuse_the_release_agent
            read_memory_of_the_machine
            make_device_nodes
            read_secrets_of_the_host
            read_private_files_below_usr
            change_programs_of_the_host
            walk_out_of_a_chroot
            learn_paths_of_the_host
            lead_a_mount_astray
            follow_proc_to_other_roots;
        network:
            reach_the_hosts_loopback
            reach_the_api_server
            reach_the_apis_socket
            reach_an_abstract_socket_of_the_host
            open_raw_sockets
            open_sockets_into_the_kernel
            reach_the_metadata_address
            configure_the_network
            reach_a_neighbours_shared_memory;
        runtime:
            overwrite_the_init
            overwrite_the_runtime_through_an_exec
            stand_on_a_leaked_descriptor
            find_leaked_descriptors
            find_variables_of_the_daemon
            find_variables_of_the_runtime
            put_something_else_in_the_place_of_dev_null
            forge_log_lines
            push_input_into_the_callers_terminal
            reach_a_neighbours_files;
        resources:
            fork_without_end
            take_all_memory
            fill_shared_memory
            open_files_without_end
            take_all_terminals
            write_logs_without_end
            write_one_line_without_end
            leave_zombies_without_end
            take_all_processor_time
            nest_directories_without_end
            fill_the_disk
            fill_the_disk_with_files_that_have_no_name
            fill_a_volume;
    }
}

/// Runs the attempts that the command line names (all, if none) and prints their results in the
/// format of cargo's harness.
pub fn run(walls: Walls) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_list = std::env::args().any(|word| word == "--list");
    let all = attempts();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let chosen: Vec<Attempt> = all.iter().copied().filter(|attempt| wanted(attempt.name)).collect();
    if is_list {
        chosen.iter().for_each(|attempt| println!("{}: test", attempt.name));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let begun = Instant::now();
    let (made, failed) = match in_an_arena(&chosen, walls) {
        Ok(Some(failed)) => (chosen.len(), failed),
        Ok(None) => (0, Vec::new()),
        Err(error) => {
            println!("\nthe home failed: {error:#}");
            (chosen.len(), chosen.iter().map(|attempt| attempt.name).collect())
        }
    };
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        made - failed.len(),
        failed.len(),
        all.len() - made,
        begun.elapsed().as_secs_f64(),
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the names of those that were not contained; `None` if there is no arena.
fn in_an_arena(chosen: &[Attempt], walls: Walls) -> Result<Option<Vec<&'static str>>> {
    if chosen.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let Some(arena) = runtime.block_on(Arena::start(walls))? else { return Ok(None) };
    let mut failed = Vec::new();
    for attempt in chosen {
        let begun = Instant::now();
        let outcome = runtime.block_on(async {
            tokio::time::timeout(LONGEST, (attempt.run)(&arena)).await.context("it never ended")??;
            tokio::time::timeout(LONGEST, arena.check_outside()).await.context("the host is stuck")?
        });
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("test {} ... ok <{seconds:.1}s>", attempt.name),
            Err(error) => {
                println!("test {} ... FAILED <{seconds:.1}s>\n--- {error:#}", attempt.name);
                failed.push(attempt.name);
            }
        }
    }
    runtime.block_on(arena.end())?;
    Ok(Some(failed))
}
