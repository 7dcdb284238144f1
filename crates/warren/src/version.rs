//! Runs `warren version`.

use serde_json::json;
use warren_local::BuildInfo;

use crate::cli::{self, Format};

/// The build information from the build script.
pub const BUILD: BuildInfo =
    BuildInfo { git_commit: env!("WARREN_GIT_COMMIT"), build_date: env!("WARREN_BUILD_DATE") };

/// Prints the version and the supported API.
pub fn version(arguments: &cli::Version) {
    let version = env!("CARGO_PKG_VERSION");
    match arguments.output.output {
        Format::Text => println!("warren {version}"),
        Format::Json => {
            let groups = [warren_api::GROUP, warren_api::EXTENSIONS_GROUP];
            let api_versions = groups.map(|group| format!("{group}/{}", warren_api::VERSION));
            let BuildInfo { git_commit, build_date } = BUILD;
            let line = json!({ "version": version, "gitCommit": git_commit, "buildDate": build_date, "apiVersions": api_versions });
            println!("{line}");
        }
    }
}
