//! `filesystem.Filesystem`: directories, and what changes in them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Code, Failure};
use super::paths::{self, Names};
use super::user::{self, User};
use super::{Envd, blocking, watch};
use crate::reply::Body;

/// The most entries that one call lists.
const MOST_ENTRIES: usize = 100_000;
/// The most levels that one call lists.
const DEEPEST: u32 = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wanted {
    pub(super) path: String,
    depth: u32,
    source: String,
    destination: String,
    pub(super) recursive: bool,
    pub(super) include_entry: bool,
    pub(super) watcher_id: String,
}

/// Answers one call.
pub(super) async fn answer(envd: Arc<Envd>, method: &str, request: Request<Incoming>) -> Response<Body> {
    match method {
        "WatchDir" => watch::stream(envd, request).await.unwrap_or_else(connect::refused),
        _ => connect::unary(simple(envd, method.to_owned(), request).await),
    }
}

async fn simple(envd: Arc<Envd>, method: String, request: Request<Incoming>) -> Result<Value, Failure> {
    let user = envd.users.named(user::of_request(request.headers())?.as_deref())?;
    let wanted: Wanted = connect::unary_message(request).await?;
    match method.as_str() {
        "CreateWatcher" => return watch::create(&envd, &wanted, &user),
        "GetWatcherEvents" => return envd.watchers.take(&wanted.watcher_id),
        "RemoveWatcher" => return envd.watchers.remove(&wanted.watcher_id),
        _ => {}
    }
    blocking(move || match method.as_str() {
        "ListDir" => list(&wanted, &user),
        "Stat" => shown(&paths::wanted("path", &wanted.path, &user)?),
        "MakeDir" => make(&envd, &wanted, &user),
        "Move" => rename(&envd, &wanted, &user),
        "Remove" => remove(&wanted, &user),
        other => Err(Failure::new(Code::Unimplemented, format!("unknown method {other}"))),
    })
    .await
}

fn shown(path: &Path) -> Result<Value, Failure> {
    let entry = paths::entry(path, &Names::read());
    Ok(json!({ "entry": entry.map_err(|error| Failure::io(&path.to_string_lossy(), &error))? }))
}

fn list(wanted: &Wanted, user: &User) -> Result<Value, Failure> {
    let path = paths::wanted("path", &wanted.path, user)?;
    let failed = |error| Failure::io(&path.to_string_lossy(), &error);
    if !path.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::new(Code::InvalidArgument, format!("{} is not a directory", path.display())));
    }
    let names = Names::read();
    let mut entries = Vec::new();
    walk(&path, wanted.depth.clamp(1, DEEPEST), &names, &mut entries)?;
    Ok(json!({ "entries": entries }))
}

fn walk(directory: &Path, depth: u32, names: &Names, entries: &mut Vec<Value>) -> Result<(), Failure> {
    let failed = |error| Failure::io(&directory.to_string_lossy(), &error);
    let mut found: Vec<_> =
        fs::read_dir(directory).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    for path in found {
        if entries.len() >= MOST_ENTRIES {
            let message = format!("there are more than {MOST_ENTRIES} entries; list with less depth");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        // An entry that was deleted in the meantime is not listed.
        let Ok(entry) = paths::entry(&path, names) else { continue };
        entries.push(entry);
        let goes_down = depth > 1 && path.symlink_metadata().is_ok_and(|found| found.is_dir());
        if goes_down {
            match walk(&path, depth - 1, names, entries) {
                Err(failure) if failure.code == Code::ResourceExhausted => return Err(failure),
                Ok(()) | Err(_) => {}
            }
        }
    }
    Ok(())
}

fn make(envd: &Envd, wanted: &Wanted, user: &User) -> Result<Value, Failure> {
    let path = paths::wanted("path", &wanted.path, user)?;
    match path.metadata() {
        Ok(found) if found.is_dir() => {
            return Err(Failure::new(Code::AlreadyExists, format!("directory {} exists", path.display())));
        }
        Ok(_) => {
            let message = format!("{} exists and is not a directory", path.display());
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Err(_) => {}
    }
    paths::make_directories(&path, &envd.users, user)
        .map_err(|error| Failure::io(&path.to_string_lossy(), &error))?;
    shown(&path)
}

fn rename(envd: &Envd, wanted: &Wanted, user: &User) -> Result<Value, Failure> {
    let from = paths::wanted("source", &wanted.source, user)?;
    let to = paths::wanted("destination", &wanted.destination, user)?;
    from.symlink_metadata().map_err(|error| Failure::io(&from.to_string_lossy(), &error))?;
    if let Some(parent) = to.parent() {
        paths::make_directories(parent, &envd.users, user)
            .map_err(|error| Failure::io(&parent.to_string_lossy(), &error))?;
    }
    let what = || format!("move {} to {}", from.display(), to.display());
    fs::rename(&from, &to).map_err(|error| Failure::io(&what(), &error))?;
    shown(&to)
}

/// Removes a file or a directory with everything below it. One that is not there is a success.
fn remove(wanted: &Wanted, user: &User) -> Result<Value, Failure> {
    let path = paths::wanted("path", &wanted.path, user)?;
    if path.parent().is_none() {
        return Err(Failure::new(Code::InvalidArgument, "`path` is the root directory"));
    }
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io(&path.to_string_lossy(), &error))
        }
        _ => Ok(json!({})),
    }
}
