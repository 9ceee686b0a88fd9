//! The metrics by name. Names stay as they are: dashboards ask for them.

use super::{Figures, Served};
use crate::report::{Traffic, WakeUps};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::{Debug, Error};

/// Upper bounds of the classes of calls, bytes; the last has none.
const CLASSES: [f64; 8] = [8192.0, 16384.0, 32768.0, 65536.0, 131_072.0, 262_144.0, 524_288.0, f64::INFINITY];

/// One of several values of a metric, by its labels.
type Labelled = (Vec<(&'static str, String)>, u64);

/// The metrics as OpenMetrics text.
pub fn of(figures: &Figures, served: Served) -> String {
    let mut registry = Registry::with_prefix("shunpike");
    let connections = &figures.stats.connections;
    let by_role = |of: fn(&crate::report::RoleCounts) -> u64| {
        let roles = [("client", &connections.client), ("server", &connections.server)];
        roles.map(|(role, counts)| (vec![("role", role.to_owned())], of(counts))).to_vec()
    };
    let mut fallbacks: Vec<Labelled> = Vec::new();
    for reason in &connections.reasons {
        for (role, count) in [("client", reason.client), ("server", reason.server)] {
            if count > 0 {
                fallbacks.push((vec![("role", role.to_owned()), ("reason", reason.key.clone())], count));
            }
        }
    }
    let device = &figures.info.device;
    let [lanes, plain] = figures.open;
    let way = |way: &str, value| (vec![("path", way.to_owned())], value);
    let settings = figures
        .settings
        .iter()
        .map(|setting| (vec![("name", setting.name.clone())], setting.value))
        .collect();
    let build = vec![(vec![("version", figures.info.version.clone())], 1)];
    let one = |value| vec![(Vec::new(), value)];

    use MetricType::{Counter, Gauge};
    for (name, help, kind, values) in [
        ("build", "The broker's version", Gauge, build),
        ("uptime_seconds", "Seconds since the broker began", Gauge, one(figures.info.uptime)),
        ("device_active", "Whether the device opens lanes", Gauge, one(device.active.into())),
        ("programs", "Processes with a session", Gauge, one(figures.info.sessions)),
        (
            "connections",
            "Connection ends that are open, by the path of their bytes",
            Gauge,
            vec![way("lane", lanes), way("tcp", plain)],
        ),
        ("nominations_waiting", "Connection ends that wait for their peer", Gauge, one(figures.info.waiting)),
        ("link_groups", "Pairs of processes", Gauge, one(device.link_groups)),
        ("dmbs", "DMBs registered", Gauge, one(device.dmbs_cnt)),
        ("dmbs_limit", "DMBs that there may be", Gauge, one(device.max_dmbs)),
        ("setting", "Settings, by name", Gauge, settings),
        (
            "fallback_connections",
            "Connection ends that ended on TCP, or are there now, by reason",
            Gauge,
            fallbacks,
        ),
        ("connections_handled", "Connection ends that programs made", Counter, by_role(|role| role.handled)),
        (
            "connections_upgraded",
            "Connection ends that have been on a lane",
            Counter,
            by_role(|role| role.smc),
        ),
        (
            "lanes_revoked",
            "Ends that sent their connection back to TCP, where it goes on",
            Counter,
            one(connections.revoked),
        ),
        ("handshake_errors", "Handshakes that failed", Counter, one(connections.handshake_errors)),
        ("sleeps", "Waits for news that ended in a sleep", Counter, one(figures.stats.sleeps)),
        ("spins", "Waits for news that a spin ended", Counter, one(figures.stats.spins)),
        (
            "held_back",
            "Times that TCP_CORK or MSG_MORE held bytes back on a lane",
            Counter,
            one(figures.stats.corked),
        ),
        ("scrapes", "Times that metrics were asked for", Counter, one(served.scrapes)),
        ("scrapes_turned_away", "Scrapers that found too many others", Counter, one(served.turned_away)),
        ("scrapes_late", "Scrapers that took too long", Counter, one(served.late)),
    ] {
        registry.register_collector(Box::new(Numbers { name, help, kind, values }));
    }
    let directions = [("tx", figures.stats.tx.clone()), ("rx", figures.stats.rx.clone())];
    registry.register_collector(Box::new(Sizes(directions)));
    registry.register_collector(Box::new(Latencies(figures.stats.wakeups.clone())));
    let mut text = String::new();
    // A String takes whatever is written.
    let _ = text::encode(&mut text, &registry);
    text
}

/// Counters or gauges of one name.
#[derive(Debug)]
struct Numbers {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    values: Vec<Labelled>,
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        for (labels, value) in &self.values {
            let mut one = metric.encode_family(labels)?;
            match self.kind {
                MetricType::Counter => one.encode_counter::<NoLabelSet, _, u64>(value, None)?,
                _ => one.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX))?,
            }
        }
        Ok(())
    }
}

/// Calls on lanes by size; the sum is the bytes that they moved.
#[derive(Debug)]
struct Sizes([(&'static str, Traffic); 2]);

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let help = "Calls that moved bytes on lanes, by their size";
        let mut metric = encoder.encode_descriptor("lane_call_bytes", help, None, MetricType::Histogram)?;
        for (direction, traffic) in &self.0 {
            let labels = [("direction", *direction)];
            let calls = traffic.histogram.iter().map(|class| class.calls);
            let buckets: Vec<(f64, u64)> = CLASSES.into_iter().zip(calls).collect();
            // The classes' own sum: programs count while we look, and the last bucket has to be the count.
            let count = buckets.iter().fold(0u64, |sum, (_, calls)| sum.saturating_add(*calls));
            let mut one = metric.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(traffic.bytes as f64, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Wake-ups by latency. Their sum is not known: at most that of the classes' bounds.
#[derive(Debug)]
struct Latencies(WakeUps);

impl Collector for Latencies {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let help = "Wake-ups by the time from the ring until the sleeper ran; the sum is an upper estimate";
        let mut metric = encoder.encode_descriptor("wakeup_seconds", help, None, MetricType::Histogram)?;
        let bound = |us: Option<u64>| us.map_or(f64::INFINITY, |us| us as f64 * 1e-6);
        let buckets: Vec<_> = self.0.bounds().map(bound).zip(self.0.classes.iter().copied()).collect();
        let longest = 2e-6 * (1u64 << self.0.classes.len().saturating_sub(2)) as f64;
        let sum = buckets.iter().map(|(bound, count)| bound.min(longest) * *count as f64).sum();
        metric.encode_histogram::<NoLabelSet>(sum, self.0.count(), &buckets, None)
    }
}
