//! The screen of `top`, for 80 columns and more, and the same as plain text.

use super::model::{Row, Totals, View, brief, short};
use super::{Keys, State, Tab};
use crate::error::Error;
use crate::tools::table::{Table, print};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{self, Cell, Paragraph};

type Column = (&'static str, u16, bool, fn(&Row) -> String);

/// Heading, width, whether it is a number, and what is in it. 80 columns with a space between each two.
const PROCESSES: [Column; 11] = [
    ("PID", 7, true, |row| row.pid.to_string()),
    ("COMMAND", 10, false, |row| row.command.clone()),
    ("CONN", 5, true, |row| row.connections.to_string()),
    ("LANE", 5, true, |row| row.lanes.to_string()),
    ("TX/s", 7, true, |row| short(row.tx)),
    ("RX/s", 7, true, |row| short(row.rx)),
    ("CALL/s", 7, true, |row| short(row.calls)),
    ("SPIN/s", 6, true, |row| short(row.spins)),
    ("SLEEP/s", 7, true, |row| short(row.sleeps)),
    ("WAKE", 4, true, |row| brief(row.wake)),
    ("FALL", 5, true, |row| row.fallbacks.to_string()),
];

const CONNECTIONS: [Column; 7] = [
    ("PID:FD", 11, false, |row| format!("{}:{}", row.pid, row.fd)),
    ("COMMAND", 11, false, |row| row.command.clone()),
    ("PEER", 21, false, |row| row.peer.clone()),
    ("MODE", 14, false, |row| row.mode.clone()),
    ("TX/s", 5, true, |row| short(row.tx)),
    ("RX/s", 5, true, |row| short(row.rx)),
    ("CALL/s", 6, true, |row| short(row.calls)),
];

fn rows<'a>(view: &'a View, state: &State) -> (&'static [Column], Vec<&'a Row>) {
    let (columns, rows): (&[Column], _) = match state.tab {
        Tab::Processes => (&PROCESSES, &view.processes),
        Tab::Connections => (&CONNECTIONS, &view.connections),
    };
    let has_filter = |row: &&Row| {
        // Names, PIDs and addresses, and not rates, which are others in each picture.
        let texts = [&row.command, &row.peer, &row.mode, &row.pid.to_string()];
        texts.iter().any(|text| text.contains(&state.filter))
    };
    (columns, rows.iter().filter(has_filter).collect())
}

/// What the keys do, and what the columns are.
const HELP: &str = "\
Keys
  c, Tab      processes, or connections        s   next order
  p, space    stop the picture, go on          r   the other way round
  /           filter: a name, PID or address   Esc in it: none; else leave
  arrows, PgUp, PgDn, Home  scroll             q   leave

Columns
  CONN, LANE  connections, and those on lanes  FALL    stayed on TCP so far
  TX/s, RX/s  bytes in a second                CALL/s  calls that moved them
  SPIN/s      waits that a spin ended          SLEEP/s waits that slept
  WAKE        99 of 100 sleepers ran within that time

Any key: back";

/// The lines above the tables.
fn summary(totals: &Totals) -> [String; 3] {
    let Totals { processes, ends: [ends, lanes], .. } = *totals;
    let device = if totals.active { "" } else { ", device off" };
    let (hours, minutes) = (totals.uptime / 3600, totals.uptime / 60 % 60);
    let why = if totals.reason.is_empty() { String::new() } else { format!(" (most: {})", totals.reason) };
    [
        format!(
            "shunpike up {hours}:{minutes:02}, {processes} processes, {ends} ends: {lanes} on lanes, {} on TCP{device}",
            ends - lanes
        ),
        format!(
            "lanes: {}B/s, {} calls/s, {} spins/s, {} sleeps/s; woken p50 {} p99 {}",
            short(totals.bytes),
            short(totals.calls),
            short(totals.spins),
            short(totals.sleeps),
            brief(totals.wake[0]),
            brief(totals.wake[1])
        ),
        format!(
            "so far: {} fallbacks{why}, {} lanes revoked; DMBs {} of {}",
            totals.fallbacks, totals.revoked, totals.dmbs[0], totals.dmbs[1]
        ),
    ]
}

/// Draws all of it.
pub fn screen(frame: &mut Frame, state: &State, view: &View) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let mut lines: Vec<Line> = summary(&view.totals).into_iter().map(Line::from).collect();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    lines.push(match state.filter.as_str() {
        filter if state.trouble.is_empty() && !filter.is_empty() => {
            Line::styled(format!("only: {filter}"), bold)
        }
        _ => Line::styled(state.trouble.clone(), bold),
    });
    frame.render_widget(Paragraph::new(lines), head);

    if state.keys == Keys::Help {
        return frame.render_widget(Paragraph::new(HELP), body);
    }
    let (columns, rows) = rows(view, state);
    let cell = |(_, _, is_number, text): &Column, row: &Row| {
        let line = Line::from(text(row));
        Cell::from(if *is_number { line.right_aligned() } else { line })
    };
    let heading = columns.iter().map(|(name, _, is_number, _)| {
        let line = Line::from(*name);
        if *is_number { line.right_aligned() } else { line }
    });
    let visible = usize::from(body.height.saturating_sub(1));
    let first = state.scroll.min(rows.len().saturating_sub(visible));
    let shown = rows.iter().skip(first).take(visible);
    let shown = shown.map(|row| widgets::Row::new(columns.iter().map(|column| cell(column, row))));
    // What is wider than 80 columns is for names and addresses.
    let widths = columns.iter().map(|(_, width, is_number, _)| match is_number {
        true => Constraint::Length(*width),
        false => Constraint::Min(*width),
    });
    let table = widgets::Table::new(shown, widths)
        .column_spacing(1)
        .header(widgets::Row::new(heading).style(Style::new().add_modifier(Modifier::REVERSED)));
    frame.render_widget(table, body);

    let order = format!("{:?}", state.sort).to_lowercase();
    let reverse = if state.reverse { ", reversed" } else { "" };
    let paused = if state.paused { " PAUSED" } else { "" };
    let keys = match state.keys {
        Keys::Filter => format!("filter: {}_   Enter: keep it, Esc: none", state.filter),
        _ => format!("q quit  c table  s sort: {order}{reverse}  r reverse  p pause{paused}  h help"),
    };
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

/// Draws all of it for scripts: nothing cut off, no control characters.
pub fn text(view: &View, state: &State) -> Result<(), Error> {
    summary(&view.totals).iter().try_for_each(|line| print(line))?;
    let (columns, rows) = rows(view, state);
    let mut table = Table::new(&columns.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    for row in rows {
        table.row(columns.iter().map(|(_, _, _, text)| text(row)));
    }
    print("")?;
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Sort;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(state: &State, view: &View) -> Vec<String> {
        drawn_on(80, 12, state, view)
    }

    fn drawn_on(width: u16, height: u16, state: &State, view: &View) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| screen(frame, state, view)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(line).collect()
    }

    fn state(tab: Tab) -> State {
        State {
            tab,
            sort: Sort::Calls,
            reverse: false,
            paused: false,
            scroll: 0,
            filter: String::new(),
            keys: Keys::Orders,
            trouble: String::new(),
        }
    }

    fn view() -> View {
        let busy = Row {
            pid: 4194304,
            command: "redis-server".into(),
            connections: 10_000,
            lanes: 9_999,
            tx: 1.26e9,
            rx: 999.0,
            calls: 81_234.0,
            spins: 7.0,
            sleeps: 0.5,
            wake: Some(64),
            fallbacks: 12_345,
            ..Row::default()
        };
        let connection = Row {
            pid: 4194304,
            fd: 1023,
            command: "redis-server".into(),
            peer: "127.127.127.127:65535".into(),
            mode: "TCP 0x0a000001".into(),
            tx: 1.26e9,
            calls: 81_234.0,
            ..Row::default()
        };
        let totals = Totals {
            ends: [5, 3],
            wake: [Some(8), Some(2048)],
            fallbacks: 2,
            reason: "awaiting_peer".into(),
            ..Totals::default()
        };
        View { totals, processes: vec![busy; 9], connections: vec![connection] }
    }

    #[test]
    fn all_columns_fit_into_80() {
        let width = |columns: &[Column]| columns.iter().map(|column| column.1 + 1).sum::<u16>() - 1;
        assert!(width(&PROCESSES) <= 80 && width(&CONNECTIONS) <= 80);
        let lines = drawn(&state(Tab::Processes), &view());
        assert!(lines[0].contains("5 ends: 3 on lanes, 2 on TCP, device off"), "{lines:#?}");
        assert!(lines[1].contains("0 sleeps/s; woken p50 8u p99 2.0m"), "{lines:#?}");
        assert!(lines[2].contains("2 fallbacks (most: awaiting_peer)"), "{lines:#?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines[4]), PROCESSES.map(|column| column.0));
        assert_eq!(
            words(&lines[5]),
            ["4194304", "redis-serv", "10000", "9999", "1.3G", "999", "81K", "7.0", "0.5", "64u", "12345"]
        );
        assert!(lines[11].starts_with("q quit") && lines[11].contains("sort: calls"), "{lines:#?}");
        let lines = drawn(&state(Tab::Connections), &view());
        assert!(
            lines[5].contains("4194304:10") && lines[5].contains("127.127.127.127:65535 TCP 0x0a000001"),
            "{lines:#?}"
        );
    }

    #[test]
    fn the_keys_fit_whatever_they_have_changed() {
        let state = State { sort: Sort::Fallbacks, reverse: true, paused: true, ..state(Tab::Processes) };
        let keys = &drawn(&state, &view())[11];
        assert!(keys.contains("sort: fallbacks, reversed  r reverse  p pause PAUSED  h help"), "{keys}");
    }

    #[test]
    fn a_wider_terminal_is_used_to_its_edge() {
        for tab in [Tab::Processes, Tab::Connections] {
            let lines = drawn_on(140, 12, &state(tab), &view());
            assert_eq!(lines[4].trim_end().len(), 140, "{lines:#?}");
            assert!(lines[5].contains("redis-server"), "the name is whole: {lines:#?}");
        }
    }

    #[test]
    fn a_filter_leaves_the_rows_that_have_it() {
        let mut view = view();
        view.processes[3].command = "nginx".into();
        view.processes[4].pid = 77;
        for (filter, rows) in [("nginx", 1), ("77", 1), ("redis", 8), ("", 9), ("nobody", 0)] {
            let state = State { filter: filter.into(), ..state(Tab::Processes) };
            assert_eq!(super::rows(&view, &state).1.len(), rows, "{filter}");
            assert_eq!(
                drawn(&state, &view)[3].trim_end(),
                if filter.is_empty() { String::new() } else { format!("only: {filter}") }
            );
        }
    }

    #[test]
    fn the_help_fits_into_80_by_24() {
        let lines = drawn_on(80, 24, &State { keys: Keys::Help, ..state(Tab::Processes) }, &view());
        for line in HELP.lines() {
            assert!(
                line.len() <= 80 && lines.iter().any(|shown| shown.trim_end() == line),
                "{line}: {lines:#?}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_reached_by_scrolling() {
        let mut view = view();
        for (pid, row) in (1..).zip(&mut view.processes) {
            row.pid = pid;
        }
        let first = |scroll| {
            let lines = drawn(&State { scroll, ..state(Tab::Processes) }, &view);
            lines[5].split_whitespace().next().unwrap_or_default().to_owned()
        };
        assert_eq!((first(0), first(2), first(99)), ("1".into(), "3".into(), "4".into()), "six fit");
    }
}
