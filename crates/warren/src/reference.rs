//! The manual: a page for `man` about each command. The reference in `docs/cli.md` is made from the
//! same descriptions.
//!
//! Everything comes from the definitions in [`crate::cli`], so that the manual cannot differ from
//! `--help`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::{ArgAction, CommandFactory as _};

use crate::cli;

/// A command or subcommand, as the manual describes it.
#[derive(Debug)]
struct Description {
    /// All its words: `warren pool create`.
    name: String,
    about: String,
    /// One line for each way to call it.
    usage: Vec<String>,
    arguments: Vec<Explained>,
    options: Vec<Explained>,
    /// Its subcommands, with what they do.
    commands: Vec<(String, String)>,
    /// Examples, and what else `--help` says at its end.
    notes: String,
}

/// An argument or option.
#[derive(Debug)]
struct Explained {
    /// `-n`, `--namespace`; empty for an argument without a dash.
    flags: Vec<String>,
    /// The placeholder of its value; empty if it takes none.
    value: String,
    /// Sentences about it: meaning, values, default, environment variable.
    text: String,
}

/// Writes a page for each command into a directory, which is made if it is missing.
pub fn write_manual(arguments: &cli::Man) -> anyhow::Result<()> {
    let directory: &Path = &arguments.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("make `{}`", directory.display()))?;
    for description in descriptions() {
        let path = directory.join(format!("{}.1", page(&description.name)));
        std::fs::write(&path, manual_page(&description))
            .with_context(|| format!("write `{}`", path.display()))?;
    }
    Ok(())
}

/// Returns the name of a command's page: `warren-pool-create`.
fn page(name: &str) -> String {
    name.replace(' ', "-")
}

/// Returns the visible commands, each before its subcommands.
fn descriptions() -> Vec<Description> {
    let mut root = cli::Cli::command();
    // The usage names whole commands only after this.
    root.build();
    let mut found = Vec::new();
    collect(&mut root, "", &mut found);
    found
}

fn collect(command: &mut clap::Command, parents: &str, found: &mut Vec<Description>) {
    let name = format!("{parents} {}", command.get_name()).trim_start().to_owned();
    found.push(describe(command, &name));
    for subcommand in command.get_subcommands_mut().filter(|subcommand| !subcommand.is_hide_set()) {
        collect(subcommand, &name, found);
    }
}

fn describe(command: &mut clap::Command, name: &str) -> Description {
    let text =
        |styled: Option<&clap::builder::StyledStr>| styled.map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(|line| line.trim().to_owned());
    let visible = || {
        command.get_arguments().filter(|argument| {
            !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
        })
    };
    Description {
        name: name.to_owned(),
        about: text(command.get_long_about().or(command.get_about())),
        usage: usage.filter(|line| !line.is_empty()).collect(),
        arguments: visible().filter(|argument| argument.is_positional()).map(explain).collect(),
        options: visible().filter(|argument| !argument.is_positional()).map(explain).collect(),
        commands: command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set())
            .map(|subcommand| (subcommand.get_name().to_owned(), text(subcommand.get_about())))
            .collect(),
        notes: text(command.get_after_long_help().or(command.get_after_help())),
    }
}

fn explain(argument: &clap::Arg) -> Explained {
    let takes_value = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let mut flags: Vec<String> = argument.get_short().map(|short| format!("-{short}")).into_iter().collect();
    flags.extend(argument.get_long().map(|long| format!("--{long}")));
    flags.extend(argument.get_visible_aliases().into_iter().flatten().map(|alias| format!("--{alias}")));
    let names = argument.get_value_names().unwrap_or_default();
    let value = match names {
        _ if !takes_value => String::new(),
        [] => argument.get_id().as_str().to_uppercase(),
        names => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let mut add = |what: &str, words: Vec<String>| {
        if !words.is_empty() {
            let _ = write!(text, " [{what}: {}]", words.join(", "));
        }
    };
    if takes_value {
        let values = argument.get_possible_values();
        let values = values.iter().filter(|value| !value.is_hide_set());
        add("values", values.map(|value| format!("`{}`", value.get_name())).collect());
        let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
        if !argument.is_hide_default_value_set() {
            add(
                "default",
                defaults.filter(|value| !value.is_empty()).map(|value| format!("`{value}`")).collect(),
            );
        }
    }
    add(
        "environment",
        argument.get_env().map(|name| format!("`{}`", name.to_string_lossy())).into_iter().collect(),
    );
    Explained { flags, value, text }
}

/// Renders a page in the language of `man` (roff).
fn manual_page(description: &Description) -> String {
    let Description { name, about, usage, arguments, options, commands, notes } = description;
    let title = page(name);
    let mut text = format!(
        ".TH {} 1 \"\" \"Warren {}\" \"Warren\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n",
        title.to_uppercase(),
        env!("CARGO_PKG_VERSION"),
        roff(&title),
        roff(about.trim_end_matches('.')),
    );
    usage.iter().for_each(|line| text += &format!("{}\n", roff(line)));
    text += ".fi\n";
    let tagged = |text: &mut String, heading: &str, entries: &[(String, String)]| {
        if !entries.is_empty() {
            let _ = writeln!(text, ".SH {heading}");
        }
        for (tag, meaning) in entries {
            let _ = writeln!(text, ".TP\n{tag}\n{}", roff(meaning));
        }
    };
    let italic = |value: &str| format!("\\fI{}\\fR", roff(value));
    let bold = |flag: &String| format!("\\fB{}\\fR", roff(flag));
    let entries: Vec<_> =
        arguments.iter().map(|argument| (italic(&argument.value), argument.text.clone())).collect();
    tagged(&mut text, "ARGUMENTS", &entries);
    let entries: Vec<_> = options
        .iter()
        .map(|option| {
            let flags = option.flags.iter().map(bold).collect::<Vec<_>>().join(", ");
            let value =
                if option.value.is_empty() { String::new() } else { format!(" {}", italic(&option.value)) };
            (format!("{flags}{value}"), option.text.clone())
        })
        .collect();
    tagged(&mut text, "OPTIONS", &entries);
    let entries: Vec<_> = commands.iter().map(|(command, about)| (bold(command), about.clone())).collect();
    tagged(&mut text, "COMMANDS", &entries);
    if !notes.is_empty() {
        text += ".SH NOTES\n.nf\n";
        notes.lines().for_each(|line| text += &format!("{}\n", roff(line)));
        text += ".fi\n";
    }
    let mut others: Vec<String> = commands.iter().map(|(command, _)| format!("{title}-{command}")).collect();
    others.extend(name.rsplit_once(' ').map(|(parent, _)| page(parent)));
    if !others.is_empty() {
        let others = others.iter().map(|other| format!("\\fB{}\\fR(1)", roff(other)));
        let _ = writeln!(text, ".SH SEE ALSO\n{}", others.collect::<Vec<_>>().join(",\n"));
    }
    text
}

/// Escapes one line of text for roff. What is in backticks becomes bold.
fn roff(line: &str) -> String {
    let mut escaped = String::new();
    let mut bold = false;
    for letter in line.chars() {
        match letter {
            '\\' => escaped += "\\e",
            '-' => escaped += "\\-",
            '`' => {
                bold = !bold;
                escaped += if bold { "\\fB" } else { "\\fR" };
            }
            letter => escaped.push(letter),
        }
    }
    if bold {
        escaped += "\\fR";
    }
    match escaped.starts_with(['.', '\'']) {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference for people who read it on the web or in the repository.
    fn markdown() -> String {
        let mut text = String::from(
            "# The command line\n\n\
             <!-- Generated by `cargo xtask gen --cli` from crates/warren/src/cli.rs; do not edit. -->\n\n\
             `warren COMMAND --help` says the same in a terminal, and `warren man DIRECTORY` writes pages for `man`.\n",
        );
        for Description { name, about, usage, arguments, options, commands, notes } in descriptions() {
            let _ = write!(text, "\n## `{name}`\n\n{about}\n\n```\n{}\n```\n", usage.join("\n"));
            let lists = [
                arguments.iter().map(line_of).collect::<String>(),
                options.iter().map(line_of).collect(),
                commands.iter().map(|(command, about)| format!("- `{command}`: {about}\n")).collect(),
            ];
            lists.iter().filter(|list| !list.is_empty()).for_each(|list| text += &format!("\n{list}"));
            if !notes.is_empty() {
                let _ = write!(text, "\n```text\n{notes}\n```\n");
            }
        }
        text
    }

    fn line_of(explained: &Explained) -> String {
        let Explained { flags, value, text } = explained;
        let words = [flags.join(", "), value.clone()];
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        format!("- `{}`: {text}\n", words.join(" "))
    }

    /// `cargo xtask gen --cli` runs this with `UPDATE_EXPECT=1`, which writes the file.
    #[test]
    fn reference_of_the_command_line_is_up_to_date() {
        let file = expect_test::expect_file!["../../../docs/cli.md"];
        let generated = markdown();
        let writes = std::env::var_os("UPDATE_EXPECT").is_some();
        if writes || file.data() != generated {
            eprintln!("docs/cli.md: `cargo xtask gen --cli` writes it");
            file.assert_eq(&generated);
        }
    }

    #[test]
    fn every_visible_command_has_a_page_with_its_options() {
        let descriptions = descriptions();
        let find = |name: &str| descriptions.iter().find(|found| found.name == name).expect(name);
        let run = manual_page(find("warren run"));
        assert!(run.starts_with(".TH WARREN-RUN 1 "), "{run}");
        assert!(run.contains("\\fB\\-\\-pool\\fR \\fIPOOL\\fR\n"), "{run}");
        assert!(run.contains("\\fBwarren\\fR(1)"), "{run}");
        assert!(manual_page(find("warren")).contains("\\fBwarren\\-run\\fR(1)"));
        find("warren pool create");
        assert!(!descriptions.iter().any(|found| found.name == "warren daemon"), "it is hidden");
        for found in &descriptions {
            let explained = found.arguments.iter().chain(&found.options);
            let silent: Vec<_> = explained.filter(|explained| explained.text.is_empty()).collect();
            assert!(silent.is_empty() && !found.about.is_empty(), "{}: {silent:?}", found.name);
        }
    }

    #[test]
    fn text_is_not_taken_for_requests_of_roff() {
        assert_eq!(roff(".so /etc/passwd"), "\\&.so /etc/passwd");
        assert_eq!(roff(r"a\fB `--x`"), r"a\efB \fB\-\-x\fR");
        assert_eq!(roff("`open"), "\\fBopen\\fR");
    }
}
