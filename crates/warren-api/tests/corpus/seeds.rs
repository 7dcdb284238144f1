//! The example manifests of the documents that the project began with.
//!
//! Each is converted like in `warren migrate`. The server must strictly accept the result, or
//! refuse it with a reason. The outcome and all notes are in `tests/seed-manifests/expected.txt`.

use std::path::{Path, PathBuf};

use expect_test::expect_file;
use serde_json::Value;
use warren_api::v1alpha1::{convert, missing_companions};

use crate::server::Server;

pub async fn check(server: &Server) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seed-manifests");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();

    let mut shown = String::new();
    for path in paths {
        shown.push_str(&format!("{}\n", path.file_name().unwrap().to_str().unwrap()));
        let text = std::fs::read_to_string(&path).unwrap();
        let documents: Vec<Value> = match serde_saphyr::from_multiple(&text) {
            Ok(documents) => documents,
            Err(error) => {
                let error = error.to_string();
                shown.push_str(&format!("  not YAML: {}\n", error.lines().next().unwrap_or_default()));
                continue;
            }
        };
        let mut converted = Vec::new();
        for document in documents {
            match convert(document) {
                Ok(document) => converted.push(document),
                Err(error) => shown.push_str(&format!("  not converted: {error}\n")),
            }
        }
        let companions = missing_companions(&converted);
        let given = converted.iter().map(|converted| (&converted.object, converted.notes.as_slice()));
        for (object, notes) in given.chain(companions.into_iter().map(|companion| (companion, [].as_slice())))
        {
            let mut object = object.clone();
            let kind = object["kind"].as_str().unwrap().to_owned();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            // Several documents use the same example name.
            object["metadata"]["name"] =
                Value::from(format!("{}-{name}", path.file_stem().unwrap().to_str().unwrap()));
            let verdict = match server.create(&object).await {
                Ok(()) => "accepted".to_owned(),
                Err(message) => format!("refused: {message}"),
            };
            shown.push_str(&format!("  {kind} {name}: {verdict}\n"));
            for note in notes {
                shown.push_str(&format!("    {note}\n"));
            }
        }
    }
    expect_file![folder.join("expected.txt")].assert_eq(&shown);
}
