//! Runs `warren image`, for the images of the local home.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use tokio::io::AsyncRead;
use warren_client::images::{self, Image, Progress};
use warren_client::kube::Client;

use crate::cli::{self, Format};
use crate::home;
use crate::progress::Meter;

/// Carries out an `image` command.
pub fn image(arguments: &cli::Image) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let done = runtime.block_on(async {
        match &arguments.command {
            cli::ImageCommand::Import(arguments) => import(arguments).await,
            cli::ImageCommand::Pull(arguments) => {
                let client = home::connect(&arguments.home).await?;
                let image = pull(&client, &arguments.name, false).await?;
                print_images(&[image], arguments.output.output);
                Ok(())
            }
            cli::ImageCommand::List(arguments) => {
                let client = home::connect(&arguments.home).await?;
                print_table(&images::list(&client).await?, arguments.output.output);
                Ok(())
            }
            cli::ImageCommand::Remove(arguments) => {
                let client = home::connect(&arguments.home).await?;
                for name in &arguments.names {
                    images::remove(&client, name).await?;
                }
                Ok(())
            }
        }
    });
    // A thread may still be reading the archive; it is not waited for.
    runtime.shutdown_background();
    done
}

/// Pulls an image, and shows the progress on a terminal.
pub async fn pull(client: &Client, name: &str, only_if_missing: bool) -> anyhow::Result<Image> {
    let mut meter = Meter::new(format!("pulling `{name}`"));
    let show = |Progress { done, total }| meter.show(done, (total > 0).then_some(total));
    Ok(images::pull(client, name, only_if_missing, show).await?)
}

async fn import(arguments: &cli::ImageImport) -> anyhow::Result<()> {
    let (archive, size) = open(&arguments.archive)?;
    // Starts the home if it is not running; the archive uses a connection of its own.
    drop(home::connect(&arguments.home).await?);
    let data_dir = home::data_dir(&arguments.home)?;
    let mut meter = Meter::new(format!("importing `{}`", arguments.archive.display()));
    let show = move |sent| meter.show(sent, size);
    let imported = images::import(&data_dir, archive, arguments.name.as_deref(), show).await?;
    print_images(&imported, arguments.output.output);
    Ok(())
}

/// Opens an archive as a stream, with its length if it is known: a file, a layout in a directory,
/// or standard input.
fn open(path: &Path) -> anyhow::Result<(Box<dyn AsyncRead + Send + Unpin>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(tokio::io::stdin()), None));
    }
    let opening = || format!("open `{}`", path.display());
    let metadata = std::fs::metadata(path).with_context(opening)?;
    if metadata.is_dir() {
        let reader = directory_as_archive(path.to_owned()).with_context(opening)?;
        return Ok((
            Box::new(tokio::fs::File::from_std(File::from(std::os::fd::OwnedFd::from(reader)))),
            None,
        ));
    }
    let file = File::open(path).with_context(opening)?;
    Ok((Box::new(tokio::fs::File::from_std(file)), Some(metadata.len())))
}

/// Archives a directory in a thread while this process sends. If a file cannot be read, the archive
/// is truncated, so the node refuses it; the cause is printed here.
fn directory_as_archive(directory: std::path::PathBuf) -> io::Result<io::PipeReader> {
    let (reader, writer) = io::pipe()?;
    let pack = move || -> io::Result<()> {
        let mut archive = tar::Builder::new(writer);
        archive.follow_symlinks(false);
        archive.append_dir_all(".", &directory)?;
        archive.into_inner()?.flush()
    };
    std::thread::Builder::new().name("warren-pack".to_owned()).spawn(move || {
        if let Err(error) = pack()
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            eprintln!("warning: pack the directory: {error}");
        }
    })?;
    Ok(reader)
}

fn print_images(images: &[Image], format: Format) {
    match format {
        Format::Json => println!("{}", json!({ "images": images })),
        Format::Text => images.iter().for_each(|image| println!("{}", image.name)),
    }
}

fn print_table(images: &[Image], format: Format) {
    match format {
        Format::Json => println!("{}", json!({ "images": images })),
        Format::Text => print!("{}", table(images)),
    }
}

fn table(images: &[Image]) -> String {
    let widest = images.iter().map(|image| image.name.len()).max().unwrap_or_default().max("NAME".len());
    let row = |name: &str, digest: &str, size: &str| format!("{name:widest$}  {digest:19}  {size:>9}\n");
    let mut text = row("NAME", "DIGEST", "SIZE");
    for image in images {
        let digest: String = image.digest.chars().take("sha256:".len() + 12).collect();
        text += &row(&image.name, &digest, &image.size.map(crate::progress::bytes).unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use expect_test::expect;

    use super::*;

    #[test]
    fn images_are_shown_in_columns() {
        let image = |name: &str, size| Image {
            name: name.to_owned(),
            digest: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            size: Some(size),
            layers: Some(1),
        };
        expect![[r#"
            NAME                                DIGEST                    SIZE
            docker.io/library/busybox:latest    sha256:0123456789ab     2.1 MB
            registry.example:5000/owner/tool:1  sha256:0123456789ab      512 B
        "#]]
        .assert_eq(&table(&[
            image("docker.io/library/busybox:latest", 2_123_456),
            image("registry.example:5000/owner/tool:1", 512),
        ]));
    }

    #[test]
    fn a_directory_is_sent_as_an_archive() {
        let directory = tempfile::tempdir().expect("make a directory");
        std::fs::create_dir_all(directory.path().join("blobs/sha256")).expect("make directories");
        std::fs::write(directory.path().join("blobs/sha256/aa"), "content").expect("write");
        let mut bytes = Vec::new();
        directory_as_archive(directory.path().to_owned())
            .expect("begin")
            .read_to_end(&mut bytes)
            .expect("read");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .expect("an archive")
            .map(|entry| entry.expect("an entry").path().expect("a path").display().to_string())
            .collect();
        assert!(names.iter().any(|name| name.ends_with("blobs/sha256/aa")), "{names:?}");
    }
}
