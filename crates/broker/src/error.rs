//! Why a broker does not serve.

use shunpike_shm::RegionError;
use std::path::PathBuf;

/// Why a broker does not serve.
#[derive(Debug)]
pub enum BrokerError {
    /// Another broker serves this socket.
    AlreadyServed {
        /// The socket.
        socket: PathBuf,
    },
    /// A broker has this place, and nobody can connect to it.
    Unheard {
        /// The socket.
        socket: PathBuf,
        /// The file that it has locked.
        lock: PathBuf,
        /// Its process, where the system tells.
        holder: Option<u32>,
    },
    /// Others than its owner could replace what is in the directory.
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Something that is no socket is in the way.
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// A system call on a file.
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A system call on no file in particular.
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// Metrics cannot be served.
    Metrics {
        /// Where.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// No memory for the knob page.
    Region(RegionError),
}

impl core::fmt::Display for BrokerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BrokerError::AlreadyServed { socket } => {
                write!(
                    f,
                    "another broker serves {} already; use that one, or another --socket",
                    socket.display()
                )
            }
            BrokerError::Unheard { socket, lock, holder } => {
                let (who, end) = match holder {
                    Some(pid) => (format!("PID {pid}"), format!("end that process ('kill {pid}')")),
                    None => ("a broker".to_owned(), "end that broker".to_owned()),
                };
                write!(
                    f,
                    "{who} has {} locked, as the broker that serves {}, but nobody listens at that socket, which was removed or is of \
                     a broker that hangs; {end} and start this one again, or choose another --socket",
                    lock.display(),
                    socket.display()
                )
            }
            BrokerError::UnsafeDirectory { path } => write!(
                f,
                "{} is not a directory of yours (or root's) that only its owner can write to: \
                 anybody could pose as the broker there; chmod go-w it, or choose another --socket",
                path.display()
            ),
            BrokerError::NotASocket { path } => {
                write!(f, "{} is no socket and stays; choose another --socket", path.display())
            }
            BrokerError::Io { what, path, error } => write!(f, "cannot {what} {}: {error}", path.display()),
            BrokerError::System { what, error } => write!(f, "cannot {what}: {error}"),
            BrokerError::Metrics { address, error } => {
                write!(f, "cannot serve metrics at {address}: {error}; choose another --metrics")
            }
            BrokerError::Region(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BrokerError {}

impl From<RegionError> for BrokerError {
    fn from(error: RegionError) -> Self {
        BrokerError::Region(error)
    }
}
