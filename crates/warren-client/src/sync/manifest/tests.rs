//! Tests the listing of a checkout.

use std::fs;

use super::*;

fn git(directory: &Path, arguments: &[&str]) {
    let status = Command::new("git")
        .args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "-c",
            "protocol.file.allow=always",
            "-C",
        ])
        .arg(directory)
        .args(arguments)
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("run git").success(), "{arguments:?}");
}

fn names(manifest: &Manifest) -> Vec<&str> {
    manifest.entries.keys().map(|path| path.to_str().expect("plain text")).collect()
}

fn checkout(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("make a directory");
    git(directory.path(), &["init", "--quiet"]);
    for (name, content) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
        fs::write(path, content).expect("write");
    }
    directory
}

#[test]
fn tracked_and_new_files_are_listed_and_ignored_or_deleted_ones_are_not() {
    let checkout = checkout(&[("a", "1"), ("gone", ""), (".gitignore", "target\n"), ("target/x", "")]);
    git(checkout.path(), &["add", "."]);
    fs::remove_file(checkout.path().join("gone")).expect("remove");
    fs::write(checkout.path().join("new line\n"), "").expect("write");
    let manifest = Manifest::read(checkout.path(), &[]).expect("list");
    assert_eq!(names(&manifest), [".gitignore", "a", "new line\n"]);
    let ignored = manifest.ignored([Path::new("target/y"), Path::new("b")]).expect("ask");
    assert_eq!(ignored.into_iter().collect::<Vec<_>>(), [Path::new("target/y")]);
}

#[test]
fn excluded_files_are_left_out_whether_tracked_or_not() {
    let checkout = checkout(&[("a", ""), ("data/big", ""), ("new/b.bin", ""), (".warrenignore", "*.bin\n")]);
    git(checkout.path(), &["add", "a", "data"]);
    let manifest = Manifest::read(checkout.path(), &["/data".to_owned()]).expect("list");
    assert_eq!(names(&manifest), [".warrenignore", "a"]);
}

#[test]
fn submodules_and_nested_checkouts_are_listed_with_their_prefix() {
    let module = checkout(&[("inner", "")]);
    git(module.path(), &["add", "."]);
    git(module.path(), &["commit", "--quiet", "--message", "m"]);
    let outer = checkout(&[("a", "")]);
    let module = module.path().to_str().expect("plain text");
    git(outer.path(), &["submodule", "--quiet", "add", module, "deps/module"]);
    fs::write(outer.path().join("deps/module/new"), "").expect("write");
    let manifest = Manifest::read(outer.path(), &[]).expect("list");
    assert_eq!(names(&manifest), [".gitmodules", "a", "deps/module/inner", "deps/module/new"]);
}

#[test]
fn directory_without_git_is_listed_whole() {
    let directory = tempfile::tempdir().expect("make a directory");
    fs::create_dir(directory.path().join("d")).expect("make a directory");
    fs::write(directory.path().join("d/f"), "x").expect("write");
    fs::write(directory.path().join(".warrenignore"), "secret\n").expect("write");
    fs::write(directory.path().join("secret"), "x").expect("write");
    let manifest = Manifest::read(directory.path(), &[]).expect("list");
    assert_eq!(names(&manifest), [".warrenignore", "d/f"]);
}

#[test]
fn file_behind_a_link_that_leads_out_is_not_read() {
    let elsewhere = checkout(&[("secret", "x")]);
    let checkout = checkout(&[("d/secret", "x"), ("run", "")]);
    git(checkout.path(), &["add", "."]);
    fs::remove_dir_all(checkout.path().join("d")).expect("remove");
    std::os::unix::fs::symlink(elsewhere.path(), checkout.path().join("d")).expect("link");
    let manifest = Manifest::read(checkout.path(), &[]).expect("list");
    assert_eq!(names(&manifest), ["d", "run"]);
    assert_eq!(manifest.entries[Path::new("d")], Entry::Link { target: elsewhere.path().to_owned() });
}

#[test]
fn too_many_or_too_large_files_are_refused_with_the_directory_that_has_most() {
    let file = |size| Entry::File { size, executable: false, modified: 0 };
    let entries =
        [("a", file(1)), ("data/raw/one", file(5_000_000)), ("data/raw/two", file(1)), ("s/t", file(2))];
    let entries = entries.into_iter().map(|(path, entry)| (PathBuf::from(path), entry)).collect();
    let manifest = Manifest { root: "/r".into(), entries, checkouts: Vec::new() };
    manifest.check_against(4, 6_000_000).expect("small enough");
    let error = manifest.check_against(4, 1_000_000).unwrap_err().to_string();
    assert!(error.contains("most of it is in `data/raw` (5 MB)"), "{error}");
    let error = manifest.check_against(3, 6_000_000).unwrap_err().to_string();
    assert!(error.contains("most of it is in `data/raw` (2 files)"), "{error}");
}

#[test]
fn checkout_is_found_from_a_directory_inside() {
    let checkout = checkout(&[("a/b/c", "")]);
    assert_eq!(checkout_root(&checkout.path().join("a/b")).as_deref(), Some(checkout.path()));
}
