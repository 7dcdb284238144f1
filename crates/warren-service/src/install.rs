//! `warren mcp install`: the configuration with which MCP clients start Warren.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use serde_json::{Map, Value, json};

use crate::cli::{self, Client};
use crate::home;

/// Prints the configuration of a client, or of all, or writes one.
pub fn install(arguments: &cli::Install) -> anyhow::Result<()> {
    // The path, and not the name: programs with a window often have another PATH than a shell.
    let program = home::warren().map_err(anyhow::Error::msg)?.display().to_string();
    match arguments.client {
        Some(client) if arguments.write => {
            let file = file(client).context("find your home directory: set $HOME")?;
            write(client, &file, &program)?;
            println!("wrote `{}`; restart {} or reload its MCP servers", file.display(), title(client));
        }
        client => {
            let chosen = client.map_or(Client::value_variants().to_vec(), |client| vec![client]);
            for (number, client) in chosen.into_iter().enumerate() {
                if number > 0 {
                    println!();
                }
                let place = file(client).map_or_else(String::new, |file| format!(", in {}", file.display()));
                println!("# {}{place}\n{}", title(client), snippet(client, &program));
            }
        }
    }
    Ok(())
}

fn title(client: Client) -> &'static str {
    match client {
        Client::Claude => "Claude Code",
        Client::ClaudeDesktop => "Claude Desktop",
        Client::Cursor => "Cursor",
        Client::Vscode => "Visual Studio Code",
        Client::Gemini => "Gemini CLI",
        Client::Codex => "Codex",
    }
}

/// Returns the file in which a client looks for servers.
fn file(client: Client) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    Some(match client {
        Client::Claude => PathBuf::from(".mcp.json"),
        Client::Vscode => PathBuf::from(".vscode/mcp.json"),
        Client::ClaudeDesktop => home()?.join(".config/Claude/claude_desktop_config.json"),
        Client::Cursor => home()?.join(".cursor/mcp.json"),
        Client::Gemini => home()?.join(".gemini/settings.json"),
        Client::Codex => home()?.join(".codex/config.toml"),
    })
}

/// Returns the key under which a client keeps servers, and the entry for Warren.
fn entry(client: Client, program: &str) -> (&'static str, Value) {
    match client {
        Client::Vscode => ("servers", json!({ "type": "stdio", "command": program, "args": ["mcp"] })),
        _ => ("mcpServers", json!({ "command": program, "args": ["mcp"] })),
    }
}

fn snippet(client: Client, program: &str) -> String {
    if client == Client::Codex {
        // A JSON string is a TOML string too.
        return format!("[mcp_servers.warren]\ncommand = {}\nargs = [\"mcp\"]", json!(program));
    }
    let (key, entry) = entry(client, program);
    format!("{:#}", json!({ key: { "warren": entry } }))
}

/// Adds the entry to a client's file. Everything else in the file stays as it is.
fn write(client: Client, file: &Path, program: &str) -> anyhow::Result<()> {
    if client == Client::Codex {
        bail!("`{}` is TOML, which is not written; add:\n{}", file.display(), snippet(client, program));
    }
    let present = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("read `{}`", file.display())),
    };
    let text = merged(client, &present, program).with_context(|| {
        format!("change `{}`, which is left as it is; add:\n{}", file.display(), snippet(client, program))
    })?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).with_context(|| format!("create `{}`", directory.display()))?;
    // Beside the file, and renamed: the client never reads half of it.
    let write = || -> std::io::Result<()> {
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        new.write_all(text.as_bytes())?;
        let permissions = match file.metadata() {
            Ok(metadata) => metadata.permissions(),
            Err(_) => std::os::unix::fs::PermissionsExt::from_mode(0o644),
        };
        new.as_file().set_permissions(permissions)?;
        new.as_file().sync_all()?;
        new.persist(file)?;
        Ok(())
    };
    write().with_context(|| format!("write `{}`", file.display()))
}

/// Returns a client's configuration with the entry for Warren in it.
fn merged(client: Client, present: &str, program: &str) -> anyhow::Result<String> {
    let mut whole: Map<String, Value> = match present.trim() {
        "" => Map::new(),
        text => serde_json::from_str(text).context("the file is not a JSON object")?,
    };
    let (key, entry) = entry(client, program);
    let servers = whole.entry(key).or_insert_with(|| json!({}));
    let Value::Object(servers) = servers else { bail!("`{key}` in the file is not an object") };
    servers.insert("warren".to_owned(), entry);
    Ok(format!("{:#}\n", Value::Object(whole)))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn snippets_start_warren_mcp() {
        expect![[r#"
            {
              "mcpServers": {
                "warren": {
                  "command": "/bin/warren",
                  "args": [
                    "mcp"
                  ]
                }
              }
            }"#]]
        .assert_eq(&snippet(Client::Claude, "/bin/warren"));
        expect![[r#"
            [mcp_servers.warren]
            command = "/a \"b\"/warren"
            args = ["mcp"]"#]]
        .assert_eq(&snippet(Client::Codex, "/a \"b\"/warren"));
    }

    #[test]
    fn other_servers_and_settings_stay_in_the_file() {
        let present = r#"{"theme":"dark","mcpServers":{"other":{"command":"x"},"warren":{"command":"old"}}}"#;
        let merged: Value =
            serde_json::from_str(&merged(Client::Cursor, present, "/bin/warren").expect("merged"))
                .expect("JSON");
        assert_eq!(merged["theme"], "dark");
        assert_eq!(merged["mcpServers"]["other"]["command"], "x");
        assert_eq!(merged["mcpServers"]["warren"]["command"], "/bin/warren");
    }

    #[test]
    fn file_that_is_not_json_is_left_as_it_is() {
        let directory = tempfile::tempdir().expect("make a directory");
        let file = directory.path().join("mcp.json");
        std::fs::write(&file, "// comment\n{}").expect("write");
        let error = write(Client::Vscode, &file, "/bin/warren").expect_err("refused");
        assert!(format!("{error:#}").contains("left as it is"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "// comment\n{}");
        let new = directory.path().join("deep/mcp.json");
        write(Client::Vscode, &new, "/bin/warren").expect("written");
        let value: Value = serde_json::from_str(&std::fs::read_to_string(&new).expect("read")).expect("JSON");
        assert_eq!(value["servers"]["warren"]["type"], "stdio");
    }
}
