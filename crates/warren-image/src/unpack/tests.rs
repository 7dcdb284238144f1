//! Tests with normal and malicious archives.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use tar::{Builder, EntryType, Header};

use super::*;

/// One entry of a test archive.
struct Item<'a> {
    name: &'a str,
    kind: EntryType,
    link: &'a str,
    content: &'a [u8],
    mode: u32,
}

fn file<'a>(name: &'a str, content: &'a [u8]) -> Item<'a> {
    Item { name, kind: EntryType::Regular, link: "", content, mode: 0o640 }
}

fn directory(name: &str) -> Item<'_> {
    Item { name, kind: EntryType::Directory, link: "", content: b"", mode: 0o750 }
}

fn symlink<'a>(name: &'a str, link: &'a str) -> Item<'a> {
    Item { name, kind: EntryType::Symlink, link, content: b"", mode: 0o777 }
}

fn hard_link<'a>(name: &'a str, link: &'a str) -> Item<'a> {
    Item { kind: EntryType::Link, ..symlink(name, link) }
}

/// Builds an archive. Names are copied into headers directly, because the library would refuse the
/// malicious ones.
fn archive(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..item.name.len()].copy_from_slice(item.name.as_bytes());
        header.as_mut_bytes()[157..157 + item.link.len()].copy_from_slice(item.link.as_bytes());
        header.set_entry_type(item.kind);
        header.set_size(item.content.len() as u64);
        header.set_mode(item.mode);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        builder.append(&header, item.content).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Builds an extension header, followed by the entry that it describes.
fn extended(records: &[(&str, &str)], item: &Item<'_>) -> Vec<u8> {
    let mut content = Vec::new();
    for (key, value) in records {
        let body = key.len() + value.len() + 3;
        let length = body + (body + 3).to_string().len();
        writeln!(content, "{length} {key}={value}").unwrap();
    }
    let head = Item { kind: EntryType::XHeader, ..file("extension", &content) };
    let mut bytes = archive(&[head]);
    bytes.truncate(bytes.len() - 1024);
    bytes.extend(archive(std::slice::from_ref(item)));
    bytes
}

struct Layer {
    _place: tempfile::TempDir,
    path: PathBuf,
    result: Result<Unpacked, UnpackError>,
}

fn unpacked_within(bytes: &[u8], limits: Limits) -> Layer {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("layer");
    fs::create_dir(&path).unwrap();
    let result = unpack(bytes, &path, limits);
    Layer { path, _place: place, result }
}

fn unpacked(bytes: &[u8]) -> Layer {
    unpacked_within(bytes, Limits::default())
}

/// Returns the refused entry and the reason.
fn refused(bytes: &[u8]) -> (String, String) {
    let layer = unpacked(bytes);
    let outside: Vec<_> = fs::read_dir(layer.path.parent().unwrap()).unwrap().collect();
    assert_eq!(outside.len(), 1, "something was made beside the layer");
    match layer.result {
        Err(UnpackError::Refused { name, why }) => (name, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_directories_and_links_come_out_as_they_went_in() {
    let items = [
        directory("./"),
        directory("./etc/"),
        file("./etc/name", b"content"),
        symlink("etc/link", "/etc/name"),
        hard_link("etc/second", "etc/name"),
        Item { mode: 0o4755, ..file("usr/bin/program", b"#!") },
        Item { kind: EntryType::Fifo, ..file("run/pipe", b"") },
    ];
    let bytes = archive(&items);
    let layer = unpacked(&bytes);
    let found = layer.result.unwrap();
    assert_eq!(
        found,
        Unpacked { blob: Digest::of(&bytes), blob_size: bytes.len() as u64, diff_id: Digest::of(&bytes) }
    );

    let name = layer.path.join("etc/name");
    assert_eq!(fs::read(&name).unwrap(), b"content");
    assert_eq!(fs::metadata(&name).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(&name).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(&name).unwrap().nlink(), 2);
    assert_eq!(fs::read_link(layer.path.join("etc/link")).unwrap(), PathBuf::from("/etc/name"));
    assert_eq!(fs::metadata(layer.path.join("etc")).unwrap().mtime(), 1_000_000_000, "children came later");
    assert_eq!(fs::metadata(layer.path.join("usr/bin/program")).unwrap().mode() & 0o7777, 0o4755);
    assert!(fs::symlink_metadata(layer.path.join("run/pipe")).unwrap().file_type().is_fifo());
    assert_eq!(fs::metadata(&layer.path).unwrap().mode() & 0o7777, 0o750);
}

#[test]
fn compression_is_told_from_the_bytes() {
    let plain = archive(&[file("a", &[7; 100_000])]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    // One skippable frame and two with content, as tools that index their layers write them.
    let mut frames = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    for part in plain.chunks(70_000) {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        frames.extend(ruzstd::encoding::compress_to_vec(part, level));
    }
    for compressed in [gzip, frames] {
        let layer = unpacked(&compressed);
        let found = layer.result.unwrap();
        assert_eq!((found.blob, found.diff_id), (Digest::of(&compressed), Digest::of(&plain)));
        assert_eq!(fs::read(layer.path.join("a")).unwrap(), [7; 100_000]);
    }
}

#[test]
fn long_names_come_in_either_form() {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    let mut gnu = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o600);
    header.set_uid(rustix::process::geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    gnu.append_data(&mut header, &long, &b"x"[..]).unwrap();
    let posix = extended(&[("path", &long), ("mtime", "12.5")], &file("short", b"x"));
    for bytes in [gnu.into_inner().unwrap(), posix] {
        let layer = unpacked(&bytes);
        layer.result.unwrap();
        assert_eq!(fs::read(layer.path.join(&long)).unwrap(), b"x");
    }
}

#[test]
fn what_a_layer_removes_is_what_overlays_understand() {
    let bytes = archive(&[
        file("gone/.wh.file", b""),
        file("hidden/.wh..wh..opq", b""),
        file("hidden/.wh..wh.plnk", b""),
        // Each is removed and created again, in either order: it exists and hides the one below.
        file(".wh.again", b""),
        directory("again"),
        directory("before"),
        file(".wh.before", b""),
        file(".wh.replaced", b""),
        file("replaced", b"new"),
    ]);
    let layer = unpacked(&bytes);
    layer.result.unwrap();
    let whiteout = fs::symlink_metadata(layer.path.join("gone/file")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    for name in ["hidden", "again", "before"] {
        let mut value = [0; 8];
        let length =
            rustix::fs::getxattr(layer.path.join(name), "trusted.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..length], b"y", "{name}");
    }
    assert_eq!(fs::read(layer.path.join("replaced")).unwrap(), b"new");
    assert_eq!(fs::read_dir(layer.path.join("hidden")).unwrap().count(), 0);
    assert!(refused(&archive(&[file("a/.wh...", b"")])).1.contains("removes nothing"));
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let bytes = archive(&[
        directory("a"),
        file("a/inside", b""),
        file("a", b"now a file"),
        symlink("b", "a"),
        file("b", b"not through the link"),
        file("c", b""),
        directory("c"),
    ]);
    let layer = unpacked(&bytes);
    layer.result.unwrap();
    assert_eq!(fs::read(layer.path.join("a")).unwrap(), b"now a file");
    assert_eq!(fs::read(layer.path.join("b")).unwrap(), b"not through the link");
    assert!(layer.path.join("c").is_dir());
}

#[test]
fn entries_that_want_out_are_refused_by_name() {
    for (items, name, why) in [
        (vec![file("/etc/passwd", b"x")], "/etc/passwd", "absolute"),
        (vec![file("../outside", b"x")], "../outside", "`..`"),
        (vec![file("a/../../outside", b"x")], "a/../../outside", "`..`"),
        (vec![symlink("up", ".."), file("up/outside", b"x")], "up/outside", "leads out"),
        (vec![symlink("etc", "/etc"), file("etc/passwd", b"x")], "etc/passwd", "leads out"),
        (vec![symlink("a", "b"), symlink("b", "a"), file("a/x", b"x")], "a/x", "circle"),
        (vec![file("a", b""), file("a/x", b"x")], "a/x", "no directory"),
        (vec![hard_link("mine", "../../etc/shadow")], "mine", "`..`"),
        (vec![hard_link("mine", "/etc/shadow")], "mine", "absolute"),
        (vec![symlink("etc", "/etc"), hard_link("mine", "etc/shadow")], "mine", "leads out"),
        (vec![symlink("s", "/etc/shadow"), hard_link("mine", "s")], "mine", "no file"),
        (vec![hard_link("mine", "absent/file")], "mine", "has not"),
        (vec![Item { kind: EntryType::Char, ..file("dev/mem", b"") }], "dev/mem", "device"),
        (vec![Item { kind: EntryType::Block, ..file("dev/sda", b"") }], "dev/sda", "device"),
        (vec![Item { kind: EntryType::new(b'Z'), ..file("odd", b"") }], "odd", "'Z'"),
        (vec![symlink(".", "/etc")], ".", "top directory"),
    ] {
        let (found, said) = refused(&archive(&items));
        assert_eq!(found, name);
        assert!(said.contains(why), "{name}: {said}");
    }
}

#[test]
fn extended_headers_cannot_smuggle() {
    let item = file("plain", b"x");
    for (record, why) in [
        (("path", "../outside"), "`..`"),
        (("SCHILY.xattr.trusted.overlay.redirect", "/etc"), "trusted.overlay.redirect"),
        (("SCHILY.xattr.user.overlay.redirect", "/etc"), "user.overlay.redirect"),
        (("SCHILY.xattr.security.ima", "x"), "security.ima"),
        (("size", "99999"), "disagree"),
        (("GNU.sparse.major", "1"), "sparse"),
        (("uid", "4294967296"), "no user id"),
    ] {
        let (_, said) = refused(&extended(&[record], &item));
        assert!(said.contains(why), "{record:?}: {said}");
    }
    let long = "x".repeat(2 << 20);
    assert!(refused(&extended(&[("comment", &long)], &item)).1.contains("a header of"));
}

#[test]
fn bombs_end_at_the_limit() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&archive(&[file("zeros", &vec![0; 10 << 20])])).unwrap();
    let few = Limits { bytes: 1 << 20, entries: 2 };
    let error = unpacked_within(&gzip.finish().unwrap(), few).result.unwrap_err();
    let UnpackError::Entry { name, source } = &error else { panic!("{error:?}") };
    assert_eq!(
        (name.as_str(), source.to_string().as_str()),
        ("zeros", "it unpacks to more than 1048576 bytes")
    );
    let many = archive(&[file("1", b""), file("2", b""), file("3", b"")]);
    assert!(matches!(unpacked_within(&many, few).result, Err(UnpackError::TooMany(2))));
}

#[test]
fn bytes_that_are_no_archive_are_an_error() {
    for bytes in [&b"nonsense"[..], &[0x1f, 0x8b, 1, 2, 3], &[0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff]] {
        assert!(matches!(unpacked(bytes).result, Err(UnpackError::Read(_))), "{bytes:?}");
    }
    let whole = archive(&[file("a", &[1; 5000])]);
    assert!(unpacked(&whole[..2000]).result.is_err(), "cut short");
}

/// Changes bytes at random and checks that nothing panics and nothing is written outside.
#[test]
fn damaged_archives_do_no_harm() {
    let whole = [
        archive(&[directory("d"), file("d/f", b"abc"), symlink("d/l", "f"), hard_link("d/h", "d/f")]),
        extended(&[("path", "some/name"), ("SCHILY.xattr.user.x", "y")], &file("f", b"abc")),
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    for round in 0..600 {
        let mut bytes = whole[round % 2].clone();
        for _ in 0..=random(4) {
            let position = random(bytes.len());
            bytes[position] = u8::try_from(random(256)).unwrap();
        }
        // Repair the checksums: otherwise the test would only cover them.
        for block in bytes.chunks_exact_mut(512) {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let layer = unpacked_within(&bytes, Limits { bytes: 1 << 20, entries: 100 });
        assert_eq!(fs::read_dir(layer.path.parent().unwrap()).unwrap().count(), 1, "round {round}");
    }
}
