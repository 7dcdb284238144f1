//! A Debian package: an `ar` archive of a version file, a control archive and a data archive.

use anyhow::Result;

use crate::archive::{Entry, gzip, tar};

/// The contents of the package.
pub struct Contents {
    pub version: &'static str,
    pub binary: Vec<u8>,
    pub license: Vec<u8>,
    pub unit: Vec<u8>,
    /// The manual and the completions, with their directories.
    pub manual: Vec<Entry>,
    /// The time of every entry.
    pub epoch: u64,
}

/// Returns the package's file name.
pub fn file_name(version: &str) -> String {
    format!("warren_{version}_{}.deb", architecture())
}

/// Returns Debian's name of the architecture that we build for.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// Returns the package. Removing it stops the service and keeps the data, as Debian's policy
/// requires. Purging data is left to `warren down` and the user, because sandboxes may contain
/// work.
pub fn package(contents: Contents) -> Result<Vec<u8>> {
    let Contents { version, binary, license, unit, manual, epoch } = contents;
    let pages: usize = manual.iter().filter_map(|entry| entry.content.as_ref()).map(Vec::len).sum();
    let size = (binary.len() + license.len() + unit.len() + pages).div_ceil(1024);
    let control = format!(
        "Package: warren\nVersion: {version}\nArchitecture: {}\nMaintainer: Warren <maintainers@warren.dev>\n\
         Installed-Size: {size}\nSection: admin\nPriority: optional\nRecommends: uidmap\nHomepage: https://warren.dev\n\
         Description: isolated, stateful sandboxes for AI agents\n \
         One static binary: an API server for the agent-sandbox resources, its\n controllers, and a node that runs sandboxes on this machine.\n",
        architecture()
    );
    let reload = "#!/bin/sh\nset -e\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n";
    let stop = "#!/bin/sh\nset -e\n[ ! -d /run/systemd/system ] || systemctl stop warren.service || true\n";
    let control = gzip(&tar(
        vec![
            Entry::file("./control", 0o644, control),
            Entry::file("./postinst", 0o755, reload),
            Entry::file("./postrm", 0o755, reload),
            Entry::file("./prerm", 0o755, stop),
        ],
        epoch,
    )?)?;
    let directories = ["usr/", "usr/bin/", "usr/lib/", "usr/lib/systemd/", "usr/lib/systemd/system/"];
    // `usr/share/` is among those of the manual.
    let documents = ["usr/share/doc/", "usr/share/doc/warren/"];
    let mut data: Vec<Entry> =
        directories.iter().chain(&documents).map(|path| Entry::directory(format!("./{path}"))).collect();
    data.push(Entry::directory("./"));
    data.push(Entry::file("./usr/bin/warren", 0o755, binary));
    data.push(Entry::file("./usr/lib/systemd/system/warren.service", 0o644, unit));
    data.push(Entry::file("./usr/share/doc/warren/copyright", 0o644, license));
    data.extend(manual.into_iter().map(|entry| Entry {
        // Debian keeps `site-functions` for the machine's administrator.
        path: entry.path.replace("zsh/site-functions", "zsh/vendor-completions"),
        ..entry
    }));
    let data = gzip(&tar(data, epoch)?)?;

    let mut package = b"!<arch>\n".to_vec();
    for (name, bytes) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control), ("data.tar.gz", &data)]
    {
        package.extend(
            format!("{name:<16}{epoch:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", bytes.len()).bytes(),
        );
        package.extend(bytes);
        if bytes.len() % 2 == 1 {
            package.push(b'\n');
        }
    }
    Ok(package)
}
