//! The policy read again, while all is served: taken as a whole, or not at all.

use super::Server;
use crate::ends::SessionId;
use crate::policy::{Policy, PolicyError};
use crate::reply::{Reply, failure, json};
use crate::report::Reloaded;
use crate::settings::{Knob, Origin, Setting};

impl Server {
    /// Answers `policy reload`.
    pub(crate) fn reload_for(&mut self, asker: SessionId) -> Reply {
        self.sessions.may_change(asker)?;
        match self.reload() {
            Ok(reloaded) => Ok(json(&reloaded)),
            Err(error) => {
                let hint = "nothing has changed: the policy from before holds; 'shunpike policy check FILE' looks at a file \
                            before it is taken";
                Err(failure("the policy is not taken", &error.to_string(), hint))
            }
        }
    }

    /// Reads the policy's file again. Lanes between two ends that it does not let be peers go back to TCP. What is over a limit
    /// by now stays: nothing new is given until it is not.
    pub(crate) fn reload(&mut self) -> Result<Reloaded, PolicyError> {
        let refused = |error: PolicyError| {
            tracing::error!(%error, "policy not taken: the one from before holds");
            error
        };
        // All wait for this: for groups that /etc/group does not have for three seconds at most (policy::group::PATIENCE).
        let read = self.config.source.read().map_err(refused)?;
        let before = std::mem::replace(&mut self.config.policy, read.policy.clone());
        if let Err(error) = self.own_socket(&before) {
            let path = read.policy.file.unwrap_or_default();
            self.config.policy = before;
            return Err(refused(PolicyError { path, line: None, what: format!("[socket]: {error}") }));
        }
        let settings = self.reload_settings(read.settings);
        self.config.programs = read.programs;
        let mut notes: Vec<String> = Vec::new();
        let new = self.set_programs();
        if !new.is_empty() {
            let names = new.join(", ");
            notes.push(format!(
                "[program.NAME] is new for {names}: those that run already take it when they start again"
            ));
        }
        if read.metrics.is_some() && read.metrics != self.config.metrics {
            notes.push("[metrics] is taken when the broker starts: restart it for that".to_owned());
        }
        let revoked = self.exchange.set_policy(read.policy);
        let policy = self.config.policy.report();
        tracing::info!(
            file = policy.file.as_deref().unwrap_or("built in"),
            peers = policy.peers,
            revoked,
            settings = settings.join(" "),
            "policy taken"
        );
        Ok(Reloaded { changed: before != self.config.policy, policy, settings, revoked, notes })
    }

    /// Gives the socket the mode and group of the policy, where they are others than before.
    fn own_socket(&self, before: &Policy) -> std::io::Result<()> {
        let Policy { socket_mode, socket_group, .. } = &self.config.policy;
        if (before.socket_mode, &before.socket_group) == (*socket_mode, socket_group) {
            return Ok(());
        }
        // Without a group it is the broker's own again.
        let group = socket_group.as_ref().map_or(rustix::process::getegid().as_raw(), |group| group.gid);
        self.place.own(*socket_mode, group)
    }

    /// Settings of the file, where nothing that has precedence over it says otherwise. Returns those that are another value now.
    fn reload_settings(&mut self, read: Vec<Setting>) -> Vec<String> {
        let is_files = |origin: &Origin| matches!(origin, Origin::File(_));
        let later = self.config.settings.extract_if(.., |setting| !is_files(&setting.origin));
        let later: Vec<Setting> = later.collect();
        self.config.settings = read.iter().cloned().chain(later).collect();
        let mut changed = Vec::new();
        for knob in Knob::ALL {
            let origin = self.settings.origin(knob);
            if !is_files(origin) && *origin != Origin::Default {
                continue;
            }
            let said = read.iter().rev().find(|setting| setting.knob == knob).cloned();
            let setting = said.unwrap_or_else(|| Setting::built_in(knob));
            if self.settings.get(knob) != setting.value {
                changed.push(format!("{}={}", knob.name(), setting.value));
                self.set(&setting);
            } else {
                self.settings.note(&setting);
            }
        }
        changed
    }
}
