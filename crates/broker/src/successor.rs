//! The broker for whom another one makes room: the system's, for one that `run` has started in its absence. Programs of two brokers
//! have no lanes between them.

use crate::dial::who_serves;
use shunpike_shm::place::Place;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// How often it is looked for. There is nothing that would tell: its directory may not be there yet, or be mounted.
pub const LOOK: Duration = Duration::from_secs(1);

/// Where it is to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Successor {
    socket: PathBuf,
}

impl Successor {
    /// The one at this socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Whether it serves, and our programs may go there. Never waits.
    pub fn serves(&self) -> bool {
        Place::of(self.socket.as_os_str().as_bytes())
            .is_ok_and(|place| who_serves(&self.socket).is_ok_and(|uid| place.may_serve(uid)))
    }
}
