//! Reads the files of settings.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use warren_client::home::Surroundings;
use warren_client::sync::manifest::checkout_root;

use super::{Config, ConfigError, KEYS, Layer};

/// The file of a project, in the root of its checkout.
const PROJECT_FILE: &str = "warren.toml";

/// The largest file that is read; it stops a link to a device or a large file in a repository.
const LARGEST: u64 = 1 << 20;

/// The variable that names the user's file instead of `warren/config.toml` in the user's directory
/// for configuration.
const USER_FILE_VARIABLE: &str = "WARREN_CONFIG";

/// Reads the files and the environment of this process.
pub fn read(flags: &Layer) -> Result<Config, ConfigError> {
    let user = match user_file() {
        Some(path) => layer(&path, false)?.map(|layer| (path, layer)),
        None => None,
    };
    let project = match project_file() {
        Some(path) => layer(&path, true)?.map(|layer| (path, layer)),
        None => None,
    };
    Config::merge(
        user.as_ref().map(|(path, layer)| (path.as_path(), layer.clone())),
        project.as_ref().map(|(path, layer)| (path.as_path(), layer.clone())),
        |name| std::env::var(name).ok(),
        flags,
    )
}

fn user_file() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(named) = std::env::var_os(USER_FILE_VARIABLE).filter(|name| !name.is_empty()) {
        return Some(PathBuf::from(named));
    }
    let config =
        directory("XDG_CONFIG_HOME").or_else(|| Some(Surroundings::of_this_process().home?.join(".config")));
    config.map(|config| config.join("warren/config.toml"))
}

fn project_file() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    Some(checkout_root(&here).unwrap_or(here).join(PROJECT_FILE))
}

/// Reads a file; `None` if it does not exist.
fn layer(path: &Path, project: bool) -> Result<Option<Layer>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    // Checked before it is opened: opening a named pipe would wait for a writer.
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(failed(std::io::Error::other("it is no ordinary file"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // A directory above it is closed to this user, for example root's home to a program that
        // dropped root and kept `HOME`. An unreadable file is an error below.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    parse(path, &text, project).map(Some)
}

/// Parses the text of a file.
pub fn parse(path: &Path, text: &str, project: bool) -> Result<Layer, ConfigError> {
    let syntax = |fault: String| ConfigError::Syntax { path: path.to_owned(), fault };
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| syntax(error.message().to_owned()))?;
    let mut layer = Layer::new();
    for (name, value) in table {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(ConfigError::Unknown { path: path.to_owned(), key: name });
        };
        if project && !key.project {
            return Err(ConfigError::Untrusted { path: path.to_owned(), key: name });
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Boolean(switch) => switch.to_string(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Array(items) if key.name == "exclude" => {
                let texts: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
                texts.ok_or_else(|| syntax(format!("`{name}` is a list of strings")))?.join("\n")
            }
            toml::Value::Table(presets) if key.name == "presets" => {
                let line = |(preset, hosts): (&String, &toml::Value)| {
                    let hosts: Option<Vec<&str>> =
                        hosts.as_array()?.iter().map(toml::Value::as_str).collect();
                    Some(format!("{preset}={}", hosts?.join(",")))
                };
                let lines: Option<Vec<String>> = presets.iter().map(line).collect();
                lines.ok_or_else(|| syntax(format!("`{name}` has a list of hosts for each name")))?.join("\n")
            }
            _ => return Err(syntax(format!("`{name}` is a string, a number, `true` or `false`"))),
        };
        layer.insert(key.name, text);
    }
    Ok(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_files_are_opened() {
        let directory = tempfile::tempdir().expect("make a directory");
        let pipe = directory.path().join("warren.toml");
        assert!(layer(&pipe, true).expect("nothing is there").is_none());
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("run mkfifo");
        assert!(made.success());
        let error = layer(&pipe, true).expect_err("a pipe has no settings");
        assert!(
            std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("ordinary"))
        );
    }
}
