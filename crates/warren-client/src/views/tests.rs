use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// An archive as the node sends it: names with their content, `->` before the target of a link.
fn archive(entries: &[(&str, &str)], end: bool) -> File {
    let mut builder = tar::Builder::new(tempfile::tempfile().unwrap());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(0);
        // The name as it is: the library refuses some that a hostile sandbox could send.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        if let Some(target) = content.strip_prefix("->") {
            header.set_entry_type(EntryType::Symlink);
            header.set_link_name_literal(target).unwrap();
            header.set_cksum();
            builder.append(&header, io::empty()).unwrap();
        } else {
            header.set_entry_type(EntryType::Regular);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
    }
    if end {
        // Long after the files of a test were made.
        let made = i128::from(i64::MAX).to_string();
        let mut header = tar::Header::new_gnu();
        header.set_size(made.len() as u64);
        builder.append_data(&mut header, END, made.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn directory() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("same", "same");
    write("changed", "old");
    write("old/one", "1");
    write("old/two", "2");
    write("replaced/old", "x");
    write(".git/config", "[core]");
    root
}

fn read(root: &Path, entries: &[(&str, &str)]) -> Changes {
    Changes::read(root, archive(entries, true)).unwrap()
}

fn told(changes: &Changes) -> Vec<String> {
    changes.files.iter().map(|(path, change)| format!("{change:?} {}", path.display())).collect()
}

const CHANGES: [(&str, &str); 6] = [
    ("same", "same"),
    ("changed", "new"),
    ("added/file", "+"),
    (".wh.old", ""),
    ("replaced/.wh..wh..opq", ""),
    ("replaced/new", "y"),
];

#[test]
fn changes_are_compared_and_taken_over() {
    let root = directory();
    let changed = root.path().join("changed");
    std::fs::set_permissions(&changed, std::fs::Permissions::from_mode(0o600)).unwrap();
    let changes = read(root.path(), &CHANGES);
    assert_eq!(
        told(&changes),
        [
            "Added added/file",
            "Modified changed",
            "Deleted old/one",
            "Deleted old/two",
            "Added replaced/new",
            "Deleted replaced/old"
        ]
    );
    assert_eq!(changes.apply(root.path(), false).unwrap(), 6);
    assert!(told(&read(root.path(), &CHANGES)).is_empty(), "everything was taken over");
    assert!(!root.path().join("old").exists());
    let mode = std::fs::metadata(changed).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a file that was closed to others stays so");
    assert!(root.path().join(".git/config").exists());
}

#[test]
fn file_that_was_changed_here_meanwhile_stops_everything() {
    let root = directory();
    let mut changes = read(root.path(), &CHANGES);
    changes.made = 0;
    let error = changes.apply(root.path(), false).unwrap_err();
    assert!(matches!(&error, BackError::Conflict { paths } if paths.len() == 4), "{error}");
    assert!(!root.path().join("added").exists());
    let mut changes = read(root.path(), &CHANGES);
    changes.made = 0;
    changes.apply(root.path(), true).unwrap();
    assert_eq!(std::fs::read_to_string(root.path().join("changed")).unwrap(), "new");
}

#[test]
fn git_is_left_alone_and_hostile_entries_are_refused() {
    let root = directory();
    let git = [(".git/hooks/pre-commit", "evil"), (".wh..git", ""), ("sub/.GIT/config", "evil")];
    let changes = read(root.path(), &git);
    assert!(changes.has_git && changes.files.is_empty(), "{changes:?}");
    for entry in [("../outside", "x"), ("/etc/passwd", "x"), ("link", "->/etc"), ("up", "->../x")] {
        let changes = read(root.path(), &[("added", "x"), entry]);
        let error = changes.apply(root.path(), true).unwrap_err();
        assert!(matches!(error, BackError::Refused { .. }), "{entry:?}: {error}");
        assert!(!root.path().join("added").exists(), "{entry:?}");
    }
    let deleted = read(root.path(), &[(".wh...", ""), ("old/.wh..", "")]);
    assert!(deleted.files.is_empty(), "{deleted:?}");
}

#[test]
fn answer_that_broke_off_is_an_error() {
    let root = directory();
    Changes::read(root.path(), archive(&CHANGES, false)).unwrap_err();
}

#[test]
fn nothing_is_deleted_or_written_behind_a_link() {
    let root = directory();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink(outside.path(), root.path().join("way")).unwrap();
    let changes = read(root.path(), &[("way/.wh.file", "")]);
    assert!(changes.files.is_empty(), "{changes:?}");
    let changes = read(root.path(), &[("way/new", "x")]);
    changes.apply(root.path(), true).unwrap_err();
    assert!(!outside.path().join("new").exists());
    assert!(outside.path().join("file").exists());
}
