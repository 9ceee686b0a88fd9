//! The results as a picture: how many times better than kernel TCP, on a logarithmic scale.

use crate::report::{Report, Row};
use crate::side::Side;
use crate::unit::{Unit, digits};
use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

const WIDTH: f64 = 1040.0;
/// Where the bars begin and end: left of it titles, right of it values.
const LEFT: f64 = 350.0;
const RIGHT: f64 = 860.0;
const TOP: f64 = 118.0;
const BAR: f64 = 9.0;
const GAP: f64 = 14.0;
/// What the scale spans at the least.
const SPAN: (f64, f64) = (0.5, 8.0);

/// So many lines of the grid have labels.
const LABELS: usize = 10;

const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const GRID: &str = "#e4e7eb";
const KERNEL: &str = "#d64545";
const GOAL: &str = "#f0b429";
const SIDES: [(Side, &str); 3] =
    [(Side::Unix, "#9aa5b1"), (Side::Copy, "#62b0e8"), (Side::NoCopy, "#0b69a3")];

/// The whole picture, as SVG.
pub fn draw(report: &Report) -> String {
    // Counts and percents are no matter of more or less speed.
    let is_speed =
        |row: &&Row| !matches!(row.unit, Unit::Plain | Unit::Percent) && row.gain(Side::NoCopy).is_some();
    let rows: Vec<&Row> = report.rows.iter().filter(is_speed).collect();
    let scale = Scale::over(&rows);
    let heights: Vec<f64> = rows.iter().map(|row| bars(row).len() as f64 * BAR + GAP).collect();
    let bottom = TOP + heights.iter().sum::<f64>().max(GAP);
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as u32, (bottom + 70.0) as u32))
        .set("width", WIDTH as u32)
        .set("font-family", "system-ui, sans-serif")
        .set("font-size", 12)
        .set("fill", INK)
        .add(Rectangle::new().set("width", "100%").set("height", "100%").set("fill", "#ffffff"))
        .add(
            text(24.0, 34.0, "Shunpike beside kernel TCP on loopback")
                .set("font-size", 20)
                .set("font-weight", 600),
        )
        .add(text(24.0, 54.0, &report.machine.show()).set("fill", FAINT))
        .add(legend())
        .add(grid(&scale, bottom));
    let mut y = TOP;
    for (row, height) in rows.iter().zip(heights) {
        document = document.add(group(row, y, &scale));
        y += height;
    }
    document.add(limits(report, bottom + 48.0)).to_string()
}

/// Positions of factors.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    fn over(rows: &[&Row]) -> Self {
        let gains = rows.iter().flat_map(|row| bars(row).into_iter().map(|(_, _, gain)| gain));
        let (least, most) = gains.fold(SPAN, |(least, most), gain| (gain.min(least), gain.max(most)));
        // Whole powers of two, so that the last line of the grid closes the picture.
        Self { least: least.log2().floor().exp2(), most: most.log2().ceil().exp2() }
    }

    fn x(&self, factor: f64) -> f64 {
        let share = (factor / self.least).log2() / (self.most / self.least).log2();
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn lines(&self) -> impl Iterator<Item = f64> {
        let steps = (self.most / self.least).log2().round() as i32;
        let least = self.least;
        (0..=steps).map(move |step| least * f64::from(step).exp2())
    }
}

fn bars(row: &Row) -> Vec<(Side, &'static str, f64)> {
    SIDES.iter().filter_map(|(side, colour)| row.gain(*side).map(|gain| (*side, *colour, gain))).collect()
}

fn legend() -> Group {
    let mut group = Group::new();
    let mut x = LEFT - 150.0;
    for (side, colour) in SIDES {
        let name = match side {
            Side::Unix => "UNIX sockets",
            Side::Copy => "Shunpike, copy mode",
            _ => "Shunpike, no-copy",
        };
        group = group
            .add(
                Rectangle::new()
                    .set("x", x)
                    .set("y", 70)
                    .set("width", 12)
                    .set("height", BAR)
                    .set("fill", colour),
            )
            .add(text(x + 18.0, 79.0, name));
        x += 28.0 + 7.0 * name.len() as f64;
    }
    group = group.add(diamond(x + 6.0, 74.5)).add(text(x + 18.0, 79.0, "SMC-D in the kernel (published)"));
    x += 215.0;
    group.add(tick(x + 6.0, 68.0, 13.0)).add(text(x + 14.0, 79.0, "to reach"))
}

fn grid(scale: &Scale, bottom: f64) -> Group {
    let mut group = Group::new();
    let lines: Vec<f64> = scale.lines().collect();
    for factor in lines.iter().copied() {
        let (x, is_tcp) = (scale.x(factor), factor == 1.0);
        let line = Line::new()
            .set("x1", x)
            .set("x2", x)
            .set("y1", TOP - 8.0)
            .set("y2", bottom)
            .set("stroke", if is_tcp { INK } else { GRID })
            .set("stroke-width", 1);
        // Every line, or every second one and so on, counted from TCP's.
        let every = lines.len().div_ceil(LABELS) as i32;
        let label = match factor.log2().round() as i32 {
            0 => "TCP".to_owned(),
            step if step % every != 0 => String::new(),
            step if step < 0 => format!("1/{}", 1u64 << -step),
            step => format!("{}x", 1u64 << step),
        };
        group =
            group.add(line).add(text(x, TOP - 14.0, &label).set("fill", FAINT).set("text-anchor", "middle"));
    }
    group
}

/// One row: its title, its bars from TCP's line, the value at the end.
fn group(row: &Row, top: f64, scale: &Scale) -> Group {
    let bars = bars(row);
    let middle = top + bars.len() as f64 * BAR / 2.0 + 4.0;
    let mut group = Group::new().add(text(LEFT - 12.0, middle, &row.title).set("text-anchor", "end"));
    let mut y = top;
    for (side, colour, gain) in &bars {
        let (one, end) = (scale.x(1.0), scale.x(*gain));
        let said = format!(
            "{}: {}, {} times TCP",
            side.title(),
            row.unit.show(row.sides[side].median),
            digits(*gain)
        );
        let bar = Rectangle::new()
            .set("x", one.min(end))
            .set("y", y)
            .set("width", (one - end).abs().max(1.0))
            .set("height", BAR - 1.0)
            .set("fill", *colour)
            .add(Title::new(said));
        group = group.add(bar);
        y += BAR;
    }
    let height = bars.len() as f64 * BAR;
    for goal in row.goals.iter().filter_map(|goal| row.better_by(goal.ratio?)) {
        group = group.add(tick(scale.x(goal), top - 2.0, height + 3.0));
    }
    if let Some(seeds) = row.seeds.and_then(|seeds| row.better_by(seeds.ratio?)) {
        group = group.add(diamond(scale.x(seeds), top + height / 2.0 - 0.5));
    }
    let (ours, tcp) = (row.sides[&Side::NoCopy].median, row.sides[&Side::Tcp].median);
    let gain = row.gain(Side::NoCopy).unwrap_or(1.0);
    let said = format!("{}x", digits(gain));
    let values = format!("{} from {}", row.unit.show(ours), row.unit.show(tcp));
    group
        .add(
            text(scale.x(gain).max(scale.x(1.0)) + 6.0, y - 1.5, &said)
                .set("font-weight", 600)
                .set("font-size", 11),
        )
        .add(
            text(WIDTH - 12.0, middle, &values)
                .set("text-anchor", "end")
                .set("fill", FAINT)
                .set("font-size", 11),
        )
}

/// What the machine itself can do, in the last line.
fn limits(report: &Report, y: f64) -> Text {
    let limits = report.rows.iter().filter_map(|row| {
        row.sides.get(&Side::Machine).map(|values| format!("{} {}", row.name, row.unit.show(values.median)))
    });
    let all: Vec<String> = limits.collect();
    let what = "a cache line from core to core, a memcpy ring between two processes";
    let said = if all.is_empty() {
        String::new()
    } else {
        format!("The machine's limits ({what}): {}", all.join(", "))
    };
    text(24.0, y, &said).set("fill", FAINT).set("font-size", 10)
}

fn diamond(x: f64, y: f64) -> Rectangle {
    Rectangle::new()
        .set("x", x - 3.5)
        .set("y", y - 3.5)
        .set("width", 7)
        .set("height", 7)
        .set("transform", format!("rotate(45 {x} {y})"))
        .set("fill", KERNEL)
        .set("stroke", "#ffffff")
}

fn tick(x: f64, y: f64, height: f64) -> Rectangle {
    Rectangle::new().set("x", x - 1.5).set("y", y).set("width", 3).set("height", height).set("fill", GOAL)
}

fn text(x: f64, y: f64, said: &str) -> Text {
    Text::new(said).set("x", x).set("y", y)
}
