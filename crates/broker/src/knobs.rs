//! Settings made so: in the page that all programs look at, or in the broker's own tables.

use crate::ends::SessionId;
use crate::reply::{Reply, failure, json};
use crate::report::{Failure, Sysctls};
use crate::server::Server;
use crate::settings::{Knob, Origin, Setting};
use shunpike_wire::DmbSize;
use std::sync::atomic::Ordering;

/// The one device.
const DEVICE: &str = "loopback-ism";
/// ... as Linux 6.18's dibs calls it.
const DIBS_NAME: &str = "lo";

impl Server {
    /// The built-in values, and what the configuration puts over them.
    pub(crate) fn set_at_first(&mut self) {
        for knob in Knob::ALL {
            self.make_so(knob, self.settings.get(knob));
        }
        for setting in self.config.settings.clone() {
            self.set(&setting);
        }
    }

    /// Answers `sysctl`: all settings, the one named, or the one that `NAME=VALUE` has changed.
    pub(crate) fn sysctl(&mut self, asker: SessionId, arg: &str) -> Reply {
        let knobs = match arg.split_once('=') {
            None if arg.is_empty() => Knob::ALL.to_vec(),
            None => vec![Knob::of(arg)?],
            Some(_) => vec![self.change(asker, arg)?],
        };
        let sysctls = knobs.into_iter().map(|knob| self.settings.report(knob)).collect();
        Ok(json(&Sysctls { sysctls }))
    }

    /// Answers `device set`: `[loopback-ism] KEY VALUE`.
    pub(crate) fn set_device(&mut self, asker: SessionId, arg: &str) -> Result<(), Failure> {
        let words: Vec<&str> = arg.split_whitespace().collect();
        let (key, value) = match words.as_slice() {
            [DEVICE | DIBS_NAME, key, value] | [key, value] => (*key, *value),
            [device, _, _] => {
                return Err(failure("no such device", device, "the one that there is: loopback-ism"));
            }
            _ => return Err(failure("cannot set the device", arg, "use: KEY VALUE, as active off")),
        };
        match (key, value) {
            ("active" | "dmb_copy" | "rmem", _) => self.change(asker, &format!("{key}={value}")).map(drop),
            ("dmb_type", "virtual" | "1") => self.may_change(asker),
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
        self.may_change(asker)?;
        tracing::info!(name = setting.knob.name(), value = setting.value, uid, "set");
        self.set(&setting);
        Ok(setting.knob)
    }

    pub(crate) fn set(&mut self, setting: &Setting) {
        self.settings.note(setting);
        self.make_so(setting.knob, setting.value);
    }

    fn make_so(&mut self, knob: Knob, value: u64) {
        let page = self.knobs.page();
        let number = u32::try_from(value).unwrap_or(u32::MAX);
        let word = match knob {
            Knob::Rmem => {
                let size = usize::try_from(value).ok().and_then(DmbSize::holding).unwrap_or(DmbSize::MIN);
                page.rmem_class.store(size.class().into(), Ordering::Relaxed);
                return self.exchange.expect_rings_of(size);
            }
            Knob::MaxConnsPerLgr => return self.exchange.max_conns_per_lgr = number,
            Knob::LimitSmcHs => return self.exchange.limit_smc_hs = number != 0,
            Knob::Active => {
                // The knob first: a program that is told to close its lanes must not open them again.
                page.active.store(number, Ordering::Release);
                self.exchange.set_active(number != 0);
                if number == 0 {
                    self.revoke_laneless(|_, _| true);
                }
                return;
            }
            Knob::DmbCopy => &page.dmb_copy,
            Knob::Wmem => &page.wmem,
            Knob::MaxCqs => &page.max_cqs,
            Knob::LendBytes => &page.lend_bytes,
            Knob::NominateCalls => &page.nominate_calls,
            Knob::NominateBytes => &page.nominate_bytes,
            Knob::Profile => &page.profile,
            Knob::SpinUs => &page.spin_us,
            Knob::GraceMs => &page.grace_ms,
        };
        word.store(number, Ordering::Relaxed);
    }
}
