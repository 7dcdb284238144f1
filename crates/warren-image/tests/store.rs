//! Tests of the store: images are imported, found, listed, removed, and found again by the next
//! process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tar::{Builder, Header};
use warren_image::digest::Digest;
use warren_image::import::{ImportError, Imported, import};
use warren_image::reference::Reference;
use warren_image::store::{Store, StoreError};
use warren_image::unpack::Limits;

/// Builds an archive of these files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn descriptor(bytes: &[u8]) -> Value {
    json!({"mediaType": "application/octet-stream", "digest": Digest::of(bytes), "size": bytes.len()})
}

/// The parts of an image.
struct Parts {
    layers: Vec<Vec<u8>>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

fn image(layers: &[&[(&str, &[u8])]]) -> Parts {
    let plain: Vec<Vec<u8>> = layers.iter().map(|files| archive(files)).collect();
    let layers: Vec<Vec<u8>> = plain.iter().map(|layer| gzip(layer)).collect();
    let ids: Vec<Digest> = plain.iter().map(|layer| Digest::of(layer)).collect();
    let config = json!({"architecture": "amd64", "os": "linux",
        "config": {"Cmd": ["/bin/sh"], "Env": ["A=b"]}, "rootfs": {"type": "layers", "diff_ids": ids}});
    let config = config.to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "config": descriptor(&config),
        "layers": layers.iter().map(|layer| descriptor(layer)).collect::<Vec<_>>()});
    Parts { layers, config, manifest: manifest.to_string().into_bytes() }
}

fn layout(image: &Parts, name: Option<&str>) -> Vec<u8> {
    let mut entry = descriptor(&image.manifest);
    if let Some(name) = name {
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    }
    let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    let mut files =
        vec![("oci-layout".to_owned(), &b"{}"[..]), ("./index.json".to_owned(), index.as_bytes())];
    files.extend(image.layers.iter().map(|layer| (blob(layer), &layer[..])));
    files.push((blob(&image.config), &image.config));
    files.push((blob(&image.manifest), &image.manifest));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    archive(&files)
}

fn docker(image: &Parts, tags: &Value) -> Vec<u8> {
    let rows = json!([{"Config": "config.json", "RepoTags": tags, "Layers": ["1/layer.tar"]}]).to_string();
    archive(&[
        ("manifest.json", rows.as_bytes()),
        ("config.json", &image.config),
        ("1/layer.tar", &image.layers[0]),
    ])
}

fn bring(store: &Store, archive: &[u8], name: Option<&str>) -> Result<Vec<Imported>, ImportError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(archive).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let name: Option<Reference> = name.map(|name| name.parse().unwrap());
    import(store, file, name.as_ref(), Limits::default())
}

fn reference(name: &str) -> Reference {
    name.parse().unwrap()
}

fn count(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn an_image_from_a_layout_is_found_by_its_name_also_by_the_next_process() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).unwrap();
    let parts = image(&[&[("etc/a", b"low"), ("etc/b", b"low")], &[("etc/a", b"high")]]);
    let imported = bring(&store, &layout(&parts, Some("example.test/team/tool:v1")), None).unwrap();
    assert_eq!(imported[0].name.to_string(), "example.test/team/tool:v1");
    assert_eq!(imported[0].digest, Digest::of(&parts.manifest));
    drop(store);

    let store = Store::open(place.path()).unwrap();
    let found = store.find(&reference("example.test/team/tool:v1")).unwrap().unwrap();
    assert_eq!(found.config.config.cmd, ["/bin/sh"]);
    assert_eq!(fs::read(found.layers[0].join("etc/a")).unwrap(), b"high", "the top one comes first");
    assert_eq!(fs::read(found.layers[1].join("etc/b")).unwrap(), b"low");
    let by_digest = format!("elsewhere/name@{}", found.digest);
    assert!(store.find(&reference(&by_digest)).unwrap().is_some());
    assert!(store.find(&reference("tool")).unwrap().is_none());
}

#[test]
fn an_image_from_docker_save_has_the_names_it_was_saved_with() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).unwrap();
    let parts = image(&[&[("a", b"x")]]);
    let saved = docker(&parts, &json!(["tool:1", "tool:latest"]));
    let first = bring(&store, &saved, None).unwrap();
    let names: Vec<String> = first.iter().map(|image| image.name.to_string()).collect();
    assert_eq!(names, ["docker.io/library/tool:1", "docker.io/library/tool:latest"]);
    assert_eq!(bring(&store, &saved, None).unwrap(), first, "again, with the layer already there");
    assert!(matches!(bring(&store, &docker(&parts, &json!(null)), None), Err(ImportError::Nameless)));
    bring(&store, &docker(&parts, &json!(null)), Some("mine")).unwrap();
    assert_eq!(store.list().unwrap().len(), 3);
    bring(&store, &gzip(&saved), None).unwrap();
}

#[test]
fn removing_takes_what_no_name_needs_and_no_container_uses() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).unwrap();
    let shared: &[(&str, &[u8])] = &[("base", b"shared")];
    for (name, own) in [("one", &b"1"[..]), ("two", b"2")] {
        bring(&store, &layout(&image(&[shared, &[("own", own)]]), None), Some(name)).unwrap();
    }
    let (layers, documents) = (place.path().join("layers"), place.path().join("documents"));
    assert_eq!((count(&layers), count(&documents)), (3, 4));
    let two = store.find(&reference("two")).unwrap().unwrap();

    assert!(forget(&store, "one", &BTreeSet::new()));
    assert_eq!((count(&layers), count(&documents)), (2, 2));
    assert!(!forget(&store, "one", &BTreeSet::new()));

    let in_use: BTreeSet<_> = two.layers.iter().cloned().collect();
    assert!(forget(&store, "two", &in_use));
    assert_eq!((count(&layers), count(&documents)), (2, 0), "a container still stands on them");
    store.collect(&BTreeSet::new()).unwrap();
    assert_eq!(count(&layers), 0);
    assert_eq!(count(&place.path().join("unfinished")), 0);
}

#[test]
fn content_that_is_not_what_it_is_called_is_refused_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).unwrap();
    let good = image(&[&[("a", b"x")]]);
    let other = image(&[&[("a", b"y")]]);

    // A layer with other content than its name promises, and one that the manifest lists but the
    // configuration does not.
    let swapped =
        layout(&Parts { layers: vec![good.layers[0].clone()], ..image(&[&[("a", b"y")]]) }, Some("t:1"));
    assert!(matches!(bring(&store, &swapped, None), Err(ImportError::Missing(_))));
    let manifest = json!({"schemaVersion": 2, "config": descriptor(&good.config), "layers": [descriptor(&other.layers[0])]});
    let lying =
        Parts { layers: other.layers, config: good.config.clone(), manifest: manifest.to_string().into() };
    let error = bring(&store, &layout(&lying, Some("t:1")), None).unwrap_err();
    assert!(matches!(error, ImportError::Store(StoreError::Digest { .. })), "{error:?}");

    let name = format!("blobs/sha256/{}", Digest::of(&good.layers[0]).hex());
    let index = json!({"manifests": [descriptor(&good.manifest)]}).to_string();
    let config = format!("blobs/sha256/{}", Digest::of(&good.config).hex());
    let manifest = format!("blobs/sha256/{}", Digest::of(&good.manifest).hex());
    let damaged = archive(&[
        ("index.json", index.as_bytes()),
        (&name, &gzip(&archive(&[("a", b"other content")]))),
        (&config, &good.config),
        (&manifest, &good.manifest),
    ]);
    let error = bring(&store, &damaged, Some("t:1")).unwrap_err();
    assert!(
        matches!(error, ImportError::Store(StoreError::Size { .. } | StoreError::Digest { .. })),
        "{error:?}"
    );

    for kind in ["layers", "unfinished"] {
        assert_eq!(count(&place.path().join(kind)), 0, "{kind}");
    }
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn what_is_no_archive_of_images_is_said_to_be_none() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::open(place.path()).unwrap();
    assert!(matches!(bring(&store, b"", None), Err(ImportError::NoArchive)));
    assert!(matches!(bring(&store, &b"root:x:0:0".repeat(100), None), Err(ImportError::NoArchive)));
    assert!(matches!(bring(&store, &gzip(b"x"), None), Err(ImportError::NoArchive)));
    assert!(matches!(bring(&store, &gzip(b"x")[..15], None), Err(ImportError::Read(_))));
    assert!(matches!(bring(&store, &archive(&[("a", b"")]), None), Err(ImportError::NoImage)));
    let parts = image(&[&[("a", b"x")]]);
    assert!(matches!(bring(&store, &layout(&parts, Some("latest")), None), Err(ImportError::Nameless)));
    let foreign =
        json!({"digest": Digest::of(b"x"), "size": 1, "platform": {"architecture": "s390x", "os": "linux"}});
    let index = json!({"manifests": [foreign]}).to_string();
    let nested = json!({"manifests": [descriptor(index.as_bytes())]}).to_string();
    let blob = format!("blobs/sha256/{}", Digest::of(index.as_bytes()).hex());
    let error =
        bring(&store, &archive(&[("index.json", nested.as_bytes()), (&blob, index.as_bytes())]), Some("x"));
    assert!(error.unwrap_err().to_string().contains("linux/s390x"));
}

#[test]
fn what_a_crash_left_unfinished_is_gone_after_the_next_start() {
    let place = tempfile::tempdir().unwrap();
    drop(Store::open(place.path()).unwrap());
    let half = place.path().join("unfinished/half/layer");
    fs::create_dir_all(&half).unwrap();
    File::create(half.join("file")).unwrap();
    Store::open(place.path()).unwrap();
    assert_eq!(count(&place.path().join("unfinished")), 0);

    fs::write(place.path().join("names.json"), "{").unwrap();
    let error = Store::open(place.path()).unwrap_err();
    assert!(error.to_string().contains("names.json"), "{error}");
}

fn forget(store: &Store, name: &str, in_use: &BTreeSet<PathBuf>) -> bool {
    let was_there = store.forget(&reference(name)).unwrap();
    store.collect(in_use).unwrap();
    was_there
}
