//! Sends files into a sandbox for `run`, and fetches them back.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::task::JoinHandle;
use warren_client::kube::Client;
use warren_client::sync::back::{self, BackError, check_path, printable};
use warren_client::sync::manifest::{Manifest, ManifestError, checkout_root};
use warren_client::sync::pack::SentFiles;
use warren_client::sync::{self, Place};

use crate::cli;
use crate::glob::Glob;
use crate::progress;

/// The default directory of a checkout in the sandbox.
pub const WORKDIR: &str = "/workspace";

/// The files to send, and their directory in the sandbox.
#[derive(Debug)]
pub struct Files {
    /// The directory that is sent.
    source: Option<Source>,
    workdir: Option<String>,
    /// The directory that the command runs in.
    directory: Option<String>,
    /// True if entries of the work directory that are not sent are deleted.
    replace: bool,
}

#[derive(Debug)]
struct Source {
    root: PathBuf,
    /// The list of files, which is made while the sandbox starts.
    listing: Option<JoinHandle<Result<Manifest, ManifestError>>>,
    /// The checkouts that were sent, without their files.
    checkouts: Manifest,
}

impl Files {
    /// Chooses the files: a named directory, else the checkout that contains the current directory,
    /// else none. A directory that is not a checkout is sent only if it is named: it could be a
    /// home directory. With a lease (`of_lease`) there is a work directory even if nothing is sent.
    pub fn choose(arguments: &cli::Run, of_lease: Option<&str>) -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("find the current directory");
        let root = match (&arguments.sync, arguments.no_sync) {
            (_, true) => None,
            (Some(directory), _) => {
                Some(directory.canonicalize().with_context(|| format!("open `{}`", directory.display()))?)
            }
            (None, false) => checkout_root(&here.as_ref().map_or(PathBuf::new(), PathBuf::clone)),
        };
        if root.is_none() {
            if arguments.sync_only || arguments.sync_back.is_some() {
                anyhow::bail!(
                    "the current directory is in no git checkout; name a directory with `--sync DIR`"
                );
            }
            if !arguments.no_sync && std::io::stderr().is_terminal() {
                eprintln!(
                    "No files are sent: the current directory is in no git checkout (`--sync DIR` sends one)"
                );
            }
            let workdir = arguments.workdir.clone().or_else(|| of_lease.map(str::to_owned));
            return Ok(Self { source: None, directory: workdir.clone(), workdir, replace: false });
        }
        let workdir = arguments.workdir.as_deref().or(of_lease).unwrap_or(WORKDIR).to_owned();
        sync::check_directory(&workdir)?;
        let source = root.map(|root| Source::list(root, arguments.exclude.clone(), arguments.sync_large));
        // From a directory inside the checkout, the command runs in the same directory of the copy.
        let inside = match (&source, here) {
            (Some(source), Ok(here)) => {
                here.strip_prefix(&source.root).map(Path::to_owned).unwrap_or_default()
            }
            _ => PathBuf::new(),
        };
        let directory = match inside.to_str() {
            Some("") | None => workdir.clone(),
            Some(inside) => format!("{}/{inside}", workdir.trim_end_matches('/')),
        };
        Ok(Self {
            source,
            workdir: Some(workdir),
            directory: Some(directory),
            replace: arguments.sync_delete,
        })
    }

    /// Returns the directory of the sandbox that files are sent to.
    pub fn workdir(&self) -> Option<&str> {
        self.workdir.as_deref()
    }

    /// Returns the directory of the sandbox in which the command runs.
    pub fn directory(&self) -> Option<&str> {
        self.directory.as_deref()
    }

    /// Sends the files, and returns them.
    pub async fn send(&mut self, client: &Client, place: &Place) -> anyhow::Result<Option<SentFiles>> {
        let (Some(source), Some(workdir)) = (&mut self.source, &self.workdir) else { return Ok(None) };
        let Some(listing) = source.listing.take() else { return Ok(None) };
        let root = source.root.display();
        let manifest = progress::show_if_slow(|| format!("listing the files of `{root}`"), listing).await??;
        source.checkouts = manifest.without_entries();
        let count = manifest.entries.len();
        let token = super::random_name();
        let sending = async {
            match self.replace {
                true => sync::replace(client, place, manifest, workdir, &token).await,
                false => sync::upload(client, place, manifest, workdir, &token).await,
            }
        };
        let what = || format!("sending {count} files of `{root}`");
        Ok(Some(progress::show_if_slow(what, sending).await?))
    }

    /// Fetches the files that the command has changed. If files were changed here meanwhile, it
    /// stops, unless `overwrite` is set.
    pub async fn bring_back(
        &self,
        client: &Client,
        place: &Place,
        sent: &SentFiles,
        glob: &str,
        overwrite: bool,
    ) -> anyhow::Result<()> {
        let (Some(source), Some(workdir)) = (&self.source, &self.workdir) else { return Ok(()) };
        let glob = (!glob.is_empty()).then(|| Glob::new(glob));
        let names = sync::list(client, place, workdir).await?;
        let wanted = source.wanted(&names, sent, glob.as_ref()).await?;
        if wanted.is_empty() {
            return Ok(());
        }
        let spool = super::temporary_file().context("make a temporary file")?;
        let handle = spool.try_clone().context("make a temporary file")?;
        let what = || format!("fetching up to {} files", wanted.len());
        progress::show_if_slow(what, sync::download(client, place, workdir, &wanted, handle)).await?;
        let (root, sent) = (source.root.clone(), sent.clone());
        let written =
            tokio::task::spawn_blocking(move || take_over(&root, &sent, spool, overwrite)).await??;
        if written > 0 && std::io::stderr().is_terminal() {
            eprintln!("{written} changed files were brought back");
        }
        Ok(())
    }
}

/// Writes the changed files, and returns their number.
fn take_over(
    root: &Path,
    sent: &SentFiles,
    mut spool: std::fs::File,
    overwrite: bool,
) -> Result<usize, BackError> {
    let index = back::read_index(&mut spool)?;
    let mut plan = back::plan(root, sent, &mut spool, &index)?;
    match overwrite {
        true => plan.write.append(&mut plan.conflicts),
        false if !plan.conflicts.is_empty() => return Err(BackError::Conflict { paths: plan.conflicts }),
        false => {}
    }
    back::write(root, &mut spool, &index, &plan.write)?;
    Ok(plan.write.len())
}

impl Source {
    fn list(root: PathBuf, exclude: Vec<String>, any_size: bool) -> Self {
        let directory = root.clone();
        let listing = tokio::task::spawn_blocking(move || {
            let manifest = Manifest::read(&directory, &exclude)?;
            if !any_size {
                manifest.check_size()?;
            }
            Ok(manifest)
        });
        Self { root, listing: Some(listing), checkouts: Manifest::default() }
    }

    /// Chooses the files to fetch among the names that the sandbox lists. Without a pattern these
    /// are the files that were sent, and new ones that git does not ignore here.
    async fn wanted(
        &self,
        names: &[PathBuf],
        sent: &SentFiles,
        glob: Option<&Glob>,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut wanted = Vec::new();
        let mut unknown = Vec::new();
        for name in names {
            let Ok(path) = check_path(name) else { continue };
            match glob {
                Some(glob) if !glob.matches(&path) => continue,
                None if !sent.contains_key(&path) => unknown.push(path),
                _ => wanted.push(path),
            }
        }
        if !unknown.is_empty() {
            let checkouts = self.checkouts.clone();
            let asking = tokio::task::spawn_blocking(move || {
                let ignored = checkouts.ignored(unknown.iter().map(PathBuf::as_path))?;
                unknown.retain(|path| !ignored.contains(path));
                Ok::<_, ManifestError>(unknown)
            });
            wanted.append(&mut asking.await??);
        }
        wanted.retain(|path| {
            let plain = sync::can_be_named(path);
            if !plain {
                eprintln!("warning: `{}` stays in the sandbox because of its name", printable(path));
            }
            plain
        });
        Ok(wanted)
    }
}
