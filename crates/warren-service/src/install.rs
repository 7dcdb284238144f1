//! `warren mcp install`: the configuration with which MCP clients start Warren, or reach it over
//! HTTP.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::ValueEnum as _;
use serde_json::{Map, Value, json};

use crate::cli::{self, Client};
use crate::home;

/// The variable from which clients over HTTP take their key. The key itself is written into no
/// file: some of them are committed with a project.
const KEY: &str = "WARREN_MCP_KEY";

/// An input that Visual Studio Code asks its user for.
const INPUT: &str = "warren-mcp-key";

/// The way to the server.
#[derive(Clone, Debug)]
enum Way {
    /// The client starts this program.
    Program(String),
    /// The server runs here already.
    Url(String),
}

/// Prints the configuration of a client, or of all, or writes one.
pub fn install(arguments: &cli::Install) -> anyhow::Result<()> {
    let way = match &arguments.url {
        Some(url) => Way::Url(checked(url)?),
        // The path, and not the name: programs with a window often have another PATH than a shell.
        None => Way::Program(home::warren().map_err(anyhow::Error::msg)?.display().to_string()),
    };
    if let (Some(Client::ClaudeDesktop), Way::Url(_)) = (arguments.client, &way) {
        bail!("Claude Desktop reaches no server over HTTP by its file; leave `--url` out, and it starts one");
    }
    match arguments.client {
        Some(client) if arguments.write => {
            let file = file(client).context("find your home directory: set $HOME")?;
            write(client, &file, &way)?;
            println!("wrote `{}`; restart {} or reload its MCP servers", file.display(), title(client));
            if let Way::Url(_) = way {
                println!("{}", needs_key(client));
            }
        }
        client => {
            let chosen = client.map_or(Client::value_variants().to_vec(), |client| vec![client]);
            let reached = |client: &Client| !matches!((client, &way), (Client::ClaudeDesktop, Way::Url(_)));
            for (number, client) in chosen.into_iter().filter(reached).enumerate() {
                if number > 0 {
                    println!();
                }
                let place = file(client).map_or_else(String::new, |file| format!(", in {}", file.display()));
                println!("# {}{place}\n{}", title(client), snippet(client, &way));
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

/// Checks the URL of a server.
fn checked(url: &str) -> anyhow::Result<String> {
    let parsed: http::Uri = url.parse().with_context(|| format!("`--url {url}` is no URL"))?;
    match parsed.scheme_str() {
        Some("http" | "https") if parsed.path() != "/" => Ok(url.to_owned()),
        _ => {
            bail!("`--url {url}` is not like `http://127.0.0.1:7984/mcp`, which `warren mcp --listen` prints")
        }
    }
}

/// Says where the client takes the key from.
fn needs_key(client: Client) -> String {
    match client {
        Client::Vscode => {
            "Visual Studio Code asks for the key; `warren mcp key add NAME` makes one".to_owned()
        }
        _ => format!("start it with the key in `{KEY}`; `warren mcp key add NAME` makes one"),
    }
}

/// Returns the key under which a client keeps servers, and the entry for Warren.
fn entry(client: Client, way: &Way) -> (&'static str, Value) {
    let headers = |key: String| json!({ "Authorization": format!("Bearer {key}") });
    match (client, way) {
        (Client::Vscode, Way::Program(program)) => {
            ("servers", json!({ "type": "stdio", "command": program, "args": ["mcp"] }))
        }
        (_, Way::Program(program)) => ("mcpServers", json!({ "command": program, "args": ["mcp"] })),
        (Client::Vscode, Way::Url(url)) => (
            "servers",
            json!({ "type": "http", "url": url, "headers": headers(format!("${{input:{INPUT}}}")) }),
        ),
        (Client::Cursor, Way::Url(url)) => {
            ("mcpServers", json!({ "url": url, "headers": headers(format!("${{env:{KEY}}}")) }))
        }
        (Client::Gemini, Way::Url(url)) => {
            ("mcpServers", json!({ "httpUrl": url, "headers": headers(format!("${{{KEY}}}")) }))
        }
        (_, Way::Url(url)) => {
            ("mcpServers", json!({ "type": "http", "url": url, "headers": headers(format!("${{{KEY}}}")) }))
        }
    }
}

/// Returns what a client asks its user for, if it does.
fn input(client: Client, way: &Way) -> Option<Value> {
    let asks = matches!((client, way), (Client::Vscode, Way::Url(_)));
    asks.then(|| json!({ "type": "promptString", "id": INPUT, "description": "Key of warren mcp", "password": true }))
}

fn snippet(client: Client, way: &Way) -> String {
    if client == Client::Codex {
        // A JSON string is a TOML string too.
        return match way {
            Way::Program(program) => {
                format!("[mcp_servers.warren]\ncommand = {}\nargs = [\"mcp\"]", json!(program))
            }
            Way::Url(url) => {
                format!("[mcp_servers.warren]\nurl = {}\nbearer_token_env_var = \"{KEY}\"", json!(url))
            }
        };
    }
    let (key, entry) = entry(client, way);
    let mut whole = json!({ key: { "warren": entry } });
    if let Some(input) = input(client, way) {
        whole["inputs"] = json!([input]);
    }
    format!("{whole:#}")
}

/// Adds the entry to a client's file. Everything else in the file stays as it is.
fn write(client: Client, file: &Path, way: &Way) -> anyhow::Result<()> {
    if client == Client::Codex {
        bail!("`{}` is TOML, which is not written; add:\n{}", file.display(), snippet(client, way));
    }
    let present = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("read `{}`", file.display())),
    };
    let text = merged(client, &present, way).with_context(|| {
        format!("change `{}`, which is left as it is; add:\n{}", file.display(), snippet(client, way))
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
fn merged(client: Client, present: &str, way: &Way) -> anyhow::Result<String> {
    let mut whole: Map<String, Value> = match present.trim() {
        "" => Map::new(),
        text => serde_json::from_str(text).context("the file is not a JSON object")?,
    };
    let (key, entry) = entry(client, way);
    let servers = whole.entry(key).or_insert_with(|| json!({}));
    let Value::Object(servers) = servers else { bail!("`{key}` in the file is not an object") };
    servers.insert("warren".to_owned(), entry);
    if let Some(input) = input(client, way) {
        let inputs = whole.entry("inputs").or_insert_with(|| json!([]));
        let Value::Array(inputs) = inputs else { bail!("`inputs` in the file is not a list") };
        inputs.retain(|present| present["id"] != INPUT);
        inputs.push(input);
    }
    Ok(format!("{:#}\n", Value::Object(whole)))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn started(program: &str) -> Way {
        Way::Program(program.to_owned())
    }

    #[test]
    fn snippets_for_http_name_the_variable_of_the_key() {
        let way = Way::Url(checked("http://127.0.0.1:7984/mcp").expect("a URL"));
        expect![[r#"
            {
              "mcpServers": {
                "warren": {
                  "type": "http",
                  "url": "http://127.0.0.1:7984/mcp",
                  "headers": {
                    "Authorization": "Bearer ${WARREN_MCP_KEY}"
                  }
                }
              }
            }"#]]
        .assert_eq(&snippet(Client::Claude, &way));
        expect![[r#"
            [mcp_servers.warren]
            url = "http://127.0.0.1:7984/mcp"
            bearer_token_env_var = "WARREN_MCP_KEY""#]]
        .assert_eq(&snippet(Client::Codex, &way));
        let present = r#"{"inputs":[{"id":"other"},{"id":"warren-mcp-key"}]}"#;
        let merged: Value =
            serde_json::from_str(&merged(Client::Vscode, present, &way).expect("merged")).expect("JSON");
        assert_eq!(merged["servers"]["warren"]["headers"]["Authorization"], "Bearer ${input:warren-mcp-key}");
        assert_eq!(merged["inputs"].as_array().map(Vec::len), Some(2), "{merged}");
        for wrong in ["", "x", "127.0.0.1:7984/mcp", "http://127.0.0.1:7984", "ftp://127.0.0.1/mcp"] {
            assert!(checked(wrong).is_err(), "{wrong}");
        }
    }

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
        .assert_eq(&snippet(Client::Claude, &started("/bin/warren")));
        expect![[r#"
            [mcp_servers.warren]
            command = "/a \"b\"/warren"
            args = ["mcp"]"#]]
        .assert_eq(&snippet(Client::Codex, &started("/a \"b\"/warren")));
    }

    #[test]
    fn other_servers_and_settings_stay_in_the_file() {
        let present = r#"{"theme":"dark","mcpServers":{"other":{"command":"x"},"warren":{"command":"old"}}}"#;
        let merged: Value =
            serde_json::from_str(&merged(Client::Cursor, present, &started("/bin/warren")).expect("merged"))
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
        let error = write(Client::Vscode, &file, &started("/bin/warren")).expect_err("refused");
        assert!(format!("{error:#}").contains("left as it is"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&file).expect("read"), "// comment\n{}");
        let new = directory.path().join("deep/mcp.json");
        write(Client::Vscode, &new, &started("/bin/warren")).expect("written");
        let value: Value = serde_json::from_str(&std::fs::read_to_string(&new).expect("read")).expect("JSON");
        assert_eq!(value["servers"]["warren"]["type"], "stdio");
    }
}
