//! Settings made so: in the page that all programs look at, or in the broker's own tables.

use crate::ends::SessionId;
use crate::foreign::Shared;
use crate::program_knobs::{MOST, ProgramKnobs, ring_of, store};
use crate::reply::{Reply, failure, json};
use crate::report::{Failure, ProgramSysctl, Sysctls};
use crate::server::Server;
use crate::settings::{Knob, Origin, Setting};
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl Server {
    /// The built-in values, and what the configuration puts over them.
    pub(crate) fn set_at_first(&mut self) {
        for knob in Knob::ALL {
            self.make_so(knob, self.settings.get(knob));
        }
        for setting in self.config.settings.clone() {
            self.set(&setting);
        }
        self.set_programs();
    }

    /// Has the programs of each name have what the configuration says. A page stays as long as the broker: programs look at it.
    /// Returns the names that had none until now.
    pub(crate) fn set_programs(&mut self) -> Vec<String> {
        let mut new = Vec::new();
        for name in self.config.programs.keys() {
            if self.program_knobs.contains_key(name) {
                continue;
            }
            if self.program_knobs.len() >= MOST {
                tracing::error!(
                    name,
                    "settings for the programs of {MOST} names are there already: start the broker again"
                );
                continue;
            }
            match ProgramKnobs::new(self.knobs.page().cpus.load(Ordering::Relaxed)) {
                Ok(knobs) => {
                    self.program_knobs.insert(name.clone(), knobs);
                    new.push(name.clone());
                }
                Err(error) => tracing::error!(%error, name, "no page for the settings of a program"),
            }
        }
        for knob in Knob::ALL {
            self.show_to_programs(knob);
        }
        new
    }

    /// The page of settings for a program of this name.
    pub(crate) fn knobs_for(&self, name: &str) -> Rc<Shared> {
        self.program_knobs.get(name).map_or_else(|| self.knobs_fd(), |knobs| Rc::clone(&knobs.fd))
    }

    fn show_to_programs(&self, knob: Knob) {
        for (name, knobs) in &self.program_knobs {
            let own =
                self.config.programs.get(name).into_iter().flatten().find(|setting| setting.knob == knob);
            store(knobs.page.page(), knob, own.map_or_else(|| self.settings.get(knob), |own| own.value));
        }
    }

    fn programs_settings(&self) -> Vec<ProgramSysctl> {
        let settings =
            self.config.programs.iter().flat_map(|(name, of)| of.iter().map(move |one| (name, one)));
        let report = |(program, setting): (&String, &Setting)| ProgramSysctl {
            program: program.clone(),
            name: setting.knob.name().to_owned(),
            value: setting.value,
            from: setting.origin.detail(),
        };
        settings.map(report).collect()
    }

    /// Answers `sysctl`: all settings, the one named, or the one that `NAME=VALUE` has changed.
    pub(crate) fn sysctl(&mut self, asker: SessionId, arg: &str) -> Reply {
        let knobs = match arg.split_once('=') {
            None if arg.is_empty() => Knob::ALL.to_vec(),
            None => vec![Knob::of(arg)?],
            Some(_) => vec![self.change(asker, arg)?],
        };
        let sysctls = knobs.into_iter().map(|knob| self.settings.report(knob)).collect();
        let programs = if arg.is_empty() { self.programs_settings() } else { Vec::new() };
        Ok(json(&Sysctls { sysctls, programs }))
    }

    /// Answers `device set`: `[DEVICE] KEY VALUE`.
    pub(crate) fn set_device(&mut self, asker: SessionId, arg: &str) -> Result<(), Failure> {
        let words: Vec<&str> = arg.split_whitespace().collect();
        let names = self.exchange.device.names();
        let (key, value) = match words.as_slice() {
            [key, value] => (*key, *value),
            [device, key, value] if names.contains(device) => (*key, *value),
            [device, _, _] => {
                let hint = format!("the one that there is: {}", names[0]);
                return Err(failure("no such device", device, &hint));
            }
            _ => return Err(failure("cannot set the device", arg, "use: KEY VALUE, as active off")),
        };
        match (key, value) {
            ("active" | "dmb_copy" | "rmem", _) => self.change(asker, &format!("{key}={value}")).map(drop),
            ("dmb_type", "virtual" | "1") => self.sessions.may_change(asker),
            ("dmb_type", _) => {
                let why = "DMBs are virtual memory of processes, there is no physical kind: only 'virtual' can be set";
                Err(failure("cannot set dmb_type", value, why))
            }
            ("xfer_bytes" | "dmbs_cnt", _) => {
                Err(failure("a counter cannot be set", key, "'shunpike device get' reads it"))
            }
            _ => {
                let hint = "use: active on|off, dmb_copy on|off, dmb_type virtual, rmem BYTES";
                Err(failure("the device has no such knob", &format!("{key} {value}"), hint))
            }
        }
    }

    fn change(&mut self, asker: SessionId, text: &str) -> Result<Knob, Failure> {
        let uid = self.sessions.get(&asker).map_or(u32::MAX, |session| session.peer.uid());
        let setting = Setting::parse(text, Origin::RunTime(uid))?;
        self.sessions.may_change(asker)?;
        tracing::info!(name = setting.knob.name(), value = setting.value, uid, "set");
        self.set(&setting);
        Ok(setting.knob)
    }

    pub(crate) fn set(&mut self, setting: &Setting) {
        self.settings.note(setting);
        self.make_so(setting.knob, setting.value);
    }

    fn make_so(&mut self, knob: Knob, value: u64) {
        let number = u32::try_from(value).unwrap_or(u32::MAX);
        // First: a program that is told to close its lanes must not open them again.
        store(self.knobs.page(), knob, value);
        self.show_to_programs(knob);
        match knob {
            Knob::Rmem => self.exchange.expect_rings_of(ring_of(value)),
            Knob::MaxConnsPerLgr => self.exchange.max_conns_per_lgr = number,
            Knob::LimitSmcHs => self.exchange.limit_smc_hs = number != 0,
            Knob::Active => {
                self.exchange.set_active(number != 0);
                if number == 0 {
                    self.revoke_laneless(|_, _| true);
                }
            }
            _ => {}
        }
    }
}
