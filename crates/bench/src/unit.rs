//! Numbers as people read them.

use serde::Serialize;

/// What a value counts. Values are in seconds, bytes, and counts a second.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Things a second.
    PerSecond,
    /// Bytes a second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// Percent of one CPU.
    Percent,
    /// A plain number.
    Plain,
}

impl Unit {
    /// `value` with three significant digits and its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Seconds => scaled(value, &[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns")]),
            Unit::PerSecond => scaled(value, &[(1e6, " M/s"), (1e3, " k/s"), (1.0, " /s")]),
            Unit::BytesPerSecond => scaled(value, &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s")]),
            Unit::Bytes => scaled(value, &[(1048576.0, " MiB"), (1024.0, " KiB"), (1.0, " B")]),
            Unit::Percent => format!("{value:.2} %"),
            Unit::Plain => digits(value),
        }
    }

    /// `least` to `most`, in the scale of `middle`.
    pub fn show_range(self, least: f64, middle: f64, most: f64) -> String {
        let unit = self.show(middle);
        let (number, name) = unit.split_once(' ').unwrap_or((&unit, ""));
        let scale = if middle == 0.0 { 1.0 } else { middle / number.parse().unwrap_or(middle) };
        format!("{} {name} ({}-{})", number, digits(least / scale), digits(most / scale)).replace("  ", " ")
    }
}

fn scaled(value: f64, scales: &[(f64, &str)]) -> String {
    let fits = scales.iter().find(|(scale, _)| value.abs() >= *scale);
    let (scale, name) = fits.or(scales.last()).copied().unwrap_or((1.0, ""));
    format!("{}{name}", digits(value / scale))
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.09995 => 3,
        v if v >= 0.009995 => 4,
        _ => 5,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_unit() {
        assert_eq!(Unit::Seconds.show(2.91e-7), "291 ns");
        assert_eq!(Unit::Seconds.show(5.5e-6), "5.50 µs");
        assert_eq!(Unit::PerSecond.show(812_345.0), "812 k/s");
        assert_eq!(Unit::BytesPerSecond.show(22.34e9), "22.3 GB/s");
        assert_eq!(Unit::Bytes.show(32.0 * 1024.0), "32.0 KiB");
        assert_eq!(Unit::Plain.show(0.001234), "0.00123");
        assert_eq!(Unit::Percent.show(0.0), "0.00 %");
    }

    #[test]
    fn a_range_has_one_unit() {
        assert_eq!(Unit::PerSecond.show_range(790e3, 812e3, 1.07e6), "812 k/s (790-1070)");
        assert_eq!(Unit::Plain.show_range(0.5, 1.0, 2.0), "1.00 (0.500-2.00)");
        assert_eq!(Unit::Percent.show_range(0.0, 0.0, 0.5), "0.00 % (0-0.500)");
    }
}
