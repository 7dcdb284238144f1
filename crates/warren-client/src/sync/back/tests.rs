//! Tests files from a hostile sandbox.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// Builds an entry as a hostile sandbox could: the library would refuse some of the names.
fn entry(kind: EntryType, name: &str, link: &str, content: &[u8], mode: u32) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let gnu = header.as_gnu_mut().expect("a GNU header");
    gnu.name[..name.len()].copy_from_slice(name.as_bytes());
    gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(EntryType::Regular, name, "", content.as_bytes(), 0o644)
}

fn spool(entries: &[Vec<u8>]) -> File {
    let mut file = tempfile::tempfile().expect("make a file");
    for entry in entries {
        file.write_all(entry).expect("write");
    }
    file.write_all(&[0; 1024]).expect("write");
    file
}

fn refusal(entries: &[Vec<u8>]) -> String {
    read_index(&mut spool(entries)).expect_err("hostile").to_string()
}

#[test]
fn hostile_entries_are_refused_by_name() {
    let link = |name: &str, target: &str| entry(EntryType::Symlink, name, target, b"", 0o777);
    for (entries, expected) in [
        (vec![file("a/../../b", "")], "`a/../../b`, which leads out"),
        (vec![file("/etc/passwd", "")], "`/etc/passwd`, which is an absolute path"),
        (vec![file("./.git/hooks/post-commit", "")], "`./.git/hooks/post-commit`, which is git's own"),
        (vec![file("sub/.GIT/config", "")], "`sub/.GIT/config`, which is git's own"),
        (vec![link("a/b", "../../c")], "`a/b`, which is a link that leads out"),
        (vec![link("a", "/etc")], "`a`, which is a link that leads out"),
        (vec![link("a", "b/../../c")], "`a`, which is a link with `..` behind a name"),
        (vec![link("a", ".git/config")], "`a`, which is a link to git's own files"),
        (
            vec![entry(EntryType::Link, "a", "/etc/shadow", b"", 0o644)],
            "`a`, which is a hard link to a file that",
        ),
        (vec![entry(EntryType::Fifo, "pipe", "", b"", 0o644)], "`pipe`, which is neither a file nor a link"),
        (vec![entry(EntryType::Char, "null", "", b"", 0o644)], "`null`, which is neither a file nor a link"),
        (vec![entry(EntryType::GNUSparse, "holes", "", b"", 0o644)], "cannot be read"),
        (vec![file("esc\u{1b}[2J\n", ""), file("esc\u{1b}/../..", "")], "`esc?/../..`"),
    ] {
        let refusal = refusal(&entries);
        assert!(refusal.contains(expected), "{expected}: {refusal}");
        assert!(refusal.ends_with("nothing was written"), "{refusal}");
    }
}

#[test]
fn file_that_claims_to_be_huge_is_refused() {
    let mut header = tar::Header::new_gnu();
    header.set_path("huge").expect("a name");
    header.set_size(1 << 40);
    header.set_cksum();
    let refusal = refusal(&[header.as_bytes().to_vec()]);
    assert!(refusal.contains("`huge`, which makes it more than 1 GiB"), "{refusal}");
}

fn sent(content: &[u8]) -> Sent {
    Sent::File { digest: digest(&mut &*content).expect("hash"), executable: false }
}

#[test]
fn only_what_the_sandbox_alone_has_changed_is_written() {
    let [one, two, three] = [b"1", b"2", b"3"].map(|content| sent(content));
    for (before, here, back, expected) in [
        (Some(&one), Some(&one), &one, Verdict::Keep),
        (Some(&one), Some(&two), &one, Verdict::Keep),
        (Some(&one), Some(&one), &two, Verdict::Write),
        (Some(&one), Some(&two), &two, Verdict::Keep),
        (Some(&one), Some(&two), &three, Verdict::Conflict),
        (Some(&one), None, &two, Verdict::Conflict),
        (None, None, &one, Verdict::Write),
        (None, Some(&one), &two, Verdict::Conflict),
    ] {
        assert_eq!(judge(before, here, back), expected, "{before:?} {here:?} {back:?}");
    }
}

#[test]
fn changed_files_are_written_and_conflicts_are_named() {
    let root = tempfile::tempdir().expect("make a directory");
    fs::write(root.path().join("both"), "mine").expect("write");
    fs::write(root.path().join("theirs"), "old").expect("write");
    let before = SentFiles::from([("both".into(), sent(b"old")), ("theirs".into(), sent(b"old"))]);
    let mut archive = spool(&[
        file("./both", "new"),
        file("./theirs", "new"),
        entry(EntryType::Regular, "new/dir/tool", "", b"x", 0o755),
        entry(EntryType::Link, "same", "new/dir/tool", b"", 0o755),
        entry(EntryType::Symlink, "new/link", "dir/tool", b"", 0o777),
    ]);
    let index = read_index(&mut archive).expect("harmless");
    let plan = plan(root.path(), &before, &mut archive, &index).expect("compare");
    assert_eq!(plan.conflicts, [PathBuf::from("both")]);
    write(root.path(), &mut archive, &index, &plan.write).expect("write");
    let read = |name: &str| fs::read_to_string(root.path().join(name)).expect("read");
    assert_eq!(
        [read("both"), read("theirs"), read("new/dir/tool"), read("same"), read("new/link")],
        ["mine", "new", "x", "x", "x"]
    );
    let mode = fs::metadata(root.path().join("same")).expect("status").permissions().mode();
    assert_eq!(mode & 0o100, 0o100);
    let left: Vec<_> =
        fs::read_dir(root.path()).expect("list").map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".warren")), "{left:?}");
}

#[test]
fn writing_does_not_follow_a_link_that_is_here() {
    let (root, outside) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    symlink(outside.path(), root.path().join("d")).expect("link");
    let mut archive = spool(&[file("d/f", "x")]);
    let index = read_index(&mut archive).expect("harmless");
    write(root.path(), &mut archive, &index, &["d/f".into()]).expect_err("`d` is a link");
    assert_eq!(fs::read_dir(outside.path()).expect("list").count(), 0);
}
