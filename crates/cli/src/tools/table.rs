//! Output: aligned columns without lines, as the tools of SMC print them.

use crate::error::Error;
use comfy_table::{Cell, ContentArrangement, presets};
use serde_json::Value;
use std::io::{self, Write};

/// Rows under a heading.
pub struct Table(comfy_table::Table);

impl Table {
    /// A table with this heading.
    pub fn new(heading: &[&str]) -> Self {
        let mut table = Self::headless();
        table.0.set_header(heading.iter().map(Cell::new));
        table
    }

    /// A table of names and values.
    pub fn headless() -> Self {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        Self(table)
    }

    /// Adds a row.
    pub fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.add_row(cells.into_iter().map(Cell::new));
    }

    /// Writes the table to standard output.
    pub fn print(mut self) -> Result<(), Error> {
        for column in self.0.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let lines: Vec<String> = self.0.lines().map(|line| line.trim_end().to_owned()).collect();
        print(&lines.join("\n"))
    }
}

/// Writes `text` and a line end to standard output.
pub fn print(text: &str) -> Result<(), Error> {
    writeln!(io::stdout(), "{text}").map_err(Error::Output)
}

/// Writes `value` to standard output.
pub fn print_json(value: &Value) -> Result<(), Error> {
    print(&format!("{value:#}"))
}
