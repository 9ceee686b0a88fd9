//! `stats`, in the sections of smcd stats.

use super::table::{Table, print};
use crate::error::Error;
use shunpike_broker::report::{FallbackCount, RoleCounts, Stats, Traffic};

/// The sums; with `details`, by role too.
pub fn show(stats: &Stats, details: bool) -> Result<(), Error> {
    let counts = &stats.connections;
    print("Connections Summary")?;
    let mut summary = Table::headless();
    let requests = stats.tx.calls + stats.rx.calls;
    let rows = [
        ("Total connections handled", counts.handled.to_string()),
        ("SMC connections", counts.smc.to_string()),
        ("Handshake errors", counts.handshake_errors.to_string()),
        ("Average requests per SMC connection", ratio(requests, counts.smc)),
        ("TCP fallback", counts.fallback.to_string()),
        ("Lanes revoked", counts.revoked.to_string()),
    ];
    for (name, value) in rows {
        summary.row([format!("  {name}"), value]);
    }
    summary.print()?;
    if details {
        print("\nBy role")?;
        let mut roles = Table::new(&["  Role", "Handled", "SMC", "Fallback"]);
        for (name, role) in [("client", counts.client), ("server", counts.server)] {
            let RoleCounts { handled, smc, fallback } = role;
            roles.row([format!("  {name}"), handled.to_string(), smc.to_string(), fallback.to_string()]);
        }
        roles.print()?;
    }
    for (name, traffic) in [("RX Stats", &stats.rx), ("TX Stats", &stats.tx)] {
        print(&format!("\n{name}"))?;
        show_traffic(traffic)?;
    }
    if details {
        print("\nExtras")?;
        let mut extras = Table::headless();
        extras.row(["  Sleeps for news", &stats.sleeps.to_string()]);
        extras.row(["  Waits that spinning ended", &stats.spins.to_string()]);
        extras.row(["  Wake-ups by a peer", &stats.wakeups.count().to_string()]);
        for (name, q) in [("  ... half of them within (us)", 0.5), ("  ... 99 of 100 within (us)", 0.99)] {
            let within = stats.wakeups.quantile(q).map_or("-".to_owned(), |us| us.to_string());
            extras.row([name, &within]);
        }
        extras.row(["  Held back by TCP_CORK or MSG_MORE", &stats.corked.to_string()]);
        extras.print()?;
    }
    show_fallbacks(stats, details)
}

fn show_traffic(traffic: &Traffic) -> Result<(), Error> {
    let mut sums = Table::headless();
    sums.row(["  Data on lanes (bytes)", &format!("{} ({})", traffic.bytes, short(traffic.bytes))]);
    sums.row(["  Total requests", &traffic.calls.to_string()]);
    sums.print()?;
    let sizes: Vec<String> = traffic.histogram.iter().map(|class| format!("  {}", class.size)).collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let mut histogram = Table::new(&sizes);
    histogram.row(traffic.histogram.iter().map(|class| format!("  {}", class.calls)));
    histogram.print()
}

/// The reasons, the most frequent first; with `details` those of each side.
fn show_fallbacks(stats: &Stats, details: bool) -> Result<(), Error> {
    type Count = fn(&FallbackCount) -> u64;
    let both: Count = |reason| reason.client + reason.server;
    let sides: &[(&str, Count)] = if details {
        &[
            ("\nTCP fallback by reason, client", |reason| reason.client),
            ("\nTCP fallback by reason, server", |reason| reason.server),
        ]
    } else {
        &[("\nTCP fallback by reason", both)]
    };
    for (title, count) in sides {
        let mut reasons: Vec<_> =
            stats.connections.reasons.iter().filter(|reason| count(reason) > 0).collect();
        if reasons.is_empty() {
            continue;
        }
        reasons.sort_by_key(|reason| std::cmp::Reverse(count(reason)));
        print(title)?;
        let mut table = Table::new(&["  Code", "Count", "Reason"]);
        for reason in reasons {
            table.row([format!("  0x{:08x}", reason.code), count(reason).to_string(), reason.text.clone()]);
        }
        table.print()?;
    }
    Ok(())
}

/// What `smcd stats json` prints, with its key names. What is not counted here is left out, not zero.
pub fn as_smcd(stats: &Stats) -> Result<(), Error> {
    let mut keys = serde_json::Map::new();
    for (direction, traffic) in [("TX", &stats.tx), ("RX", &stats.rx)] {
        for class in &traffic.histogram {
            // smcd's column ">512KB" is the sum of its two largest classes; here it is one.
            let size = match class.size.strip_suffix("KB") {
                Some(">512") => "1024K".to_owned(),
                Some(size) => format!("{size}K"),
                None => continue,
            };
            keys.insert(format!("SMC_USR_{direction}_BUF_{size}"), class.calls.into());
        }
        keys.insert(format!("SMC_{direction}_BYTES"), traffic.bytes.into());
        keys.insert(format!("SMC_{direction}_CNT"), traffic.calls.into());
    }
    keys.insert("SMC_CLNT_V2_SUCC_CNT".into(), stats.connections.client.smc.into());
    keys.insert("SMC_SRV_V2_SUCC_CNT".into(), stats.connections.server.smc.into());
    print(&serde_json::json!({ "SMCD": keys }).to_string())
}

fn ratio(a: u64, b: u64) -> String {
    if b == 0 { "0.0".into() } else { format!("{:.1}", a as f64 / b as f64) }
}

/// A count as smcd writes it: 5.796K.
fn short(n: u64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K")];
    match units.iter().find(|(unit, _)| n >= *unit) {
        Some((unit, name)) => format!("{:.3}{name}", n as f64 / *unit as f64),
        None => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shortened_as_smcd_does() {
        assert_eq!([short(999), short(5796), short(2_500_000)], ["999", "5.796K", "2.500M"]);
        assert_eq!([ratio(28, 2), ratio(1, 0)], ["14.0", "0.0"]);
    }
}
