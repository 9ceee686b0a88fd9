//! Output: aligned columns without lines, as the tools of SMC print them.

use crate::error::Error;
use crate::standard;
use comfy_table::{Cell, ContentArrangement, presets};
use serde::Serialize;
use serde_json::Value;
use shunpike_broker::text::is_order;
use std::borrow::Cow;
use std::io::Write;

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
        if lines.is_empty() { Ok(()) } else { print(&lines.join("\n")) }
    }
}

/// Writes `text` and a line end to standard output.
pub fn print(text: &str) -> Result<(), Error> {
    writeln!(standard::output()?, "{}", plain(text)).map_err(Error::Output)
}

/// Text that gives a terminal no orders: names and environments in it are those of other users' processes.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_order = |c: char| is_order(c) && c != '\n' && c != '\t';
    if text.contains(is_order) { text.replace(is_order, "?").into() } else { text.into() }
}

/// Prints a report as the broker writes it.
pub fn print_report(report: &impl Serialize) -> Result<(), Error> {
    print(&serde_json::to_string(report).expect("reports are structs of text and numbers"))
}

/// Prints JSON that is made for people, too.
pub fn print_json(value: &Value) -> Result<(), Error> {
    print(&format!("{value:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_printed_is_an_order_to_a_terminal() {
        let path = "it uses the broker at /tmp/\u{1b}]0;x\u{7}\u{9b}2J\r";
        assert_eq!(plain(&format!("{path}\nä")), "it uses the broker at /tmp/?]0;x??2J?\nä");
        assert_eq!(plain("sl\u{202e}gpj"), "sl?gpj");
        assert!(matches!(plain("two\nlines"), Cow::Borrowed(_)));
    }
}
