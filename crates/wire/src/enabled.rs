//! The list of what is on where the library is in every program (`shunpike enable --all`). The command checks it, and the library reads it
//! as each program starts.

use core::ffi::CStr;

/// Where it is.
pub const PATH: &CStr = c"/etc/shunpike/enabled";
/// The longest one, in bytes: it is read onto the stack.
pub const LONGEST: usize = 16 << 10;
/// Most lines that name ports.
pub const MOST_PORTS: usize = 64;

/// A line that names something.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Line<'a> {
    /// Whether it is on, or off.
    pub on: bool,
    /// What.
    pub what: What<'a>,
}

/// What a line names.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum What<'a> {
    /// A program, by its path, by the last part of that, or any (`*`).
    Program(&'a [u8]),
    /// Who has started it.
    User(u32),
    /// A connection with a port from the first to the last, at either end.
    Ports(Ports),
}

/// From the first to the last.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Ports {
    fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// A list that cannot be understood. Nothing is on then.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The line, from 1; 0: the whole.
    pub line: usize,
    /// What is wrong.
    pub why: &'static str,
}

/// A program that starts.
#[derive(Copy, Clone, Debug)]
pub struct Program<'a> {
    /// Its file, empty where that is not known (no /proc), and the name by which it was called where that is another one (a script,
    /// a link).
    pub paths: [&'a [u8]; 2],
    /// Its effective user id.
    pub user: u32,
}

impl Program<'_> {
    fn is_called(&self, name: &[u8]) -> bool {
        let is = |path: &[u8]| match name.contains(&b'/') {
            true => path == name,
            false => path.rsplit(|byte| *byte == b'/').next() == Some(name),
        };
        // As the kernel shows a file whose name is another one's by now: after an upgrade, say.
        let paths = self.paths.map(|path| path.strip_suffix(b" (deleted)").unwrap_or(path));
        name == b"*" || paths.into_iter().any(|path| !path.is_empty() && is(path))
    }

    /// Whether it is called so, or may be.
    fn may_be_called(&self, name: &[u8]) -> bool {
        self.paths[0].is_empty() || self.is_called(name)
    }
}

/// The lines that name something. Errors: one cannot be understood.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Result<Line<'_>, Broken>> {
    let numbered = text.split(|byte| *byte == b'\n').enumerate();
    numbered.filter_map(|(at, line)| parse(line).map_err(|why| Broken { line: at + 1, why }).transpose())
}

/// Whether a program is on, and if so, the ports that are on or off for it. Errors: the list cannot be understood.
///
/// What a line has off is off. Where lines have something of a kind (programs, users, ports) on, nothing else of that kind is.
pub fn is_on(text: &[u8], program: &Program<'_>) -> Result<Option<AtPorts>, Broken> {
    if text.len() >= LONGEST {
        return Err(Broken { line: 0, why: "it is too long" });
    }
    let (mut programs, mut users) = (Verdict::default(), Verdict::default());
    let mut ports = AtPorts { lines: [None; MOST_PORTS] };
    let (mut seen, mut named) = (0, 0);
    for line in lines(text) {
        let Line { on, what } = line?;
        seen += 1;
        match what {
            What::Program(name) if on => programs.hear(on, program.is_called(name)),
            What::Program(name) => programs.hear(on, program.may_be_called(name)),
            What::User(user) => users.hear(on, program.user == user),
            What::Ports(range) => {
                let Some(place) = ports.lines.get_mut(named) else {
                    return Err(Broken { line: 0, why: "too many lines name ports" });
                };
                *place = Some((on, range));
                named += 1;
            }
        }
    }
    // As an editor leaves it when the disk is full.
    if seen == 0 {
        return Err(Broken { line: 0, why: "no line names anything" });
    }
    Ok((programs.is_on() && users.is_on()).then_some(ports))
}

/// Which ports are on.
#[derive(Copy, Clone, Debug)]
pub struct AtPorts {
    lines: [Option<(bool, Ports)>; MOST_PORTS],
}

impl AtPorts {
    /// The lines that name ports.
    pub fn lines(&self) -> impl Iterator<Item = (bool, Ports)> + '_ {
        self.lines.iter().flatten().copied()
    }
}

/// Whether a connection between these two ports is on, by the lines that name ports.
pub fn is_connection_on(lines: impl Iterator<Item = (bool, Ports)>, ends: [u16; 2]) -> bool {
    let mut verdict = Verdict::default();
    for (on, ports) in lines {
        verdict.hear(on, ends.into_iter().any(|port| ports.has(port)));
    }
    verdict.is_on()
}

/// What the lines of one kind say so far.
#[derive(Copy, Clone, Default)]
struct Verdict {
    is_off: bool,
    is_named: bool,
    others_are_named: bool,
}

impl Verdict {
    fn hear(&mut self, on: bool, is_meant: bool) {
        self.is_off |= !on && is_meant;
        self.is_named |= on && is_meant;
        self.others_are_named |= on;
    }

    fn is_on(self) -> bool {
        !self.is_off && (self.is_named || !self.others_are_named)
    }
}

fn parse(line: &[u8]) -> Result<Option<Line<'_>>, &'static str> {
    let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(first) = words.next() else { return Ok(None) };
    let on = match first {
        b"on" => true,
        b"off" => false,
        _ => return Err("a line begins with 'on' or 'off'"),
    };
    let kind = words.next().ok_or(KINDS)?;
    let name = words.next().ok_or("nothing is named")?;
    if words.next().is_some() {
        return Err("a line names one thing");
    }
    let what = match kind {
        b"program" if name.contains(&b'/') && name[0] != b'/' => {
            return Err("a program is a name, a whole path, or *");
        }
        b"program" => What::Program(name),
        b"user" => {
            What::User(number(name, u32::MAX - 1).ok_or("a user is a number here ('id -u NAME' tells it)")?)
        }
        b"port" => What::Ports(ports(name).ok_or("a port is a number, or two, as 8000-8099")?),
        _ => return Err(KINDS),
    };
    Ok(Some(Line { on, what }))
}

const KINDS: &str = "behind 'on' or 'off' comes 'program', 'user' or 'port'";

fn ports(text: &[u8]) -> Option<Ports> {
    let port = |text| number(text, u16::MAX.into()).and_then(|port| u16::try_from(port).ok());
    let mut ends = text.splitn(2, |byte| *byte == b'-');
    let first = port(ends.next()?)?;
    let last = ends.next().map_or(Some(first), port)?;
    (first <= last).then_some(Ports { first, last })
}

fn number(text: &[u8], most: u32) -> Option<u32> {
    let value: u32 = core::str::from_utf8(text).ok()?.parse().ok()?;
    // The parser of numbers takes a sign.
    (value <= most && text[0].is_ascii_digit()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(text: &str, path: &str, user: u32) -> Result<bool, Broken> {
        let program = Program { paths: [path.as_bytes(), b""], user };
        is_on(text.as_bytes(), &program).map(|on| on.is_some())
    }

    #[test]
    fn what_is_off_is_off_and_what_is_on_is_the_only_one_on() {
        for (text, is_on) in [
            ("on program *", true),
            ("on program redis-server", true),
            ("on program redis-server # the cache\n\n# all\n", true),
            ("on program /usr/bin/redis-server", true),
            ("on program /usr/local/bin/redis-server", false),
            ("on program redis", false),
            ("on program nginx", false),
            ("on program nginx\non program redis-server", true),
            ("on program *\noff program redis-server", false),
            ("off program redis-server\non program *", false),
            ("off program nginx", true),
            ("off user 0", true),
            ("off user 999", false),
            ("on user 999", true),
            ("on user 0\non program redis-server", false),
            ("on port 80", true),
        ] {
            assert_eq!(on(text, "/usr/bin/redis-server", 999), Ok(is_on), "{text}");
        }
        let script = Program { paths: [b"/usr/bin/python3", b"./serve"], user: 0 };
        assert!(is_on(b"on program serve", &script).unwrap().is_some());
        assert!(is_on(b"on program python3", &script).unwrap().is_some());
        let nameless = Program { paths: [b"", b""], user: 0 };
        assert!(is_on(b"on program x", &nameless).unwrap().is_none());
    }

    #[test]
    fn a_program_whose_file_is_not_known_may_be_any_that_is_off() {
        let nameless = Program { paths: [b"", b"/proc/self/fd/3"], user: 0 };
        assert!(is_on(b"off program sshd", &nameless).unwrap().is_none());
        assert!(is_on(b"on program *", &nameless).unwrap().is_some());
        assert_eq!(on("off program sshd", "/usr/sbin/sshd (deleted)", 0), Ok(false));
        assert_eq!(on("off program sshd", "/usr/sbin/sshd (deleted) (deleted)", 0), Ok(true));
    }

    #[test]
    fn a_connection_is_on_by_either_of_its_ports() {
        let at = |text: &str, ends| {
            let program = Program { paths: [b"/x", b""], user: 0 };
            let ports = is_on(text.as_bytes(), &program).unwrap().expect("on");
            is_connection_on(ports.lines(), ends)
        };
        assert!(at("on program *", [80, 40000]));
        assert!(
            !at("off port 80", [80, 40000])
                && !at("off port 80", [40000, 80])
                && at("off port 80", [81, 40000])
        );
        assert!(at("on port 8000-8099", [8099, 40000]) && !at("on port 8000-8099", [8100, 40000]));
        assert!(!at("on port 1-65535\noff port 443", [443, 40000]));
    }

    #[test]
    fn what_is_not_understood_breaks_the_whole_list() {
        for (text, line) in [
            ("", 0),
            ("# nothing\n", 0),
            ("on", 1),
            ("on program", 1),
            ("on program a b", 1),
            ("on program bin/a", 1),
            ("\nmaybe program a", 2),
            ("on program *\noff user www-data", 2),
            ("on user -1", 1),
            ("on user +1", 1),
            ("on user 4294967295", 1),
            ("on port 65536", 1),
            ("on port 9-8", 1),
            ("on port -8", 1),
            ("on group 3", 1),
            ("on program *\n\0\0\0", 2),
        ] {
            assert_eq!(on(text, "/x", 0).map_err(|broken| broken.line), Err(line), "{text:?}");
        }
        assert!(on(&"off port 1\n".repeat(MOST_PORTS), "/x", 0).is_ok());
        assert!(on(&"off port 1\n".repeat(MOST_PORTS + 1), "/x", 0).is_err());
        assert!(on(&"#".repeat(LONGEST), "/x", 0).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_list_or_none(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = is_on(&text, &Program { paths: [b"/x", b""], user: 0 });
        }
    }
}
