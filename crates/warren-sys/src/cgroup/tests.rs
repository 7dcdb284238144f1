//! Tests of cgroups.

use super::*;

const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
34 33 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:7 - cgroup cgroup rw,cpu,cpuacct
36 33 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
38 33 0:32 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
40 33 0:34 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 33 0:35 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
42 33 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

#[test]
fn a_version_2_mount_counts_only_with_controllers() {
    let hybrid = Hierarchy::from_mount_table(HYBRID, |_| String::new()).unwrap();
    assert_eq!(hybrid.version(), 1);
    // cpu and cpuacct share a mount and a directory. Hierarchies that only other programs use are
    // listed too.
    let directories = hybrid.directories("x");
    assert_eq!(directories.len(), 6, "{directories:?}");
    assert_eq!(directories[4..], ["/sys/fs/cgroup/devices/x", "/sys/fs/cgroup/unified/x"].map(PathBuf::from));

    let unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
    let detected = Hierarchy::from_mount_table(unified, |_| "cpuset cpu io memory pids".to_owned()).unwrap();
    assert_eq!(detected, Hierarchy::V2("/sys/fs/cgroup".into()));

    assert!(Hierarchy::from_mount_table("", |_| String::new()).is_err());
}

#[test]
fn shares_become_weights_as_the_kubelet_has_them() {
    assert_eq!(v2::weight_from_shares(2), 1);
    assert_eq!(v2::weight_from_shares(1024), 39);
    assert_eq!(v2::weight_from_shares(262_144), 10_000);
}

#[test]
fn a_quota_is_never_below_what_the_kernel_takes() {
    assert_eq!(CpuQuota::from_millis(1).quota, 1000);
    assert_eq!(CpuQuota::from_millis(1500).quota, 150_000);
}

#[test]
fn an_ordinary_users_part_is_the_cgroup_it_is_in() {
    let table = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
    let found = |own: &str| own_cgroup(table, own);
    let service = "/sys/fs/cgroup/user.slice/user@1000.service/app.slice/warren.service";
    let own = "0::/user.slice/user@1000.service/app.slice/warren.service";
    let given = |is_claimed| Some(OwnCgroup { given: service.into(), is_claimed });
    assert_eq!(found(own), given(false));
    assert_eq!(found(&format!("{own}/warren-daemon\n")), given(true));
    assert_eq!(found("1:name=systemd:/x\n"), None);
    // Only part of the tree is mounted, as in a container, where the name means another cgroup.
    assert_eq!(own_cgroup(&table.replace(" / /sys", " /part /sys"), own), None);
}

#[test]
fn without_cgroups_nothing_is_limited_and_nothing_is_pretended() {
    let cgroup = Cgroup::create(&Hierarchy::Absent, "a/b", &Limits::default()).unwrap();
    assert_eq!(cgroup.entrance().unwrap().files().count(), 0);
    assert!(cgroup.entrance().unwrap().clone_into().is_none());
    assert_eq!(cgroup.processes().unwrap(), Vec::<i32>::new());
    assert_eq!(cgroup.stats().unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert_eq!(cgroup.freeze().unwrap_err().kind(), io::ErrorKind::Unsupported);
    cgroup.kill_all().unwrap();
    cgroup.remove().unwrap();
    assert_eq!(Hierarchy::Absent.children("a").unwrap(), Vec::<String>::new());
}
