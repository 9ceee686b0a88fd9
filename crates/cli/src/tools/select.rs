//! Which connections `ss` lists: the filters of iproute2's ss(8), as far as a lane has what they look at, and what only we know.

use crate::filter::{Condition, Filter, FilterError, Words};
use shunpike_broker::report::Connection;
use std::net::{IpAddr, SocketAddr};

/// A condition of `ss`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A number that compares so.
    Number(Field, Compare, u32),
    /// An end's address.
    Address(End, Network, Option<u16>),
    /// On a lane, or on TCP.
    Lane(bool),
    /// The process's name.
    Command(String),
}

/// What has a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// A port.
    Port(End),
    /// The process.
    Pid,
    /// Its user.
    Uid,
}

/// An end of a connection, as its process sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its own: `src`, `sport`.
    Local,
    /// The other one: `dst`, `dport`.
    Peer,
}

/// How numbers are compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// =
    Eq,
    /// !=
    Ne,
    /// <
    Lt,
    /// <=
    Le,
    /// >
    Gt,
    /// >=
    Ge,
}

/// Addresses that begin with the same bits; `None`: every address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Network(Option<(IpAddr, u8)>);

/// An end of a connection, as far as it is asked for.
pub struct Seen<'a> {
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: &'a str,
    /// Own address and port.
    pub local: &'a str,
    /// The peer's.
    pub remote: &'a str,
    /// Whether it is on a lane.
    pub has_lane: bool,
}

impl<'a> From<&'a Connection> for Seen<'a> {
    fn from(connection: &'a Connection) -> Self {
        let Connection { pid, uid, comm, local, remote, mode, .. } = connection;
        Self { pid: *pid, uid: *uid, comm, local, remote, has_lane: mode == "SMCD" }
    }
}

impl Wanted {
    /// Whether the connection is one of those asked for.
    pub fn holds(&self, seen: &Seen<'_>) -> bool {
        match self {
            Self::Number(field, compare, wanted) => {
                field.of(seen).is_some_and(|number| compare.holds(number, *wanted))
            }
            Self::Address(end, network, port) => end.of(seen).is_some_and(|address| {
                network.holds(address.ip().to_canonical()) && port.is_none_or(|port| port == address.port())
            }),
            Self::Lane(wanted) => seen.has_lane == *wanted,
            Self::Command(name) => seen.comm == *name,
        }
    }
}

impl Field {
    fn of(self, seen: &Seen<'_>) -> Option<u32> {
        match self {
            Self::Port(end) => end.of(seen).map(|address| address.port().into()),
            Self::Pid => Some(seen.pid),
            Self::Uid => Some(seen.uid),
        }
    }
}

impl End {
    fn of(self, seen: &Seen<'_>) -> Option<SocketAddr> {
        let text = match self {
            Self::Local => seen.local,
            Self::Peer => seen.remote,
        };
        text.parse().ok()
    }
}

impl Compare {
    fn named(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Eq,
            "!=" | "ne" | "neq" => Self::Ne,
            "<" | "lt" => Self::Lt,
            "<=" | "le" | "leq" => Self::Le,
            ">" | "gt" => Self::Gt,
            ">=" | "ge" | "geq" => Self::Ge,
            _ => return None,
        })
    }

    fn holds(self, number: u32, wanted: u32) -> bool {
        match self {
            Self::Eq => number == wanted,
            Self::Ne => number != wanted,
            Self::Lt => number < wanted,
            Self::Le => number <= wanted,
            Self::Gt => number > wanted,
            Self::Ge => number >= wanted,
        }
    }
}

impl Network {
    fn holds(self, address: IpAddr) -> bool {
        let Some((network, bits)) = self.0 else { return true };
        let of_v4 = |ip: std::net::Ipv4Addr| u32::from(ip).checked_shr(32 - u32::from(bits)).unwrap_or(0);
        let of_v6 = |ip: std::net::Ipv6Addr| u128::from(ip).checked_shr(128 - u32::from(bits)).unwrap_or(0);
        match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => of_v4(network) == of_v4(address),
            (IpAddr::V6(network), IpAddr::V6(address)) => of_v6(network) == of_v6(address),
            _ => false,
        }
    }
}

impl Condition for Wanted {
    const KNOWN: &'static str = "write sport, dport, src, dst, state, pid, uid or comm, as in 'sport = :6379 and state lane', 'dst 10.0.0.0/8', \
                                 'pid = 4711', 'comm = nginx'";
    const MAY_LEAVE_AND_AWAY: bool = true;

    fn parse(word: &str, words: &mut Words<'_>) -> Option<Result<Filter<Self>, FilterError>> {
        let parsed = match word {
            "sport" => number(words, Field::Port(End::Local)),
            "dport" => number(words, Field::Port(End::Peer)),
            "pid" => number(words, Field::Pid),
            "uid" => number(words, Field::Uid),
            "src" => address(words, End::Local),
            "dst" => address(words, End::Peer),
            "state" => return Some(state(words)),
            "comm" => {
                words.take(&["=", "=="]);
                words.wanted("write the process's name behind 'comm'").map(|name| Self::Command(name.into()))
            }
            _ => return None,
        };
        Some(parsed.map(Filter::If))
    }
}

fn state(words: &mut Words<'_>) -> Result<Filter<Wanted>, FilterError> {
    const STATES: &str = "write 'lane' or 'tcp' behind 'state'";
    match words.wanted(STATES)? {
        "lane" | "smcd" => Ok(Filter::If(Wanted::Lane(true))),
        "tcp" => Ok(Filter::If(Wanted::Lane(false))),
        "all" | "connected" | "established" => Ok(Filter::All),
        other => Err(FilterError::of(other, STATES)),
    }
}

fn number(words: &mut Words<'_>, field: Field) -> Result<Wanted, FilterError> {
    const NUMBER: &str = "write a number here, as in 'sport = :80' or 'pid 4711'";
    let mut word = words.wanted(NUMBER)?;
    let compare = Compare::named(word);
    if compare.is_some() {
        word = words.wanted(NUMBER)?;
    }
    let is_port = matches!(field, Field::Port(_));
    let digits = if is_port { word.strip_prefix(':').unwrap_or(word) } else { word };
    let number: u32 = digits.parse().map_err(|_| FilterError::of(word, NUMBER))?;
    if is_port && number > u16::MAX.into() {
        return Err(FilterError::of(word, "ports end at 65535"));
    }
    Ok(Wanted::Number(field, compare.unwrap_or(Compare::Eq), number))
}

/// `1.2.3.4`, `10.0.0.0/8`, `1.2.3.4:80`, `[::1]:80`, `*:80` or `:80`.
fn address(words: &mut Words<'_>, end: End) -> Result<Wanted, FilterError> {
    const ADDRESS: &str =
        "write an address here, as 127.0.0.1, 10.0.0.0/8, [::1]:80 or :80; names are not looked up";
    words.take(&["=", "=="]);
    let word = words.wanted(ADDRESS)?;
    let wrong = || FilterError::of(word, ADDRESS);
    // As addresses are compared: IPv4 in an IPv6 socket is IPv4.
    if let Ok(address) = word.parse::<SocketAddr>() {
        let ip = address.ip().to_canonical();
        return Ok(Wanted::Address(end, Network(Some((ip, bits_of(ip)))), Some(address.port())));
    }
    if let Some(port) = word.strip_prefix('*').unwrap_or(word).strip_prefix(':')
        && let Ok(port) = port.parse()
    {
        return Ok(Wanted::Address(end, Network(None), Some(port)));
    }
    let (ip, prefix) = word.split_once('/').map_or((word, None), |(ip, bits)| (ip, Some(bits)));
    let ip: IpAddr = ip.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| wrong())?;
    let bits = prefix.map_or(Ok(bits_of(ip)), str::parse).map_err(|_| wrong())?;
    if bits > bits_of(ip) {
        return Err(wrong());
    }
    let network = match ip.to_canonical() {
        canonical if canonical != ip && bits >= MAPPED => (canonical, bits - MAPPED),
        _ => (ip, bits),
    };
    Ok(Wanted::Address(end, Network(Some(network)), None))
}

/// Bits before an IPv4 address in IPv6's form (::ffff:0:0/96).
const MAPPED: u8 = 96;

fn bits_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection of redis-server, PID 7, user 8, from port 6379 to port 50000, on a lane.
    fn connection() -> Connection {
        let direction = serde_json::json!({
            "mode": "lane", "generation": 1, "own_cursor": 0, "peer_cursor": 0, "ring": 1, "window": 1, "token": "",
            "bytes": 0, "calls": 0, "prod_flags": 0, "state_flags": 0, "sizes": [], "tcp_bytes": 0, "copy": false,
        });
        serde_json::from_value(serde_json::json!({
            "state": "ACTIVE", "uid": 8, "pid": 7, "comm": "redis-server", "fd": 9, "cookie": 1, "role": "server",
            "local": "10.1.2.3:6379", "remote": "[::1]:50000", "mode": "SMCD", "reason": null, "peer_reason": null,
            "tx": direction, "rx": direction, "gid": null, "link": null, "slot": null,
        }))
        .expect("a connection")
    }

    #[test]
    fn filters_admit_what_they_say() {
        let connection = connection();
        for (text, admits) in [
            ("", true),
            ("sport = :6379 and state lane", true),
            ("sport=:6379 state lane", true),
            ("sport eq 6379", true),
            ("sport 6379", true),
            ("sport != :6379", false),
            ("sport > :1024 && sport < 6380", true),
            ("dport >= 50001 or dport <= 49999", false),
            ("( dport = :50000 )", true),
            ("not (sport :1 or sport :2)", true),
            ("! state tcp", true),
            ("state smcd | state tcp", true),
            ("src 10.0.0.0/8", true),
            ("src 10.1.2.3:6379", true),
            ("src 10.1.2.3:6380", false),
            ("src [::ffff:10.1.2.3]:6379", true),
            ("src ::ffff:10.1.2.3", true),
            ("src ::ffff:10.1.0.0/112", true),
            ("src ::ffff:10.2.0.0/112", false),
            ("src 11.0.0.0/8", false),
            ("src 0.0.0.0/0", true),
            ("src :6379", true),
            ("src *:6379", true),
            ("dst ::1", true),
            ("dst [::1]:50000", true),
            ("dst ::/0", true),
            ("dst 0.0.0.0/0", false),
            ("pid = 7", true),
            ("uid 8 and comm = redis-server", true),
            ("comm redis", false),
        ] {
            let filter: Filter<Wanted> = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                filter.admits(&|wanted: &Wanted| wanted.holds(&(&connection).into())),
                admits,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("sport = ssh", "ssh"),
            ("sport = :70000", ":70000"),
            ("sport", "its end"),
            ("port 80", "port"),
            ("state listen", "listen"),
            ("src 1.2.3", "1.2.3"),
            ("src 1.2.3.4/33", "1.2.3.4/33"),
            ("(pid 1", "its end"),
            ("pid 1)", ")"),
            ("pid 1 and", "its end"),
        ] {
            let error = text.parse::<Filter<Wanted>>().expect_err(text).to_string();
            let at = if word == "its end" { word.to_owned() } else { format!("'{word}'") };
            assert!(error.starts_with(&format!("in the filter, at {at}: ")), "{text}: {error}");
        }
        assert!("!".repeat(100_000).parse::<Filter<Wanted>>().is_err());
    }
}
