//! Tests the build script's reading of git's files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

#[path = "../build/origin.rs"]
mod origin;

use std::fs;
use std::path::Path;

const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

/// Checks the commit and date for these files of a source and these variables.
#[track_caller]
fn check(files: &[(&str, &str)], variables: &[(&str, &str)], commit: &str, date: &str) {
    let source = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = source.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let found = origin::find(&source.path().join(".git"), variable);
    assert_eq!((found.commit.as_str(), found.date.as_str()), (commit, date));
    assert!(found.files.iter().all(|file| Path::is_file(file)), "{:?}", found.files);
}

#[test]
fn the_last_move_of_head_says_commit_and_date() {
    let zero = "0".repeat(40);
    let log = format!(
        "{zero} {ONE} A B <a@b> 1700000000 +0000\tclone: from x\n{ONE} {TWO} A B <a@b> 1800000000 -0130\tcommit: y 1 2\n"
    );
    let head = (".git/HEAD", "ref: refs/heads/main\n");
    let branch = format!("{ONE}\n");
    check(
        &[(".git/logs/HEAD", &log), head, (".git/refs/heads/main", &branch)],
        &[],
        TWO,
        "2027-01-15T08:00:00Z",
    );
    // A further working tree.
    check(
        &[
            (".git", "gitdir: main/.git/worktrees/w\n"),
            ("main/.git/worktrees/w/commondir", "../..\n"),
            ("main/.git/worktrees/w/logs/HEAD", &log),
        ],
        &[],
        TWO,
        "2027-01-15T08:00:00Z",
    );
}

#[test]
fn without_a_log_there_is_no_date() {
    fn head(text: &str) -> (&str, &str) {
        (".git/HEAD", text)
    }
    let (one, two) =
        (format!("{ONE}\n"), format!("# pack-refs\n{ONE} refs/heads/x/main\n{TWO} refs/heads/main\n"));
    check(&[head(&one)], &[], ONE, "unknown");
    check(&[head("ref: refs/heads/main\n"), (".git/refs/heads/main", &one)], &[], ONE, "unknown");
    check(&[head("ref: refs/heads/main\n"), (".git/packed-refs", &two)], &[], TWO, "unknown");
    check(
        &[
            (".git", "gitdir: main/.git/worktrees/w\n"),
            ("main/.git/worktrees/w/commondir", "../..\n"),
            ("main/.git/worktrees/w/HEAD", "ref: refs/heads/main\n"),
            ("main/.git/packed-refs", &two),
        ],
        &[],
        TWO,
        "unknown",
    );
}

#[test]
fn what_cannot_be_read_is_unknown() {
    check(&[], &[], "unknown", "unknown");
    for text in ["", "nonsense", "ref: refs/heads/gone", "ref: "] {
        check(&[(".git/HEAD", text), (".git/logs/HEAD", text)], &[], "unknown", "unknown");
    }
    check(&[(".git", "nonsense")], &[], "unknown", "unknown");
}

#[test]
fn variables_go_before_git() {
    let log = (".git/logs/HEAD", &*format!("{ONE} {TWO} A <a@b> 1800000000 +0000\tx\n"));
    let given = ("WARREN_GIT_COMMIT", "v1");
    check(&[log], &[given], "v1", "2027-01-15T08:00:00Z");
    check(
        &[log],
        &[given, ("WARREN_BUILD_DATE", "today\ncargo::x"), ("SOURCE_DATE_EPOCH", "1")],
        "v1",
        "today",
    );
    check(
        &[log],
        &[("WARREN_BUILD_DATE", " "), ("SOURCE_DATE_EPOCH", "1709251199")],
        TWO,
        "2024-02-29T23:59:59Z",
    );
    check(&[log], &[("SOURCE_DATE_EPOCH", "x")], TWO, "2027-01-15T08:00:00Z");
    check(&[], &[("SOURCE_DATE_EPOCH", "0")], "unknown", "1970-01-01T00:00:00Z");
    check(&[], &[("SOURCE_DATE_EPOCH", "4102444799")], "unknown", "2099-12-31T23:59:59Z");
}
