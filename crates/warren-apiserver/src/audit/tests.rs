//! Tests of the audit log.

use std::path::Path;

use super::file::{AuditConfig, LogFile, Message};
use super::{AuditLog, shorten};

fn config(directory: &Path, largest_file: u64) -> AuditConfig {
    AuditConfig { path: directory.join("audit.log"), largest_file, older_files: 2 }
}

fn write(config: &AuditConfig, lines: &[String]) {
    let log = AuditLog::open(config).unwrap();
    for line in lines {
        log.queue.send(Message::Line(line.clone().into_bytes())).unwrap();
    }
    log.close();
}

#[test]
fn files_are_rotated_by_size_and_the_oldest_goes() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 100);
    for number in 0..10 {
        write(&config, &[format!("{number} {}\n", "x".repeat(120))]);
    }
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2"]);
    for (name, number) in [("audit.log", "9"), ("audit.log.1", "8"), ("audit.log.2", "7")] {
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(text.starts_with(number), "{name}: {text}");
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&config.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_line_that_was_cut_off_does_not_spoil_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 1000);
    std::fs::write(&config.path, "half a li").unwrap();
    write(&config, &["whole\n".to_owned(), "and another\n".to_owned()]);
    let text = std::fs::read_to_string(&config.path).unwrap();
    assert_eq!(text, "half a li\nwhole\nand another\n");
}

#[test]
fn a_disk_that_refuses_loses_lines_and_nothing_else() {
    let config = AuditConfig { path: "/dev/full".into(), largest_file: 1 << 20, older_files: 1 };
    let file = LogFile::open(&config).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for message in [Message::Line(b"lost\n".to_vec()), Message::Line(b"too\n".to_vec()), Message::End] {
        sender.send(message).unwrap();
    }
    super::file::run(file, &receiver);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let text = "ä".repeat(2000);
    assert_eq!(shorten(&text).len(), super::LONGEST_TEXT);
    assert_eq!(shorten("short"), "short");
}
