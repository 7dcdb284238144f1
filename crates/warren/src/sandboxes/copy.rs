//! Runs `warren cp`: copies files and directories into a sandbox and out of it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use warren_client::exec::{self, Captured};
use warren_client::sync::{self, back};

use crate::cli;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Side {
    Here(PathBuf),
    Sandbox { name: String, path: String },
}

impl Side {
    /// Parses `SANDBOX:PATH` or a path of this machine. A path with a slash before its first colon
    /// is one of this machine.
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => {
                Self::Sandbox { name: name.to_owned(), path: path.to_owned() }
            }
            _ => Self::Here(text.into()),
        }
    }
}

/// Copies a file or a directory.
pub async fn copy(arguments: &cli::Cp) -> anyhow::Result<()> {
    let sides = (Side::parse(&arguments.source), Side::parse(&arguments.target));
    let reached = super::reach(&arguments.place).await?;
    match sides {
        (Side::Here(source), Side::Sandbox { name, path }) => {
            let entered = super::enter(&reached, &name, None).await?;
            send(&reached.client, &entered.place, source, &path).await?;
            entered.leave();
        }
        (Side::Sandbox { name, path }, Side::Here(target)) => {
            let entered = super::enter(&reached, &name, None).await?;
            fetch(&reached.client, &entered.place, &path, &target).await?;
            entered.leave();
        }
        _ => anyhow::bail!("one of the two must be `SANDBOX:PATH`, the other one a path of this machine"),
    }
    Ok(())
}

/// Unpacks an archive with one entry, `$2`, into the directory `$1`, or under the name `$1`.
const UNPACK: &str = r#"
set -e
umask 022
if [ -d "$1" ]; then exec tar -xpof - -C "$1"; fi
parent=$(dirname -- "$1")
mkdir -p -- "$parent"
stage=$(mktemp -d "$parent/.warren-XXXXXX")
trap 'rm -rf -- "$stage"' EXIT
tar -xpof - -C "$stage"
mv -- "$stage/$2" "$1"
"#;

/// Packs the file or directory `$1`.
const PACK: &str = r#"cd -- "$(dirname -- "$1")" && exec tar -cf - -- "$(basename -- "$1")""#;

async fn send(
    client: &warren_client::kube::Client,
    place: &sync::Place,
    source: PathBuf,
    path: &str,
) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_empty(), "name a path in the sandbox behind the colon");
    let source = source.canonicalize().with_context(|| format!("open `{}`", source.display()))?;
    let name = source.file_name().context("the root directory cannot be copied")?.to_owned();
    let printed = name.to_str().context("the name is not valid UTF-8")?.to_owned();
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    let packing = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
        let mut archive = tar::Builder::new(std::io::BufWriter::new(writer));
        archive.follow_symlinks(false);
        match source.is_dir() {
            true => archive.append_dir_all(&name, &source)?,
            false => archive.append_path_with_name(&source, &name)?,
        }
        archive.into_inner()?.flush()
    });
    let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).context("make a pipe")?;
    let request = place.script(UNPACK, &[path, &printed], true);
    let ended = exec::capture(client, request, reader, tokio::io::sink()).await;
    match packing.await.context("pack")? {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => return Err(error).context("pack"),
        _ => {}
    }
    succeeded(ended?, "unpack in the sandbox")
}

async fn fetch(
    client: &warren_client::kube::Client,
    place: &sync::Place,
    path: &str,
    target: &Path,
) -> anyhow::Result<()> {
    anyhow::ensure!(!path.is_empty(), "name a path in the sandbox behind the colon");
    let mut spool = crate::run::temporary_file().context("make a temporary file")?;
    let output = sync::Limited::new(spool.try_clone().context("make a temporary file")?);
    let request = place.script(PACK, &[path], false);
    let captured = exec::capture(client, request, tokio::io::empty(), output).await?;
    succeeded(captured, "pack in the sandbox")?;
    let target = target.to_owned();
    tokio::task::spawn_blocking(move || {
        let index = back::read_index(&mut spool)?;
        // Into a directory under the same name, else as the target itself.
        let (root, strip) = match target.is_dir() {
            true => (target.clone(), false),
            false => (
                target
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty())
                    .map_or(".".into(), Path::to_owned),
                true,
            ),
        };
        let renamed = index.into_iter().map(|(path, incoming)| {
            let path = match strip {
                true => {
                    let rest: PathBuf = path.iter().skip(1).collect();
                    let name = PathBuf::from(target.file_name().unwrap_or_default());
                    if rest.as_os_str().is_empty() { name } else { name.join(rest) }
                }
                false => path,
            };
            (path, incoming)
        });
        let index: std::collections::BTreeMap<_, _> = renamed.collect();
        let paths: Vec<PathBuf> = index.keys().cloned().collect();
        back::write(&root, &mut spool, &index, &paths)
    })
    .await
    .context("write")??;
    Ok(())
}

fn succeeded(captured: Captured, what: &'static str) -> anyhow::Result<()> {
    anyhow::ensure!(captured.code == 0, "{what}: {}", captured.complaint);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        let sandbox = |name: &str, path: &str| Side::Sandbox { name: name.to_owned(), path: path.to_owned() };
        for (text, expected) in [
            ("box:/a:b", sandbox("box", "/a:b")),
            ("box:", sandbox("box", "")),
            ("./a:b", Side::Here("./a:b".into())),
            ("file", Side::Here("file".into())),
            (":x", Side::Here(":x".into())),
        ] {
            assert_eq!(Side::parse(text), expected);
        }
    }
}
