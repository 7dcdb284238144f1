//! Prints the settings (`warren config show`).

use serde_json::{Value, json};

use super::{Config, KEYS};
use crate::cli::{Format, Output};
use crate::sandboxes::list::{cell, table};

/// Prints every setting, its value and its origin.
pub fn show(config: &Config, output: Output) {
    let rows = KEYS.iter().map(|key| {
        let (value, origin) = config.get(key.name);
        json!({ "key": key.name, "value": value, "origin": origin.to_string() })
    });
    let rows: Vec<Value> = rows.collect();
    match output.output {
        Format::Json => println!("{}", json!({ "settings": rows })),
        Format::Text => {
            let rows: Vec<[String; 3]> =
                rows.iter().map(|row| ["key", "value", "origin"].map(|name| cell(&row[name]))).collect();
            print!("{}", table(&["KEY", "VALUE", "FROM"], &rows));
        }
    }
}
