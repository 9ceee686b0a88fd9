//! Which connections are shown: a small part of pcap-filter(7), and the process.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Parentheses and negations within one another.
const DEPTH: usize = 32;

/// What a filter looks at.
pub struct Subject<'a> {
    /// The sender's end.
    pub from: SocketAddr,
    /// The receiver's.
    pub to: SocketAddr,
    /// Processes of either end, as far as they are known.
    pub pids: &'a [u32],
}

/// A parsed filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Everything.
    All,
    /// IPv4, or IPv6.
    Family { v6: bool },
    /// A port of either end, or of the one.
    Port(Side, u16),
    /// An address of either end, or of the one.
    Host(Side, IpAddr),
    /// A process of either end.
    Pid(u32),
    /// Not.
    Not(Box<Filter>),
    /// Both.
    And(Box<Filter>, Box<Filter>),
    /// One of them.
    Or(Box<Filter>, Box<Filter>),
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

/// What is wrong with a filter: the word, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    word: String,
    why: &'static str,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in the filter, at {}: {}", self.word, self.why)
    }
}

impl Filter {
    /// Whether a segment is shown.
    pub fn admits(&self, subject: &Subject<'_>) -> bool {
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
            Filter::All => true,
            Filter::Family { v6 } => subject.from.is_ipv6() == *v6,
            Filter::Port(side, port) => ends(*side).any(|end| end.port() == *port),
            Filter::Host(side, host) => ends(*side).any(|end| end.ip() == *host),
            Filter::Pid(pid) => subject.pids.contains(pid),
            Filter::Not(filter) => !filter.admits(subject),
            Filter::And(one, other) => one.admits(subject) && other.admits(subject),
            Filter::Or(one, other) => one.admits(subject) || other.admits(subject),
        }
    }

    /// Whether it must know the processes.
    pub fn asks_for_processes(&self) -> bool {
        match self {
            Filter::Pid(_) => true,
            Filter::Not(filter) => filter.asks_for_processes(),
            Filter::And(one, other) | Filter::Or(one, other) => {
                one.asks_for_processes() || other.asks_for_processes()
            }
            _ => false,
        }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('!', " ! ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        if words.is_empty() {
            return Ok(Filter::All);
        }
        let mut parser = Parser { words: &words, at: 0 };
        let filter = parser.any(0)?;
        match parser.next() {
            None => Ok(filter),
            Some(word) => Err(wrong(word, "'and' or 'or' is missing before it")),
        }
    }
}

fn wrong(word: &str, why: &'static str) -> FilterError {
    FilterError { word: format!("'{word}'"), why }
}

struct Parser<'a> {
    words: &'a [&'a str],
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    fn follows(&mut self, words: [&str; 2]) -> bool {
        let is_so = self.words.get(self.at).is_some_and(|word| words.contains(word));
        self.at += usize::from(is_so);
        is_so
    }

    fn any(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let mut filter = self.all(depth)?;
        while self.follows(["or", "||"]) {
            filter = Filter::Or(Box::new(filter), Box::new(self.all(depth)?));
        }
        Ok(filter)
    }

    fn all(&mut self, depth: usize) -> Result<Filter, FilterError> {
        let mut filter = self.one(depth)?;
        while self.follows(["and", "&&"]) {
            filter = Filter::And(Box::new(filter), Box::new(self.one(depth)?));
        }
        Ok(filter)
    }

    fn one(&mut self, depth: usize) -> Result<Filter, FilterError> {
        const KNOWN: &str =
            "write port N, host ADDRESS, src or dst before these, pid N, tcp, ip, ip6, and, or, not, (, )";
        let end = || FilterError { word: "its end".into(), why: KNOWN };
        let word = self.next().ok_or_else(end)?;
        if depth >= DEPTH {
            return Err(wrong(word, "too many parentheses and negations within one another"));
        }
        match word {
            "not" | "!" => Ok(Filter::Not(Box::new(self.one(depth + 1)?))),
            "(" => {
                let filter = self.any(depth + 1)?;
                match self.next() {
                    Some(")") => Ok(filter),
                    Some(word) => Err(wrong(word, "a closing parenthesis is missing before it")),
                    None => {
                        Err(FilterError { word: "its end".into(), why: "a closing parenthesis is missing" })
                    }
                }
            }
            "tcp" => Ok(Filter::All),
            "ip" => Ok(Filter::Family { v6: false }),
            "ip6" => Ok(Filter::Family { v6: true }),
            "pid" => self.number("write a process number behind 'pid'").map(Filter::Pid),
            "src" | "dst" => {
                let side = if word == "src" { Side::Source } else { Side::Destination };
                match self.next() {
                    Some("port") => self.port(side),
                    Some("host") => self.host(side),
                    other => {
                        Err(wrong(other.unwrap_or(word), "write 'port' or 'host' behind 'src' and 'dst'"))
                    }
                }
            }
            "port" => self.port(Side::Any),
            "host" => self.host(Side::Any),
            _ => Err(wrong(word, KNOWN)),
        }
    }

    fn port(&mut self, side: Side) -> Result<Filter, FilterError> {
        self.number("write a number behind 'port', 0 to 65535").map(|port| Filter::Port(side, port))
    }

    fn host(&mut self, side: Side) -> Result<Filter, FilterError> {
        const WANTED: &str =
            "write an IP address behind 'host', as 127.0.0.1 or ::1; names are not looked up";
        let word = self.next().unwrap_or("host");
        let address: IpAddr = word.parse().map_err(|_| wrong(word, WANTED))?;
        Ok(Filter::Host(side, address.to_canonical()))
    }

    fn number<T: FromStr>(&mut self, why: &'static str) -> Result<T, FilterError> {
        match self.next() {
            Some(word) => word.parse().map_err(|_| wrong(word, why)),
            None => Err(FilterError { word: "its end".into(), why }),
        }
    }
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
        filter.parse::<Filter>().unwrap_or_else(|error| panic!("{filter}: {error}")).admits(&subject)
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
        assert!("not (pid 4 or tcp)".parse::<Filter>().expect("a filter").asks_for_processes());
        assert!(!"not (port 4 or tcp)".parse::<Filter>().expect("a filter").asks_for_processes());
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
            let error = filter.parse::<Filter>().expect_err(filter).to_string();
            assert!(error.contains(word) && error.contains(why), "{filter}: {error}");
        }
    }
}
