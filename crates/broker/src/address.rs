//! Where metrics are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where metrics are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// By TCP.
    Tcp(SocketAddr),
    /// By a UNIX stream socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err("write unix:/PATH".into()) };
        }
        let wrong = |_| "write ADDRESS:PORT, as 127.0.0.1:9477 or [::1]:9477, or unix:/PATH".to_owned();
        text.parse().map(Self::Tcp).map_err(wrong)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
