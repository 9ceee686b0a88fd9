//! What a row is to reach.

use crate::unit::Unit;

/// Whether a larger or a smaller value is the better one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// A rate.
    More,
    /// A latency, a cost.
    Less,
}

/// A bound: at least this where more is better, else at most this.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Goal {
    /// Of the value on TCP.
    OfTcp(f64),
    /// Of the value on UNIX sockets.
    OfUnix(f64),
    /// Of the best memcpy ring.
    OfRing(f64),
    /// Of a cache line's hand-over.
    OfLine(f64),
    /// By itself.
    Value(f64),
}

/// What a value is compared with; `None` where it was not measured.
#[derive(Copy, Clone, Debug, Default)]
pub struct Yardsticks {
    /// The same row on TCP.
    pub tcp: Option<f64>,
    /// The same row on UNIX sockets.
    pub unix: Option<f64>,
    /// Bytes a second.
    pub ring: Option<f64>,
    /// Seconds.
    pub line: Option<f64>,
}

impl Goal {
    /// Whether `value` reaches it; `None` where what it is compared with was not measured.
    pub fn is_reached(self, value: f64, better: Better, sticks: &Yardsticks) -> Option<bool> {
        let bound = match self {
            Goal::OfTcp(part) => part * sticks.tcp?,
            Goal::OfUnix(part) => part * sticks.unix?,
            Goal::OfRing(part) => part * sticks.ring?,
            Goal::OfLine(part) => part * sticks.line?,
            Goal::Value(bound) => bound,
        };
        Some(match better {
            Better::More => value >= bound,
            Better::Less => value <= bound,
        })
    }

    /// For people: a number by itself is to TCP.
    pub fn show(self, unit: Unit) -> String {
        match self {
            Goal::OfTcp(part) => part.to_string(),
            Goal::OfUnix(part) => format!("{part} UNIX"),
            Goal::OfRing(part) => format!("{part} ring"),
            Goal::OfLine(part) => format!("{part} line"),
            Goal::Value(bound) => unit.show(bound),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_bounds_from_below_or_above() {
        let sticks = Yardsticks { tcp: Some(10.0), unix: None, ring: Some(20.0), line: Some(1.0) };
        assert_eq!(Goal::OfTcp(2.0).is_reached(20.0, Better::More, &sticks), Some(true));
        assert_eq!(Goal::OfTcp(2.0).is_reached(19.9, Better::More, &sticks), Some(false));
        assert_eq!(Goal::OfTcp(0.1).is_reached(1.0, Better::Less, &sticks), Some(true));
        assert_eq!(Goal::OfLine(2.0).is_reached(2.1, Better::Less, &sticks), Some(false));
        assert_eq!(Goal::OfRing(0.85).is_reached(17.0, Better::More, &sticks), Some(true));
        assert_eq!(
            Goal::OfUnix(5.0).is_reached(17.0, Better::More, &sticks),
            None,
            "nothing to compare with"
        );
    }
}
