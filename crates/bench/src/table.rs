//! The results as a table, and the list of what can be measured.

use crate::goal::Better;
use crate::report::{Judged, Report, Row};
use crate::side::Side;
use crate::unit::digits;
use crate::workloads::Workload;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use std::io::{self, Write};

/// Prints the table, the notes and what was skipped.
pub fn show(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (runs, seconds) = (report.runs, report.seconds);
    writeln!(out, "Shunpike {} on a {}", report.version, report.machine.show())?;
    writeln!(
        out,
        "Medians (least-most) of {runs} runs of {seconds} s, the sides in turn. Ratio: no-copy to TCP. SMC-D: that of the\nkernel, as published. Target and minimum are such ratios, where no other measure is named.\n"
    )?;
    if report.machine.is_busy() {
        writeln!(out, "{BUSY}\n")?;
    }
    let is_limit = |row: &&Row| row.sides.contains_key(&Side::Machine);
    let limits: Vec<&Row> = report.rows.iter().filter(is_limit).collect();
    if !limits.is_empty() {
        let mut table = new(&["The machine's limits", ""]);
        for row in limits {
            table.add_row(vec![Cell::new(&row.title), right(value(row, Side::Machine))]);
        }
        writeln!(out, "{}\n", text(&table))?;
    }
    let mut table =
        new(&["Workload", "TCP", "UNIX", "copy", "no-copy", "Ratio", "SMC-D", "Target", "Minimum"]);
    for row in report.rows.iter().filter(|row| !is_limit(row)) {
        let mark = if row.notes.is_empty() { "" } else { " *" };
        let mut cells = vec![Cell::new(format!("{}{mark}", row.title))];
        cells.extend([Side::Tcp, Side::Unix, Side::Copy, Side::NoCopy].map(|side| right(value(row, side))));
        cells.push(right(row.ratio.map_or("".into(), digits)));
        cells.push(right(row.seeds.map_or("", |seeds| seeds.said).to_owned()));
        cells.push(right(
            row.goals.iter().map(|goal| judged(goal, row.better)).collect::<Vec<_>>().join(", "),
        ));
        cells.push(right(row.floor.iter().map(|floor| judged(floor, row.better)).collect::<String>()));
        table.add_row(cells);
    }
    if !table.is_empty() {
        writeln!(out, "{}", text(&table))?;
    }
    for row in report.rows.iter().filter(|row| !row.notes.is_empty()) {
        writeln!(out, "* {}: {}", row.name, row.notes.join("; "))?;
    }
    for skipped in &report.skipped {
        writeln!(
            out,
            "skipped {}: no {} here; the package {} brings it",
            skipped.name, skipped.program, skipped.package
        )?;
    }
    if report.interrupted {
        writeln!(out, "interrupted: the rounds are not complete")?;
    }
    Ok(())
}

/// Prints names, titles, sides and what is missing.
pub fn list(workloads: &[&Workload]) -> io::Result<()> {
    let mut table = new(&["Name", "Workload", "Sides", "Missing"]);
    for workload in workloads {
        let sides: Vec<&str> = workload.sides.iter().map(|side| side.title()).collect();
        let missing: Vec<&str> = workload.missing().iter().map(|program| program.package).collect();
        let title = workload.title.trim_end_matches([':', ',']);
        table.add_row([workload.name, title, &sides.join(" "), &missing.join(" ")]);
    }
    writeln!(io::stdout(), "{}", text(&table))
}

/// Above figures that a loaded machine made.
pub const BUSY: &str = "Others were using this machine: read the ratios, and not too closely.";

/// A table with these columns.
pub fn new(heading: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.iter().map(Cell::new));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at > 0 && heading.len() > 4 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Its lines.
pub fn text(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn value(row: &Row, side: Side) -> String {
    match row.sides.get(&side) {
        None => String::new(),
        Some(values) if values.values.len() == 1 => row.unit.show(values.median),
        Some(values) => row.unit.show_range(values.min, values.median, values.max),
    }
}

fn judged(goal: &Judged, better: Better) -> String {
    let sign = if better == Better::Less { "≤" } else { "≥" };
    let mark = match goal.reached {
        Some(true) => " ✓",
        Some(false) => " ✗",
        None => "",
    };
    format!("{sign}{}{mark}", goal.goal)
}
