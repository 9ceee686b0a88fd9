//! Which connections `tap` shows: a small part of pcap-filter(7), and the process.

use crate::filter::{Condition, Filter, FilterError, Words};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// What a filter looks at.
pub struct Subject<'a> {
    /// The sender's end.
    pub from: SocketAddr,
    /// The receiver's.
    pub to: SocketAddr,
    /// Processes of either end, as far as they are known.
    pub pids: &'a [u32],
}

/// A condition of `tap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// IPv4, or IPv6.
    Family { v6: bool },
    /// A port of either end, or of the one.
    Port(Side, u16),
    /// An address of either end, or of the one.
    Host(Side, IpAddr),
    /// A process of either end.
    Pid(u32),
}

/// Of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// Either.
    Any,
    /// Who sent it.
    Source,
    /// To whom.
    Destination,
}

impl Wanted {
    /// Whether a segment has it.
    pub fn holds(&self, subject: &Subject<'_>) -> bool {
        let ends = |side: Side| {
            let (from, to) = (Some(subject.from), Some(subject.to));
            let both = match side {
                Side::Any => [from, to],
                Side::Source => [from, None],
                Side::Destination => [None, to],
            };
            both.into_iter().flatten()
        };
        match self {
            Self::Family { v6 } => subject.from.is_ipv6() == *v6,
            Self::Port(side, port) => ends(*side).any(|end| end.port() == *port),
            Self::Host(side, host) => ends(*side).any(|end| end.ip() == *host),
            Self::Pid(pid) => subject.pids.contains(pid),
        }
    }

    /// Whether it must know the processes.
    pub fn is_of_processes(&self) -> bool {
        matches!(self, Self::Pid(_))
    }
}

impl Condition for Wanted {
    const KNOWN: &'static str =
        "write port N, host ADDRESS, src or dst before these, pid N, tcp, ip, ip6, and, or, not, (, )";
    const MAY_LEAVE_AND_AWAY: bool = false;

    fn parse(word: &str, words: &mut Words<'_>) -> Option<Result<Filter<Self>, FilterError>> {
        let parsed = match word {
            "tcp" => return Some(Ok(Filter::All)),
            "ip" => Ok(Self::Family { v6: false }),
            "ip6" => Ok(Self::Family { v6: true }),
            "pid" => number(words, "write a process number behind 'pid'").map(Self::Pid),
            "src" => of_end(words, Side::Source),
            "dst" => of_end(words, Side::Destination),
            "port" => port(words, Side::Any),
            "host" => host(words, Side::Any),
            _ => return None,
        };
        Some(parsed.map(Filter::If))
    }
}

fn of_end(words: &mut Words<'_>, side: Side) -> Result<Wanted, FilterError> {
    const WANTED: &str = "write 'port' or 'host' behind 'src' and 'dst'";
    match words.wanted(WANTED)? {
        "port" => port(words, side),
        "host" => host(words, side),
        other => Err(FilterError::of(other, WANTED)),
    }
}

fn port(words: &mut Words<'_>, side: Side) -> Result<Wanted, FilterError> {
    number(words, "write a number behind 'port', 0 to 65535").map(|port| Wanted::Port(side, port))
}

fn host(words: &mut Words<'_>, side: Side) -> Result<Wanted, FilterError> {
    const WANTED: &str = "write an IP address behind 'host', as 127.0.0.1 or ::1; names are not looked up";
    let word = words.wanted(WANTED)?;
    let address: IpAddr = word.parse().map_err(|_| FilterError::of(word, WANTED))?;
    Ok(Wanted::Host(side, address.to_canonical()))
}

fn number<T: FromStr>(words: &mut Words<'_>, why: &'static str) -> Result<T, FilterError> {
    let word = words.wanted(why)?;
    word.parse().map_err(|_| FilterError::of(word, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(filter: &str) -> bool {
        let subject = Subject {
            from: "127.0.0.1:40000".parse().expect("address"),
            to: "127.0.0.1:6379".parse().expect("address"),
            pids: &[17, 18],
        };
        let parsed: Filter<Wanted> = filter.parse().unwrap_or_else(|error| panic!("{filter}: {error}"));
        parsed.admits(&|wanted: &Wanted| wanted.holds(&subject))
    }

    #[test]
    fn filters_say_what_is_shown() {
        for filter in [
            "",
            "tcp",
            "ip and not ip6",
            "port 6379",
            "dst port 6379",
            "src port 40000 && dst host 127.0.0.1",
            "host ::ffff:127.0.0.1",
            "pid 17 and pid 18",
            "port 1 or port 2 or tcp port 3 or pid 18".replace("tcp port", "port").as_str(),
            "not (port 80 or port 443)",
            "!(pid 4)and port 6379",
            "port 1 and port 2 or port 6379",
        ] {
            assert!(admits(filter), "{filter}");
        }
        for filter in ["src port 6379", "host 127.0.0.2", "pid 4", "ip6", "not tcp", "port 1 or port 2"] {
            assert!(!admits(filter), "{filter}");
        }
        let asks =
            |text: &str| text.parse::<Filter<Wanted>>().expect("a filter").has(&Wanted::is_of_processes);
        assert!(asks("not (pid 4 or tcp)") && !asks("not (port 4 or tcp)"));
    }

    #[test]
    fn mistakes_are_named_where_they_are() {
        let deep = "(".repeat(1000);
        for (filter, word, why) in [
            ("prot 80", "'prot'", "port N"),
            ("port", "its end", "0 to 65535"),
            ("port 65536", "'65536'", "0 to 65535"),
            ("port http", "'http'", "0 to 65535"),
            ("host localhost", "'localhost'", "names are not looked up"),
            ("port 80 port 81", "'port'", "'and' or 'or' is missing"),
            ("(port 80", "its end", "closing parenthesis"),
            ("port 80)", "')'", "'and' or 'or'"),
            ("src 80", "'80'", "'port' or 'host'"),
            ("port 80 and", "its end", "port N"),
            ("pid x", "'x'", "process number"),
            (&deep, "'('", "too many parentheses"),
        ] {
            let error = filter.parse::<Filter<Wanted>>().expect_err(filter).to_string();
            assert!(error.contains(word) && error.contains(why), "{filter}: {error}");
        }
    }
}
