//! How a broker is set up.

use crate::address::Address;
use crate::policy::{Policy, Source};
use crate::settings::Setting;
use crate::successor::Successor;
use shunpike_wire::{Eid, Gid};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How a broker is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens. The directory is made if missing.
    pub socket: PathBuf,
    /// Serves its own user (and root) only; otherwise everybody.
    pub private: bool,
    /// Who may be a peer of whom, and what each may take.
    pub policy: Policy,
    /// Where that is read from again.
    pub source: Source,
    /// Settings that differ from the built-in ones, in rising precedence.
    pub settings: Vec<Setting>,
    /// Those of programs by their names, in place of these.
    pub programs: BTreeMap<String, Vec<Setting>>,
    /// Where metrics are served; nowhere otherwise.
    pub metrics: Option<Address>,
    /// The device's GID; otherwise a random one, kept for the boot.
    pub gid: Option<Gid>,
    /// UEIDs, at most 8; where there is none, one of this system's own.
    pub ueids: Vec<Eid>,
    /// Ends this long after the last session did.
    pub idle_exit: Option<Duration>,
    /// Ends once this one serves; its programs go there.
    pub successor: Option<Successor>,
    /// DMBs that the device can hold.
    pub max_dmbs: usize,
    /// Processes served at a time.
    pub max_sessions: usize,
}

impl Config {
    /// A private broker at `socket` that never ends by itself.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            private: true,
            policy: Policy::private(),
            source: Source::none(true, Policy::private()),
            settings: Vec::new(),
            programs: BTreeMap::new(),
            metrics: None,
            gid: None,
            ueids: Vec::new(),
            idle_exit: None,
            successor: None,
            max_dmbs: 32768,
            max_sessions: 4096,
        }
    }

    /// A system-wide broker at `socket`, with the built-in policy.
    pub fn system_wide(socket: PathBuf) -> Self {
        let private = Self::new(socket);
        let policy = Policy::system_wide(private.max_sessions, private.max_dmbs);
        let source = Source::none(false, policy.clone());
        Self { private: false, policy, source, ..private }
    }
}
