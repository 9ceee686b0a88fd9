//! `shunpike broker`: from options to the broker library's configuration.

use crate::args::Broker;
use crate::error::Error;
use crate::socket;
use std::path::PathBuf;

/// Serves until killed, or idle.
pub fn serve(args: Broker, named: Option<PathBuf>) -> Result<(), Error> {
    let _ = (args, named);
    Ok(())
}

/// Where a broker listens if not told.
pub fn default_socket(private: bool) -> PathBuf {
    if private { socket::private() } else { socket::SYSTEM.into() }
}
