//! Tests that real, unmodified clients behave the same on a real control plane and on the local
//! home.

use std::path::PathBuf;
use std::sync::LazyLock;

use warren_e2e::clients::{Side, differences, play, python, served_resources};
use warren_e2e::local_home::LocalHome;
use warren_testkit::kube::{Cache, ControlPlane};

/// Both sides; the local home is kept for as long as the tests run.
struct Sides {
    real: Side,
    ours: Side,
    home: LocalHome,
}

fn sides() -> Option<Sides> {
    static KUBECTL: LazyLock<PathBuf> = LazyLock::new(|| {
        let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
        let cache = Cache::locate(named, |name| std::env::var_os(name)).expect("find the cache of programs");
        cache.programs().join("kubectl")
    });
    let home = LocalHome::new()?;
    home.up();
    let side = |name, kubeconfig| Side { name, kubeconfig, kubectl: KUBECTL.clone() };
    Some(Sides {
        real: side("real", ControlPlane::start().kubeconfig().to_owned()),
        ours: side("ours", home.path().join("kubeconfig")),
        home,
    })
}

#[test]
fn kubectl_says_the_same() {
    let Some(sides) = sides() else { return };
    let directory = tempfile::tempdir().expect("make a directory");
    let (real, ours) = std::thread::scope(|scope| {
        let real = scope.spawn(|| play(&sides.real, directory.path()));
        let ours = play(&sides.ours, directory.path());
        (real.join().expect("the session ends"), ours)
    });
    if let Some(place) = std::env::var_os("WARREN_TRANSCRIPTS").map(PathBuf::from) {
        std::fs::write(place.join("kubectl-real.txt"), &real).expect("write");
        std::fs::write(place.join("kubectl-ours.txt"), &ours).expect("write");
    }
    let differences = differences(&real, &ours);
    assert!(differences.is_empty(), "{differences}");
    assert!(ours.lines().filter(|line| line.starts_with("$ ")).count() > 100);

    // Ours serves less, but everything in the same way.
    let theirs = served_resources(&sides.real, directory.path());
    for row in served_resources(&sides.ours, directory.path()) {
        // Metrics are served by a separate server there, which a bare control plane does not have.
        let own = ["agents.x-k8s.io", "metrics.k8s.io", " warren.dev/"].iter().any(|of| row.contains(of));
        assert!(own || theirs.contains(&row), "only ours has: {row}");
    }
    sides.home.assert_nothing_left();
}

#[test]
fn the_python_client_sees_the_same() {
    let Some(sides) = sides() else { return };
    let python = match python() {
        Ok(python) => python,
        Err(error) => {
            eprintln!("skipped: no Python client on this machine: {error}");
            return;
        }
    };
    let real = python.transcript(&sides.real).unwrap_or_else(|error| panic!("on the real server: {error}"));
    let ours = python.transcript(&sides.ours).unwrap_or_else(|error| panic!("on ours: {error}"));
    if real != ours {
        for (theirs, mine) in real.lines().zip(ours.lines()) {
            if theirs != mine {
                eprintln!("--- the real server\n{theirs}\n+++ ours\n{mine}");
            }
        }
        panic!("the transcripts differ");
    }
    assert!(real.ends_with("end []\n"), "{real}");
}
