//! Tests of the judgements.

use warren_oci::privileges::FurtherIds;

use super::*;

fn healthy() -> Facts {
    Facts {
        root: true,
        ordinary_user: Ok(()),
        further_ids: FurtherIds { given: 65_535, has_programs: true },
        release: "6.1.0-54-cloud-amd64".to_owned(),
        missing_namespaces: Vec::new(),
        namespaces: Ok(()),
        most_user_namespaces: Some(1000),
        apparmor_restricts: false,
        debian_forbids: false,
        cgroup_version: Ok(2),
        seccomp: true,
        forbids_programs_in_memory: false,
        overlay: Ok(true),
        packet_rules: Ok(()),
        runtimes: Vec::new(),
        data_dir: "/var/lib/warren".into(),
        file_system: FileSystem::Ext4,
        space: Space { free_bytes: 50 << 30, free_inodes: Some(1_000_000) },
        holder: None,
    }
}

/// Returns the check, verdict and remedy of each finding that is not ok.
fn wrong(facts: &Facts) -> Vec<(&'static str, Verdict, String)> {
    let findings = examine(facts).into_iter().filter(|finding| finding.verdict != Verdict::Ok);
    findings
        .map(|finding| {
            assert!(!finding.meaning.is_empty(), "{finding:?}");
            (finding.check, finding.verdict, finding.remedy.expect("what is wrong can be mended"))
        })
        .collect()
}

#[test]
fn a_healthy_machine_has_nothing_wrong() {
    assert_eq!(wrong(&healthy()), []);
    let checks: Vec<&str> = examine(&healthy()).iter().map(|finding| finding.check).collect();
    assert_eq!(
        checks,
        [
            "kernel",
            "privileges",
            "namespaces",
            "user-namespaces",
            "cgroups",
            "seccomp",
            "programs-in-memory",
            "overlay",
            "file-system",
            "disk",
            "nftables",
            "runtimes",
            "home"
        ]
    );
}

/// Changes one fact and compares the findings.
fn check(change: impl FnOnce(&mut Facts), expected: &[(&str, Verdict, &str)]) {
    let mut facts = healthy();
    change(&mut facts);
    let found = wrong(&facts);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((check, verdict, remedy), (wanted, loud, part)) in found.iter().zip(expected) {
        assert_eq!((check, verdict), (wanted, loud), "{found:?}");
        assert!(remedy.contains(part), "{remedy}");
    }
}

#[test]
fn each_thing_that_is_wrong_is_named_with_its_remedy() {
    use Verdict::{Problem, Warning};
    check(|facts| facts.release = "5.10.0-8".to_owned(), &[("kernel", Problem, "5.19")]);
    check(|facts| facts.root = false, &[]);
    for (given, has_programs, wanted, other) in
        [(65_535, false, "apt-get install uidmap", "usermod"), (0, true, "usermod --add-subuids", "uidmap")]
    {
        let mut facts = healthy();
        (facts.root, facts.further_ids) = (false, FurtherIds { given, has_programs });
        let found = wrong(&facts);
        assert!(matches!(&found[..], [("privileges", Warning, _)]), "{found:?}");
        assert!(found[0].2.contains(wanted) && !found[0].2.contains(other), "{found:?}");
    }
    check(
        |facts| (facts.root, facts.further_ids) = (false, FurtherIds { given: 0, has_programs: false }),
        &[("privileges", Warning, "uidmap`; and give yourself ids: `usermod")],
    );
    check(
        |facts| (facts.root, facts.cgroup_version) = (false, Ok(0)),
        &[("cgroups", Warning, "Delegate=yes")],
    );
    check(
        |facts| (facts.root, facts.ordinary_user) = (false, Err("no".to_owned())),
        &[("privileges", Problem, "sudo warren up")],
    );
    check(|facts| facts.missing_namespaces = vec!["cgroup"], &[("namespaces", Problem, "kernel")]);
    check(|facts| facts.namespaces = Err("no".to_owned()), &[("namespaces", Problem, "user-namespaces")]);
    check(
        |facts| facts.most_user_namespaces = Some(0),
        &[("user-namespaces", Problem, "user.max_user_namespaces=")],
    );
    check(
        |facts| facts.apparmor_restricts = true,
        &[("user-namespaces", Warning, "kernel.apparmor_restrict_unprivileged_userns=0")],
    );
    check(
        |facts| {
            facts.debian_forbids = true;
            (facts.root, facts.ordinary_user) = (false, Err("no".to_owned()));
        },
        &[
            ("privileges", Problem, "sudo"),
            ("user-namespaces", Problem, "kernel.unprivileged_userns_clone=1"),
        ],
    );
    check(|facts| facts.cgroup_version = Err("none".to_owned()), &[("cgroups", Problem, "cgroup2")]);
    check(|facts| facts.seccomp = false, &[("seccomp", Problem, "CONFIG_SECCOMP_FILTER")]);
    check(
        |facts| facts.forbids_programs_in_memory = true,
        &[("programs-in-memory", Problem, "`sysctl vm.memfd_noexec=1`")],
    );
    check(|facts| facts.overlay = Ok(false), &[("overlay", Problem, "modprobe overlay")]);
    check(|facts| facts.file_system = FileSystem::Overlay, &[("file-system", Problem, "--data-dir")]);
    check(|facts| facts.file_system = FileSystem::Other(1), &[("file-system", Warning, "--data-dir")]);
    check(
        |facts| {
            facts.file_system = FileSystem::Tmpfs;
            facts.release = "6.1".to_owned();
        },
        &[("file-system", Problem, "--data-dir")],
    );
    check(|facts| facts.space.free_bytes = 1 << 30, &[("disk", Warning, "warren image remove")]);
    check(|facts| facts.space.free_bytes = 1 << 20, &[("disk", Problem, "warren image remove")]);
    check(|facts| facts.space.free_inodes = Some(3), &[("disk", Warning, "warren image remove")]);
    check(|facts| facts.packet_rules = Err("no".to_owned()), &[("nftables", Problem, "modprobe nf_tables")]);
}

#[test]
fn what_is_there_is_told() {
    let mut facts = healthy();
    facts.runtimes = vec![("runsc", "/usr/bin/runsc".into())];
    facts.holder = Some(crate::Holder { pid: 7, version: "1.2.3".to_owned(), settings: None });
    facts.file_system = FileSystem::Tmpfs;
    facts.release = "6.3".to_owned();
    let found: Vec<String> = examine(&facts).into_iter().map(|finding| finding.found).collect();
    for wanted in [
        "our own, and `runsc` (/usr/bin/runsc)",
        "running in `/var/lib/warren` (process 7, warren 1.2.3)",
        "`/var/lib/warren` lies on tmpfs",
        "50 GiB free for `/var/lib/warren`",
    ] {
        assert!(found.iter().any(|found| found == wanted), "{found:?}");
    }
}
