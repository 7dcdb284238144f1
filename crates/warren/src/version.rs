//! `warren version`.

use serde_json::json;

use crate::cli::{self, Format};

/// Prints which version this is and which API it speaks.
pub fn version(arguments: &cli::Version) {
    let version = env!("CARGO_PKG_VERSION");
    match arguments.output.output {
        Format::Text => println!("warren {version}"),
        Format::Json => {
            let groups = [warren_api::GROUP, warren_api::EXTENSIONS_GROUP];
            let api_versions = groups.map(|group| format!("{group}/{}", warren_api::VERSION));
            println!("{}", json!({ "version": version, "apiVersions": api_versions }));
        }
    }
}
