//! The broker of one measurement, and what it says of the lanes.

use crate::child::{Child, Failed, last_line, wait_for};
use shunpike_broker::report::Stats;
use shunpike_broker::{query, what};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A private broker at a socket of its own.
pub struct Broker {
    pub socket: PathBuf,
    pub child: Child,
}

/// What went over lanes, as `shunpike stats` counts it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Connections of which both ends have been on lanes.
    pub lanes: u64,
    /// Bytes sent on lanes.
    pub bytes: u64,
}

impl Broker {
    pub fn start(shunpike: &Path, directory: &Path, copy: bool) -> Result<Self, Failed> {
        let socket = directory.join("broker.sock");
        let mut command = Command::new(shunpike);
        command.args(["broker", "--private", "--socket"]).arg(&socket);
        // A policy of the user's for other brokers is not part of the measurement.
        command.env("XDG_CONFIG_HOME", directory);
        let log = directory.join("broker.log");
        let child = Child::start(command, &log, None)?;
        let mut broker = Self { socket, child };
        let answers = wait_for(Duration::from_secs(10), || match broker.child.ended() {
            Some(_) => Some(Err(Failed::new(format!("its broker ended: {}", last_line(&log))))),
            None => broker.ask(what::INFO, "").is_ok().then_some(Ok(())),
        });
        answers.unwrap_or_else(|| Err(Failed::new("its broker does not answer")))?;
        broker.ask(what::DEVICE_SET, if copy { "dmb_copy on" } else { "dmb_copy off" })?;
        Ok(broker)
    }

    pub fn ask(&self, what: u16, argument: &str) -> Result<String, Failed> {
        query(&self.socket, what, argument).map_err(|error| Failed::new(error.to_string()))
    }

    pub fn carried(&self) -> Result<Carried, Failed> {
        let stats: Stats = serde_json::from_str(&self.ask(what::STATS, "")?)
            .map_err(|error| Failed::new(format!("the broker's statistics: {error}")))?;
        let lanes = stats.connections.client.smc.min(stats.connections.server.smc);
        Ok(Carried { lanes, bytes: stats.tx.bytes })
    }
}
