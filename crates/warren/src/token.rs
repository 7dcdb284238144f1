//! Runs `warren token`: signs tokens for one sandbox at the router.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use warren_router::token::{ANY, Claims, SigningKey, expiry};

use crate::{cli, home, sandboxes};

/// Runs one of the commands.
pub fn token(command: &cli::Token) -> anyhow::Result<()> {
    match command {
        cli::Token::Create(arguments) => create(arguments),
        cli::Token::Keys(arguments) => keys(arguments),
    }
}

fn create(arguments: &cli::TokenCreate) -> anyhow::Result<()> {
    if let Some(path) = &arguments.path {
        ensure!(
            path.starts_with('/') && !path.contains(['?', '#']),
            "`--path` must begin with `/` and have no query"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    let sandbox = runtime.block_on(sandboxes::identity(&arguments.place, &arguments.sandbox))?;
    let key = match &arguments.key {
        Some(key) => read(key)?,
        None => {
            ensure!(
                sandbox.is_local,
                "a sandbox of a cluster needs `--key`: the cluster's router has its own keys"
            );
            read(&home::data_dir(&arguments.place.home)?.router_token_key())?
        }
    };
    let any = |text: &Option<String>| text.clone().unwrap_or_else(|| ANY.to_owned());
    let exp =
        expiry(Timestamp::now().as_second(), arguments.ttl).context("`--ttl` must be a second or more")?;
    let claims = Claims {
        ns: sandbox.namespace,
        name: sandbox.name,
        uid: sandbox.uid,
        port: arguments.port.unwrap_or(0),
        method: any(&arguments.method),
        path: any(&arguments.path),
        exp,
    };
    println!("{}", key.sign(&claims).context("sign the token")?);
    Ok(())
}

fn keys(arguments: &cli::TokenKeys) -> anyhow::Result<()> {
    let path = &arguments.key;
    // If two processes do this at the same time, only one of them makes the file.
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let text = SigningKey::generate(&arguments.kid)?;
            file.write_all(text.as_bytes()).with_context(|| format!("write `{}`", path.display()))?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("make `{}`", path.display())),
    }
    println!("{}", read(path)?.key_set());
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<SigningKey> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
    SigningKey::parse(&text).with_context(|| format!("use the key in `{}`", path.display()))
}
