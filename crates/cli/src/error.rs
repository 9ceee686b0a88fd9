//! What can go wrong in a tool: what failed, on what, and what to do about it.

use crate::filter::FilterError;
use crate::program;
use crate::socket::{self, Tried};
use shunpike_broker::policy::PolicyError;
use shunpike_broker::report::Failure;
use shunpike_broker::{BrokerError, QueryError};
use shunpike_shm::RegionError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A failed command.
#[derive(Debug)]
pub enum Error {
    /// No broker answers at any of these sockets.
    NoBroker {
        /// Where it was looked for.
        tried: Vec<Tried>,
    },
    /// The broker was reached, and gave no answer.
    Query(QueryError),
    /// The broker answered, but not what this version understands.
    Answer {
        /// The socket.
        socket: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The broker could not do it.
    Refused(Failure),
    /// A file that comes with this command is not where it is looked for.
    NotShipped {
        /// Its name.
        name: &'static str,
        /// The variable that may name another one.
        variable: Option<&'static str>,
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// `run --set`, and a broker is there whose settings are for others, too.
    SettingsOfOthers {
        /// Its socket.
        socket: PathBuf,
    },
    /// `run --broker=system`, and none serves.
    NoSystemBroker {
        /// How long it was waited for, seconds.
        waited: u32,
    },
    /// `run --broker` beside `--socket`.
    TwoBrokers,
    /// The library is somewhere where ld.so cannot be pointed at.
    LibraryPath(PathBuf),
    /// CMD could not be executed.
    Exec {
        /// The program, as given.
        command: String,
        /// Why.
        source: io::Error,
        /// What it needs and is not there.
        missing: Option<program::Missing>,
    },
    /// `linkgroup` of one that there is not.
    NoLinkGroup(u32),
    /// A file could not be written.
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no list of libraries to preload for containers beside the library.
    NoContainerList {
        /// Where it was looked for.
        path: PathBuf,
        /// The library.
        library: PathBuf,
    },
    /// A specification that no engine would look at.
    CdiName(PathBuf),
    /// A path that cannot stand in a specification.
    CdiPath(PathBuf),
    /// No name of a service.
    UnitName(String),
    /// No such service.
    NoUnit {
        /// Its name.
        name: String,
        /// In which system.
        root: PathBuf,
    },
    /// The service is masked.
    MaskedUnit {
        /// Its name.
        name: String,
        /// The link that masks it.
        file: PathBuf,
    },
    /// The drop-in is masked.
    MaskedDropIn {
        /// The service.
        name: String,
        /// The link that masks it.
        file: PathBuf,
    },
    /// A file could not be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The list of what is on cannot be understood.
    List {
        /// The list.
        path: PathBuf,
        /// The line; 0: the whole.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// Others could change what is to be in every program.
    UnsafeLibrary {
        /// The library.
        library: PathBuf,
        /// What others could change.
        path: PathBuf,
        /// Why they could.
        why: Unsafe,
    },
    /// Programs of some users could not read what all of them have to.
    NotForAll {
        /// The library, or the list.
        file: PathBuf,
        /// What is closed to them: it, or a directory above.
        path: PathBuf,
        /// What others lack there, as chmod(1) has it.
        right: char,
    },
    /// The loader of this system's programs reads no /etc/ld.so.preload.
    Musl,
    /// A program did not start well with the library.
    LibraryFails {
        /// The library.
        library: PathBuf,
        /// What came of it.
        why: String,
    },
    /// What lies below another root is not this command's library, and so not tried.
    LibraryDiffers {
        /// The library there.
        library: PathBuf,
        /// This command's.
        own: PathBuf,
    },
    /// `chk` cannot make an address of what it was given.
    Target {
        /// As given.
        target: String,
        /// Why.
        why: String,
    },
    /// `top` has no terminal to draw on.
    NoTerminal,
    /// Standard output could not be written.
    Output(io::Error),
    /// `tap -w -` to a terminal.
    Terminal,
    /// A filter of `ss` or `tap` cannot be understood.
    Filter(FilterError),
    /// There is no memory for a ring of `tap`.
    TapMemory(RegionError),
    /// Wireshark asks for an interface that there is not.
    ExtcapInterface(String),
    /// Wireshark does not say where to.
    ExtcapFifo,
    /// The broker's policy cannot be used.
    Policy(PolicyError),
    /// The broker could not serve.
    Broker(BrokerError),
    /// No broker could be started in the background.
    Background {
        /// Where it was to serve.
        socket: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The bench has no result.
    Bench(shunpike_bench::Error),
    /// The path of this program cannot be found out.
    Itself(io::Error),
    /// A standard descriptor is closed, and /dev/null could not be opened in its place.
    Descriptors(io::Error),
    /// The broker could not arrange to be told to end.
    Signals(io::Error),
}

/// Why others than root could change a file.
#[derive(Debug)]
pub enum Unsafe {
    /// It is this user's.
    Owner(u32),
    /// Others may write it.
    Writable,
}

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsafe::Owner(uid) => write!(f, "is of uid {uid}"),
            Unsafe::Writable => f.write_str("may be written by others than root"),
        }
    }
}

impl Error {
    /// Exit status of a broker that finds another one in its place.
    pub const ALREADY_SERVED: u8 = 3;

    /// The process's exit status. `run` keeps 126 and 127 as shells do, and 125 for itself as env(1) does.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Error::Exec { .. } => 126,
            Error::Filter(_) => 2,
            Error::Broker(BrokerError::AlreadyServed { .. } | BrokerError::Unheard { .. }) => {
                Self::ALREADY_SERVED
            }
            Error::NotShipped { variable: Some(_), .. }
            | Error::LibraryPath(_)
            | Error::SettingsOfOthers { .. }
            | Error::NoSystemBroker { .. }
            | Error::TwoBrokers
            | Error::Itself(_) => 125,
            _ => 1,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoBroker { tried } => {
                write!(f, "no broker answers at {}", list(tried))?;
                if let Some(stale) = socket::stale_runtime_directory() {
                    write!(f, "; {stale}, and was left aside")?;
                }
                if tried.iter().any(Tried::is_forbidden) {
                    // Who may ask is the broker's policy to say.
                    return write!(
                        f,
                        "; its users are those who may enter its directory: ask as one of them, or as root, or name another \
                         socket with --socket, or start a program with 'shunpike run'"
                    );
                }
                write!(
                    f,
                    "; start a program with 'shunpike run', or a broker with 'shunpike broker', or name its socket with \
                     --socket"
                )
            }
            Error::Query(error @ QueryError::Broken { .. }) => {
                write!(f, "{error}; is it overloaded or stopped?")
            }
            Error::Query(error) => error.fmt(f),
            Error::Answer { socket, reason } => write!(
                f,
                "the broker at {} answers what this version does not understand ({reason}); restart it with \
                 this version",
                socket.display()
            ),
            Error::Refused(failure) => failure.fmt(f),
            Error::NotShipped { name, variable, tried } => {
                let places = list(&tried.iter().map(|path| path.display()).collect::<Vec<_>>());
                write!(f, "{name} is not at {places}; install it there")?;
                variable.map_or(Ok(()), |variable| write!(f, " or set {variable} to its path"))
            }
            Error::SettingsOfOthers { socket } => write!(
                f,
                "'--set' is for a broker that 'run' starts, and one serves at {} already: its settings are for all its \
                 programs; change them with 'shunpike sysctl -w NAME=VALUE'",
                socket.display()
            ),
            Error::NoSystemBroker { waited } => write!(
                f,
                "the system's broker does not serve at {} (waited for {waited} s); start it ('systemctl start shunpike-broker', or \
                 'shunpike broker' as root), let --wait be longer, or leave --broker=system away",
                crate::socket::SYSTEM
            ),
            Error::TwoBrokers => {
                write!(f, "--broker chooses a broker, and --socket names one: leave one of the two away")
            }
            Error::LibraryPath(path) => write!(
                f,
                "cannot preload {}: LD_PRELOAD takes no path with a space or colon, or that is not absolute, and 'enable' none with \
                 a quote or one of # $ \\; move it, or set SHUNPIKE_LIB to a copy",
                path.display()
            ),
            Error::Exec { command, missing: Some(missing), .. } => {
                write!(f, "cannot run '{command}': {missing}")
            }
            Error::Exec { command, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                write!(f, "cannot run '{command}': not found; check the name and PATH")
            }
            Error::Exec { command, source, .. } => {
                write!(f, "cannot run '{command}': {source}; is it an executable program?")
            }
            Error::NoLinkGroup(id) => {
                write!(f, "no link group {id:08x}; 'shunpike linkgroup' lists those that there are")
            }
            Error::Write { path, source } => {
                write!(f, "cannot write {}: {source}; {}", path.display(), what_to_do(source))
            },
            Error::NoContainerList { path, library } => write!(
                f,
                "the list of libraries for containers is not at {}; install it there ('make install' and the package do, beside {})",
                path.display(),
                library.display()
            ),
            Error::CdiName(path) => write!(
                f,
                "engines look at no file that is named as {}; let the name end with .json or .yaml, as /etc/cdi/shunpike.json",
                path.display()
            ),
            Error::CdiPath(path) => write!(
                f,
                "the path {} is not UTF-8, as JSON has to be; move what is there, or set SHUNPIKE_LIB or --socket to another path",
                path.display()
            ),
            Error::UnitName(name) => {
                write!(
                    f,
                    "'{name}' is no service of systemd; write its name, as redis-server or redis-server.service"
                )
            }
            Error::NoUnit { name, root } => write!(
                f,
                "there is no unit {name} in the system at {}; 'systemctl list-unit-files --type=service' lists those that there are",
                root.display()
            ),
            Error::MaskedUnit { name, file } => {
                write!(f, "{name} is masked by {}; 'systemctl unmask {name}' first", file.display())
            }
            Error::MaskedDropIn { name, file } => write!(
                f,
                "the drop-in of {name} is masked: {} leads to /dev/null; 'shunpike disable {name}' removes that link, then enable it",
                file.display()
            ),
            Error::Read { path, source } => {
                write!(f, "cannot read {}: {source}; {}", path.display(), what_to_do(source))
            },
            Error::List { path, line: 0, why } => {
                write!(
                    f,
                    "cannot use the list {}: {why}; nothing was changed; correct it, or move it away",
                    path.display()
                )
            }
            Error::List { path, line, why } => {
                write!(
                    f,
                    "cannot use the list {}: line {line}: {why}; nothing was changed; correct it",
                    path.display()
                )
            }
            Error::UnsafeLibrary { library, path, why } => write!(
                f,
                "{} cannot be in every program: {} {why}; install it where only root writes, as in /usr/lib",
                library.display(),
                path.display()
            ),
            Error::NotForAll { file, path, right } => write!(
                f,
                "programs of other users could not read {}; nothing was changed; 'chmod o+{right} {}', or install it elsewhere",
                file.display(),
                path.display()
            ),
            Error::Musl => f.write_str(
                "the programs of this system are musl's, whose loader does not read /etc/ld.so.preload; nothing was changed; start \
                 them with 'shunpike run', or with LD_PRELOAD and SHUNPIKE_SOCKET in their environment (docs/running.md)",
            ),
            Error::LibraryFails { library, why } => write!(
                f,
                "a program that loads {} does not start well ({why}); nothing was changed; is it built for this system?",
                library.display()
            ),
            Error::LibraryDiffers { library, own } => write!(
                f,
                "{} is not the same as {}, and what belongs to another system is not run here to see whether it loads; copy it there, \
                 or run that system's own 'shunpike enable --all' in it (chroot)",
                library.display(),
                own.display()
            ),
            Error::Target { target, why } => {
                write!(f, "cannot find '{target}': {why}; write HOST:PORT, as localhost:80 or [::1]:80")
            }
            Error::NoTerminal => write!(f, "'top' needs a terminal; without one use --once, or --batch N"),
            Error::Terminal => {
                write!(
                    f,
                    "a capture is nothing for a terminal: name a file, or pipe it, as 'shunpike tap -w - | tshark -r -'"
                )
            }
            Error::Filter(error) => error.fmt(f),
            Error::TapMemory(error) => write!(f, "no memory for a ring: {error}; try a smaller --buffer"),
            Error::ExtcapInterface(name) => {
                write!(
                    f,
                    "no interface '{name}': there is one, 'shunpike'; Wireshark names it by --extcap-interface"
                )
            }
            Error::ExtcapFifo => write!(f, "--capture needs --fifo, where the capture is to be written"),
            Error::Output(source) => write!(f, "cannot write to standard output: {source}"),
            Error::Policy(error) => write!(f, "cannot use the policy {error}"),
            Error::Broker(error) => error.fmt(f),
            Error::Background { socket, reason } => {
                write!(f, "no broker could be started at {}: {reason}", socket.display())
            }
            Error::Bench(error) => error.fmt(f),
            Error::Itself(source) => write!(
                f,
                "cannot find out the path of this program by /proc/self/exe: {source}; mount /proc, as with 'mount -t proc proc /proc'"
            ),
            Error::Descriptors(source) => write!(
                f,
                "a standard descriptor is closed, and /dev/null cannot be opened in its place: {source}; start it with 0 to 2 open"
            ),
            Error::Signals(source) => write!(f, "cannot set up the broker's signals: {source}"),
        }
    }
}

impl std::error::Error for Error {}

/// No broker answers at any of these.
impl From<Vec<Tried>> for Error {
    fn from(tried: Vec<Tried>) -> Self {
        Error::NoBroker { tried }
    }
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::NoBroker { socket, error } => {
                Error::NoBroker { tried: vec![Tried::new(socket, error)] }
            }
            QueryError::Refused(failure) => Error::Refused(failure),
            other => Error::Query(other),
        }
    }
}

/// Of a file that could not be read or written.
fn what_to_do(error: &io::Error) -> &'static str {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::WouldBlock => "wait for it, and try again",
        // Ours: it is another user's, or no file.
        _ if error.raw_os_error().is_none() => "move it away, or name another path",
        ErrorKind::PermissionDenied => "do it as root, or as the user whose it is",
        ErrorKind::ReadOnlyFilesystem => {
            "name a path on a file system that can be written, or mount this one so"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room there, or name another path",
        _ => "see what is at that path, and whether its directory is there",
    }
}

fn list(places: &[impl ToString]) -> String {
    let names: Vec<String> = places.iter().map(ToString::to_string).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_failed_it_is_said_what_to_do() {
        let denied = io::Error::new(io::ErrorKind::PermissionDenied, "it is a link of uid 1's");
        for (source, words) in [
            (io::Error::from_raw_os_error(libc::EACCES), "as root"),
            (io::Error::from_raw_os_error(libc::ENOSPC), "make room"),
            (io::Error::from_raw_os_error(libc::EROFS), "mount"),
            (io::Error::from_raw_os_error(libc::ENOENT), "directory is there"),
            (denied, "name another path"),
        ] {
            let text = Error::Write { path: "/x".into(), source }.to_string();
            let advice = text.rsplit_once("; ").map(|(_, advice)| advice);
            assert!(advice.is_some_and(|advice| advice.contains(words)), "{text}");
        }
    }
}
