//! What `top` shows: rates between two samples, sorted.

use crate::args::Sort;
use shunpike_broker::report::{Connections, Info, Process, Processes, Stats};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// All that the broker says at one time.
#[derive(Clone)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The broker and its device.
    pub info: Info,
    /// Sums since the broker began. Who is no operator is told those of some moment in the last second.
    pub stats: Stats,
    /// The last ones of another moment, and when they were asked for: what the sums are compared with.
    pub earlier: Option<(Instant, Stats)>,
    /// By process.
    pub processes: Processes,
    /// By connection.
    pub connections: Connections,
}

impl Sample {
    /// This one as what follows `before`.
    pub fn after(self, before: &Self) -> Self {
        let is_same = |at: &Sample| self.stats.at_us.is_some() && self.stats.at_us == at.stats.at_us;
        let earlier = if self.stats.goes_on_from(&before.stats) && is_same(before) {
            // Nothing new was told: the rates from before hold.
            before.earlier.clone()
        } else {
            Some((before.at, before.stats.clone()))
        };
        Self { earlier, ..self }
    }

    /// What the sums are compared with, and the seconds in between; `None` without two of one row of counts.
    fn earlier(&self) -> Option<(&Stats, f64)> {
        let (at, then) = self.earlier.as_ref().filter(|(_, then)| self.stats.goes_on_from(then))?;
        let passed = match (then.at_us, self.stats.at_us) {
            (Some(then), Some(now)) => Duration::from_micros(now.saturating_sub(then)),
            // A broker that does not tell counts when it is asked.
            _ => self.at.saturating_duration_since(*at),
        };
        Some((then, seconds(passed)))
    }
}

/// What is divided by.
fn seconds(passed: Duration) -> f64 {
    passed.max(Duration::from_millis(1)).as_secs_f64()
}

/// One line of either table. What a table does not have is zero; a rate that is not known is no number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// Its user.
    pub uid: u32,
    /// A process's watched connections.
    pub connections: u64,
    /// A process's connections on lanes.
    pub lanes: u64,
    /// Of a connection: its descriptor.
    pub fd: u32,
    /// Of a connection: the other end.
    pub peer: String,
    /// Of a connection: SMCD, or TCP and why.
    pub mode: String,
    /// Bytes sent in a second.
    pub tx: f64,
    /// Bytes received in a second.
    pub rx: f64,
    /// Calls that moved them, in a second.
    pub calls: f64,
    /// Waits that a spin ended, in a second.
    pub spins: f64,
    /// Sleeps, in a second.
    pub sleeps: f64,
    /// Within so many microseconds 99 of 100 wake-ups made its threads run.
    pub wake: Option<u64>,
    /// Connections that stayed on TCP, so far.
    pub fallbacks: u64,
}

impl Sort {
    /// The next one, for a key that goes round.
    pub fn next(self) -> Self {
        use Sort::*;
        match self {
            Calls => Tx,
            Tx => Rx,
            Rx => Conns,
            Conns => Spins,
            Spins => Sleeps,
            Sleeps => Wake,
            Wake => Fallbacks,
            Fallbacks => Pid,
            Pid => Command,
            Command => Calls,
        }
    }

    fn order(self, a: &Row, b: &Row) -> Ordering {
        // One that is not known is less than all others.
        let known = |rate: f64| if rate.is_nan() { -1.0 } else { rate };
        let by = |value: fn(&Row) -> f64| known(value(b)).total_cmp(&known(value(a)));
        let first = match self {
            Sort::Calls => by(|row| row.calls),
            Sort::Tx => by(|row| row.tx),
            Sort::Rx => by(|row| row.rx),
            Sort::Conns => b.connections.cmp(&a.connections),
            Sort::Spins => by(|row| row.spins),
            Sort::Sleeps => by(|row| row.sleeps),
            Sort::Wake => b.wake.cmp(&a.wake),
            Sort::Fallbacks => b.fallbacks.cmp(&a.fallbacks),
            Sort::Pid => Ordering::Equal,
            Sort::Command => a.command.cmp(&b.command),
        };
        first.then_with(|| (a.pid, a.fd).cmp(&(b.pid, b.fd)))
    }
}

/// What the two lines above the table say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Seconds since the broker began.
    pub uptime: u64,
    /// Whether the device opens lanes.
    pub active: bool,
    /// Processes.
    pub processes: u64,
    /// Watched connection ends, and those on lanes.
    pub ends: [u64; 2],
    /// Bytes on lanes in a second, sent.
    pub bytes: f64,
    /// Calls on lanes in a second, both directions.
    pub calls: f64,
    /// Waits that a spin ended, in a second.
    pub spins: f64,
    /// Sleeps in a second.
    pub sleeps: f64,
    /// Microseconds within which half of the wake-ups made the sleeper run, and 99 of 100.
    pub wake: [Option<u64>; 2],
    /// Ends that stayed on TCP so far.
    pub fallbacks: u64,
    /// Their most frequent reason.
    pub reason: String,
    /// Lanes closed with the connection going on.
    pub revoked: u64,
    /// DMBs, and how many there may be.
    pub dmbs: [u64; 2],
}

/// Rows and totals between two samples.
pub struct View {
    /// Sums.
    pub totals: Totals,
    /// By process.
    pub processes: Vec<Row>,
    /// By connection.
    pub connections: Vec<Row>,
}

impl View {
    /// What happened from `before` to `now`, sorted. A broker that was restarted meanwhile counts from zero.
    pub fn between(before: &Sample, now: &Sample, sort: Sort, reverse: bool) -> Self {
        let nothing = before.stats.broker != now.stats.broker;
        let seconds = seconds(now.at.saturating_duration_since(before.at));
        let rate =
            |then: u64, now: u64| now.saturating_sub(if nothing { now } else { then }) as f64 / seconds;
        let mut view = Self {
            totals: totals(now),
            processes: processes(before, now, rate),
            connections: connections(before, now, rate),
        };
        for rows in [&mut view.processes, &mut view.connections] {
            rows.sort_by(|a, b| if reverse { sort.order(b, a) } else { sort.order(a, b) });
        }
        view
    }
}

fn totals(now: &Sample) -> Totals {
    let stats = &now.stats;
    let reasons = stats.connections.reasons.iter();
    let earlier = now.earlier();
    let (then, seconds) = earlier.unwrap_or((stats, 1.0));
    let rate = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
    let wakeups = if earlier.is_some() { stats.wakeups.since(&then.wakeups) } else { stats.wakeups.clone() };
    let on_lanes =
        |sample: &Sample| sample.connections.connections.iter().filter(|c| c.mode == "SMCD").count();
    Totals {
        uptime: now.info.uptime,
        active: now.info.device.active,
        processes: now.processes.processes.len() as u64,
        ends: [now.connections.connections.len() as u64, on_lanes(now) as u64],
        bytes: rate(then.tx.bytes, stats.tx.bytes),
        calls: rate(then.tx.calls + then.rx.calls, stats.tx.calls + stats.rx.calls),
        spins: rate(then.spins, stats.spins),
        sleeps: rate(then.sleeps, stats.sleeps),
        wake: [0.5, 0.99].map(|q| wakeups.quantile(q)),
        fallbacks: stats.connections.fallback,
        reason: reasons.max_by_key(|r| r.client + r.server).map_or(String::new(), |r| r.key.clone()),
        revoked: stats.connections.revoked,
        dmbs: [now.info.device.dmbs_cnt, now.info.device.max_dmbs],
    }
}

fn processes(before: &Sample, now: &Sample, rate: impl Fn(u64, u64) -> f64) -> Vec<Row> {
    let then: HashMap<u32, &Process> = before.processes.processes.iter().map(|one| (one.pid, one)).collect();
    let row = |one: &Process| {
        // A new process has done all that it did meanwhile.
        let zero = Process::default();
        let then = then.get(&one.pid).copied().unwrap_or(&zero);
        // Of those that cannot be named, all with number 0, each would be computed from another.
        let rate = |then, now| if one.pid == 0 { f64::NAN } else { rate(then, now) };
        Row {
            pid: one.pid,
            command: one.comm.clone(),
            uid: one.uid,
            connections: one.connections,
            lanes: one.lanes,
            tx: rate(then.tx_bytes, one.tx_bytes),
            rx: rate(then.rx_bytes, one.rx_bytes),
            calls: rate(then.tx_calls + then.rx_calls, one.tx_calls + one.rx_calls),
            spins: rate(then.spins, one.spins),
            sleeps: rate(then.sleeps, one.sleeps),
            wake: (one.pid != 0).then(|| one.wakeups.since(&then.wakeups).quantile(0.99)).flatten(),
            fallbacks: one.fallback,
            ..Row::default()
        }
    };
    now.processes.processes.iter().map(row).collect()
}

fn connections(before: &Sample, now: &Sample, rate: impl Fn(u64, u64) -> f64) -> Vec<Row> {
    let name = |one: &shunpike_broker::report::Connection| (one.pid, one.fd, one.remote.clone());
    let then: HashMap<_, _> = before.connections.connections.iter().map(|one| (name(one), one)).collect();
    let row = |one: &shunpike_broker::report::Connection| {
        let then = then.get(&name(one));
        let of = |part: fn(&shunpike_broker::report::Connection) -> u64| {
            if one.pid == 0 { f64::NAN } else { rate(then.map_or(0, |then| part(then)), part(one)) }
        };
        Row {
            pid: one.pid,
            command: one.comm.clone(),
            uid: one.uid,
            connections: 1,
            fd: one.fd,
            peer: one.remote.clone(),
            mode: one.mode.clone(),
            // Whichever way they went: the mode tells which it is.
            tx: of(|one| one.tx.bytes + one.tx.tcp_bytes),
            rx: of(|one| one.rx.bytes + one.rx.tcp_bytes),
            calls: of(|one| one.tx.calls + one.rx.calls),
            ..Row::default()
        }
    };
    now.connections.connections.iter().map(row).collect()
}

/// A rate in at most six characters: `0`, `999`, `1.2K`, `812K`, `1.3G`; `-` for one that is not known.
pub fn short(rate: f64) -> String {
    if rate.is_nan() {
        return "-".into();
    }
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")];
    match units.iter().find(|(unit, _)| rate >= *unit * 0.9995) {
        Some((unit, name)) if rate / unit < 9.95 => format!("{:.1}{name}", rate / unit),
        Some((unit, name)) => format!("{:.0}{name}", rate / unit),
        None if rate > 0.0 && rate < 9.95 => format!("{rate:.1}"),
        None => format!("{rate:.0}"),
    }
}

/// Microseconds in at most four characters: `64u`, `2.0m`, `-`.
pub fn brief(us: Option<u64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1000 => format!("{us}u"),
        Some(us) if us < 9950 => format!("{:.1}m", us as f64 / 1e3),
        Some(us) => format!("{:.0}m", us as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a broker answers of which nobody is connected.
    fn sample(at: Instant, stats: &str) -> Sample {
        let read = |text: &str| format!("{{{text}}}");
        let counts = r#""handled":0,"smc":0,"fallback":0"#;
        let traffic = |bytes: u64| format!(r#"{{"bytes":{bytes},"calls":0,"histogram":[]}}"#);
        let sums = format!(
            r#""connections":{{{counts},"client":{{{counts}}},"server":{{{counts}}},"reasons":[],"revoked":0,
            "handshake_errors":0}},"rx":{},"sleeps":0,"spins":0,"corked":0,"wakeups":{{"classes":[]}},{stats}"#,
            traffic(0)
        );
        let limits = r#"{"sessions":null,"dmbs":null,"bytes":null,"nominations_per_second":null}"#;
        let info = format!(
            r#""version":"0","protocol":1,"smc":"","pid":1,"socket":"","private":false,"privileged":false,
            "uptime":9,"sessions":0,"waiting":0,"ueids":[],
            "policy":{{"file":null,"peers":"any","groups":[],"socket_mode":"","socket_group":null,
            "process":{limits},"user":{limits}}},
            "device":{{"name":"","gid":"","chid":"","active":true,"dmb_copy":false,"dmb_type":"","xfer_bytes":0,
            "rmem":0,"dmbs_cnt":0,"max_dmbs":0,"link_groups":0,"sessions":0}}"#
        );
        Sample {
            at,
            info: serde_json::from_str(&read(&info)).expect("info"),
            stats: serde_json::from_str(&read(&sums)).expect("stats"),
            earlier: None,
            processes: Processes { processes: Vec::new() },
            connections: serde_json::from_str(r#"{"connections":[]}"#).expect("connections"),
        }
    }

    fn sums(bytes: u64, at_us: Option<u64>, resets: u64) -> String {
        let at = at_us.map_or(String::new(), |at| format!(r#","at_us":{at}"#));
        format!(r#""tx":{{"bytes":{bytes},"calls":0,"histogram":[]}},"broker":"a","resets":{resets}{at}"#)
    }

    /// A broker's sums once a second, asked for five times a second, came to five times the rate, and to nothing in between.
    #[test]
    fn totals_are_over_the_time_between_what_the_broker_has_told() {
        let began = Instant::now();
        let mut before: Option<Sample> = None;
        let mut rates = Vec::new();
        for tick in 0..11u64 {
            let at = began + Duration::from_millis(200 * tick);
            // 1000 bytes in a second.
            let second = tick / 5;
            let now = sample(at, &sums(1000 * second, Some(1_000_000 * second), 0));
            let now = before.as_ref().map_or(now.clone(), |before| now.clone().after(before));
            if let Some(before) = &before {
                rates.push(View::between(before, &now, Sort::Calls, false).totals.bytes);
            }
            before = Some(now);
        }
        assert_eq!(rates, [[0.0; 4].as_slice(), [1000.0; 6].as_slice()].concat());
    }

    #[test]
    fn totals_of_a_broker_that_does_not_tell_when_are_over_the_time_between_questions() {
        let began = Instant::now();
        let before = sample(began, &sums(1000, None, 0));
        let later = |stats: String| sample(began + Duration::from_secs(2), &stats).after(&before);
        let bytes = |now: &Sample| View::between(&before, now, Sort::Calls, false).totals.bytes;
        assert_eq!(bytes(&later(sums(5000, None, 0))), 2000.0);
        assert_eq!(bytes(&later(sums(1000, None, 0))), 0.0);
        assert_eq!(bytes(&later(sums(5000, None, 1))), 0.0, "its own counts were reset");
    }

    #[test]
    fn what_cannot_be_named_has_no_rate_and_comes_last() {
        let began = Instant::now();
        let process = |pid, tx_calls| Process { pid, tx_calls, ..Process::default() };
        let mut before = sample(began, &sums(0, None, 0));
        before.processes.processes = vec![process(0, 5), process(7, 5)];
        let mut now = sample(began + Duration::from_secs(1), &sums(0, None, 0));
        now.processes.processes = vec![process(0, 1_000_000), process(0, 5), process(7, 5)];
        let rows = View::between(&before, &now, Sort::Calls, false).processes;
        let shown: Vec<_> = rows.iter().map(|row| (row.pid, short(row.calls))).collect();
        assert_eq!(shown, [(7, "0".into()), (0, "-".into()), (0, "-".into())]);
    }

    #[test]
    fn rates_are_short() {
        let rates = [0.0, 0.5, 99.6, 999.4, 999.9, 1234.0, 81_234.0, 999_700.0, 1.26e9, 2.5e13];
        let shown = rates.map(short);
        assert_eq!(shown, ["0", "0.5", "100", "999", "1.0K", "1.2K", "81K", "1.0M", "1.3G", "25T"]);
        assert!(shown.iter().all(|text| text.len() <= 6));
    }

    #[test]
    fn latencies_are_brief() {
        let shown = [None, Some(1), Some(512), Some(1024), Some(16384)].map(brief);
        assert_eq!(shown, ["-", "1u", "512u", "1.0m", "16m"]);
    }

    #[test]
    fn every_column_has_its_turn() {
        let (mut sort, mut turns) = (Sort::Calls, 0);
        loop {
            (sort, turns) = (sort.next(), turns + 1);
            if sort == Sort::Calls {
                break;
            }
        }
        assert_eq!(turns, 10);
    }

    #[test]
    fn rows_are_in_the_order_asked_for() {
        let row =
            |pid, command: &str, tx, calls| Row { pid, command: command.into(), tx, calls, ..Row::default() };
        let rows = [row(2, "b", 5.0, 1.0), row(1, "c", 9.0, 1.0), row(3, "a", 1.0, 7.0)];
        for (sort, wanted) in [
            (Sort::Calls, [3, 1, 2]),
            (Sort::Tx, [1, 2, 3]),
            (Sort::Pid, [1, 2, 3]),
            (Sort::Command, [3, 2, 1]),
        ] {
            let mut rows = rows.clone();
            rows.sort_by(|a, b| sort.order(a, b));
            assert_eq!(rows.map(|row| row.pid), wanted, "{sort:?}");
        }
    }
}
