//! The curves as a table, and as a picture.

use super::{Curves, Point};
use crate::side::Side;
use crate::table;
use crate::unit::{Unit, digits};
use std::io::{self, Write};
use svg::Document;
use svg::node::element::{Group, Line, Polyline, Rectangle, Text};

impl Curves {
    fn of(&self, subject: &str, share: u32, side: Side) -> Option<&Point> {
        self.points.iter().find(|point| (point.subject, point.share, point.side) == (subject, share, side))
    }

    /// CPU time of both ends for a request, to TCP's at the same share.
    fn to_tcp(&self, point: &Point) -> Option<f64> {
        self.of(point.subject, point.share, Side::Tcp).map(|tcp| point.both / tcp.both)
    }
}

/// Prints the table.
pub fn table(curves: &Curves) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (runs, seconds) = (curves.runs, curves.seconds);
    writeln!(out, "Load at shares of TCP's highest rate, on a {}", curves.machine.show())?;
    writeln!(
        out,
        "Medians of {runs} runs of {seconds} s, the sides in turn. CPU: of both ends for a request, and its ratio to TCP's;\n\
         all: of the whole machine. Latencies are from when a request was due.\n"
    )?;
    if curves.machine.is_busy() {
        writeln!(out, "{}\n", table::BUSY)?;
    }
    let heading = ["Load", "Share", "Side", "Rate", "CPU", "Ratio", "all", "p50", "p99", "p99.9"];
    let mut table = table::new(&heading);
    for point in &curves.points {
        let [p50, p99, p999] = point.latencies.map(|seconds| Unit::Seconds.show(seconds));
        table.add_row([
            point.subject.to_owned(),
            format!("{} %", point.share),
            point.side.title().to_owned(),
            Unit::PerSecond.show(point.rate),
            Unit::Seconds.show(point.both),
            curves.to_tcp(point).map_or(String::new(), digits),
            Unit::Seconds.show(point.machine),
            p50,
            p99,
            p999,
        ]);
    }
    if !table.is_empty() {
        writeln!(out, "{}", table::text(&table))?;
    }
    for failed in &curves.failed {
        writeln!(out, "not measured: {failed}")?;
    }
    Ok(())
}

const WIDTH: f64 = 960.0;
/// Of one panel.
const PANEL: (f64, f64) = (400.0, 220.0);
const LEFT: f64 = 60.0;
const TOP: f64 = 90.0;
/// From one panel to the next.
const STEP: (f64, f64) = (470.0, 290.0);

const SIDES: [(Side, &str); 3] = [(Side::Tcp, "#d64545"), (Side::Unix, "#9aa5b1"), (Side::NoCopy, "#0b69a3")];

/// What of a point is drawn.
type Value<'a> = &'a dyn Fn(&Point) -> f64;

/// Draws CPU time and p99 of each subject over the share, as SVG.
pub fn draw(curves: &Curves) -> String {
    let mut subjects: Vec<&str> = curves.points.iter().map(|point| point.subject).collect();
    subjects.dedup();
    let height = TOP + STEP.1 * subjects.len() as f64;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as u32, height as u32))
        .set("width", WIDTH as u32)
        .set("font-family", "system-ui, sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "#ffffff"))
        .add(text(24.0, 34.0, "Load at shares of kernel TCP's highest rate").set("font-size", 20))
        .add(text(24.0, 54.0, &curves.machine.show()).set("fill", "#7b8794"));
    for (at, (side, colour)) in SIDES.iter().enumerate() {
        let x = LEFT + 120.0 * at as f64;
        document = document
            .add(
                Rectangle::new()
                    .set("x", x)
                    .set("y", 66)
                    .set("width", 12)
                    .set("height", 4)
                    .set("fill", *colour),
            )
            .add(text(x + 18.0, 72.0, side.title()));
    }
    let cpu = |point: &Point| point.both * 1e6;
    let p99 = |point: &Point| point.latencies[1] * 1e6;
    for (row, subject) in subjects.iter().enumerate() {
        let y = TOP + STEP.1 * row as f64;
        let panels: [(&str, Value); 2] =
            [("CPU time of both ends for a request, µs", &cpu), ("p99, µs", &p99)];
        for (column, (title, of)) in panels.into_iter().enumerate() {
            let x = LEFT + STEP.0 * column as f64;
            document = document.add(panel(curves, subject, &format!("{subject}: {title}"), (x, y), of));
        }
    }
    document.to_string()
}

/// One panel, whose scale is logarithmic.
fn panel(curves: &Curves, subject: &str, title: &str, at: (f64, f64), of: Value) -> Group {
    let points: Vec<&Point> = curves.points.iter().filter(|point| point.subject == subject).collect();
    let values = || points.iter().map(|point| of(point).max(0.1).log10());
    let low = values().fold(f64::MAX, f64::min).floor();
    let high = values().fold(f64::MIN, f64::max).ceil().max(low + 1.0);
    let x = |share: u32| at.0 + PANEL.0 * f64::from(share) / 100.0;
    let y = |value: f64| at.1 + 20.0 + PANEL.1 * (high - value.max(0.1).log10()) / (high - low);
    let mut group = Group::new().add(text(at.0, at.1 + 10.0, title).set("font-weight", 600));
    for power in low as i32..=high as i32 {
        let value = 10f64.powi(power);
        group = group
            .add(line((at.0, y(value)), (at.0 + PANEL.0, y(value))))
            .add(text(at.0 - 8.0, y(value) + 4.0, &digits(value)).set("text-anchor", "end"));
    }
    for share in super::SHARES {
        group = group
            .add(text(x(share), at.1 + PANEL.1 + 36.0, &format!("{share} %")).set("text-anchor", "middle"));
    }
    for (side, colour) in SIDES {
        let of_side = points.iter().filter(|point| point.side == side);
        let path: Vec<String> =
            of_side.map(|point| format!("{:.1},{:.1}", x(point.share), y(of(point)))).collect();
        group = group.add(
            Polyline::new()
                .set("points", path.join(" "))
                .set("fill", "none")
                .set("stroke", colour)
                .set("stroke-width", 2),
        );
    }
    group
}

fn line(from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new().set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1).set("stroke", "#e4e7eb")
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y)
}
