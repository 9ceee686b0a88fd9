//! Answers to the tools.

use super::Server;
use super::census::Fresh;
use crate::client::what;
use crate::clock;
use crate::ends::SessionId;
use crate::links::LinkView;
use crate::metrics::Figures;
use crate::policy::Identity;
use crate::reply::{Reply, done, failure, json};
use crate::report::{
    Answer, Check, Device, Failure, Info, LinkGroup, Process, Processes, Seid, Stats, Ueids,
};
use crate::session::{Program, Session};
use crate::settings::Knob;
use shunpike_wire::Eid;
use shunpike_wire::session::{MAX_UEIDS, VERSION};
use std::collections::HashSet;
use std::time::Duration;

/// `info` tells of much else than sums, and comes in time however long these take.
const SOON: Duration = Duration::from_millis(2);

/// The argument of a question.
pub(super) fn text_of(arg: &[u8]) -> Result<&str, Failure> {
    let text =
        std::str::from_utf8(arg).map_err(|_| failure("the argument is not UTF-8", "", "type it again"))?;
    Ok(text.trim())
}

impl Server {
    /// The answer to a query: JSON text, of a type in `report`.
    pub(crate) fn query(&mut self, asker: SessionId, what: u16, arg: &[u8]) -> String {
        let reply = text_of(arg).and_then(|arg| self.reply(asker, what, arg));
        reply.unwrap_or_else(|error| json(&Answer { error: Some(error) }))
    }

    fn reply(&mut self, asker: SessionId, what: u16, arg: &str) -> Reply {
        match what {
            what::STATS => Ok(json(&self.stats())),
            what::STATS_RESET => {
                self.sessions.may_change(asker)?;
                self.ledger.reset();
                Ok(done("the statistics begin anew"))
            }
            what::DEVICE => Ok(json(&self.device())),
            what::DEVICE_SET => {
                self.set_device(asker, arg)?;
                Ok(json(&self.device()))
            }
            what::INFO => Ok(json(&self.info())),
            what::UEID => {
                if arg != "show" {
                    self.sessions.may_change(asker)?;
                }
                self.ueid(arg)
            }
            what::SEID => self.seid(arg),
            what::PROCESSES => Ok(json(&self.processes(asker))),
            what::CHECK => self.check(asker, arg),
            what::SYSCTL => self.sysctl(asker, arg),
            what::TAP => self.taps.begin(&mut self.sessions, &mut self.told.taps, asker),
            what::POLICY_RELOAD => self.reload_for(asker),
            _ => Err(failure("unknown query", &what.to_string(), "is the tool newer than the broker?")),
        }
    }

    /// Tells this broker's life from another's.
    pub(crate) fn life(&self) -> &str {
        &self.system.life
    }

    /// How fresh the figures have to be that an answer is made of, where it is.
    pub(super) fn freshness(&self, asker: SessionId, what: u16) -> Option<Fresh> {
        let is_exact = self.sessions.gets_exact_figures(asker);
        match what {
            what::STATS_RESET => is_exact.then_some(Fresh::Exact),
            what::INFO if !self.config.private => Some(Fresh::Soon(SOON)),
            what::STATS | what::DEVICE | what::PROCESSES | what::INFO if is_exact => Some(Fresh::Exact),
            what::STATS | what::DEVICE | what::PROCESSES => Some(Fresh::Lately),
            _ => None,
        }
    }

    fn stats(&self) -> Stats {
        let at_us =
            self.census.counted_at().map(|at| at.saturating_duration_since(self.began).as_micros() as u64);
        Stats { broker: self.life().to_owned(), at_us, ..self.ledger.report() }
    }

    /// What metrics are made of: counts since the broker began, whatever was reset.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            info: self.info(),
            stats: self.ledger.total(),
            settings: Knob::ALL.into_iter().map(|knob| self.settings.report(knob)).collect(),
            open: self.ledger.open(),
        }
    }

    /// A process that shares its arena with the one that made it is counted there.
    fn processes(&self, asker: SessionId) -> Processes {
        let is_shown = self.sessions.is_shown(asker);
        let mut seen = HashSet::new();
        let mut programs: Vec<_> =
            self.sessions.programs().filter(|(id, ..)| is_shown(&self.sessions, *id)).collect();
        programs.sort_by_key(|(id, ..)| *id);
        let processes = programs.into_iter().filter(|(_, _, program)| seen.insert(program.key));
        let process = |session: &Session, program: &Program| Process {
            pid: session.peer.pid,
            uid: session.peer.uid(),
            comm: program.comm.clone(),
            ..self.ledger.process(program.key)
        };
        Processes { processes: processes.map(|(_, session, program)| process(session, program)).collect() }
    }

    /// Whether an asker hears that there is such a session: one that it may neither look into nor have as a peer is as none.
    pub(super) fn may_know_of(&self, asker: SessionId, id: SessionId) -> bool {
        let [asking, its] =
            [asker, id].map(|id| self.sessions.get(&id).map(|session| &session.peer.identity));
        let is_peer = |(asking, its)| self.config.policy.permits(asking, its);
        asking.zip(its).is_some_and(is_peer) || self.sessions.is_shown(asker)(&self.sessions, id)
    }

    /// Whether a lane between the asker and a process would be allowed. The user is the tool's word: it only
    /// decides what the tool says.
    fn check(&self, asker: SessionId, arg: &str) -> Reply {
        let wrong = || failure("not a process", arg, "use: PID UID");
        let (pid, uid) = arg.split_once(' ').ok_or_else(wrong)?;
        let pid: u32 = pid.parse().map_err(|_| wrong())?;
        let uid: u32 = uid.parse().map_err(|_| wrong())?;
        let asking = self.sessions.get(&asker).map(|session| &session.peer.identity).ok_or_else(wrong)?;
        let policy = &self.config.policy;
        let known = self.sessions.iter().find(|(id, session)| {
            session.is_programs() && pid != 0 && session.peer.pid == pid && self.may_know_of(asker, **id)
        });
        let of_user = Identity::of_user(uid);
        let permitted = policy.permits(asking, known.map_or(&of_user, |(_, session)| &session.peer.identity));
        let other_version =
            self.sessions.other_versions(|_, its| its == pid).first().map(|other| other.version);
        Ok(json(&Check {
            active: self.settings.get(Knob::Active) != 0,
            session: (permitted || known.is_some()).then_some(known.is_some()),
            other_version: other_version.filter(|_| known.is_some()),
            permitted,
            peers: policy.report().peers,
            advice: if permitted { String::new() } else { policy.how_to_join() },
        }))
    }

    fn device(&self) -> Device {
        let device = self.exchange.device.as_ref();
        let on = |knob| self.settings.get(knob) != 0;
        Device {
            name: device.names()[0].to_owned(),
            gid: device.local_gid().to_string(),
            chid: device.chid().to_string(),
            active: on(Knob::Active),
            dmb_copy: on(Knob::DmbCopy),
            dmb_type: "virtual".to_owned(),
            xfer_bytes: self.ledger.moved(),
            rmem: self.settings.get(Knob::Rmem),
            dmbs_cnt: device.dmb_count() as u64,
            max_dmbs: device.dmb_limit() as u64,
            link_groups: self.exchange.links.len() as u64,
            sessions: self.sessions.programs().count() as u64,
        }
    }

    fn info(&self) -> Info {
        Info {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: VERSION,
            smc: "SMC-Dv2.1".to_owned(),
            pid: std::process::id(),
            socket: self.config.socket.display().to_string(),
            private: self.config.private,
            policy: self.config.policy.report(),
            privileged: self.is_privileged(),
            uptime: clock::since(self.began).as_secs(),
            sessions: self.sessions.programs().count() as u64,
            other_versions: self.sessions.laneless().count() as u64,
            waiting: self.exchange.waiting() as u64,
            ueids: self.system.report(),
            open_files: crate::runtime::open_files(),
            device: self.device(),
        }
    }

    fn ueid(&mut self, arg: &str) -> Reply {
        let ueids = &mut self.system.ueids;
        match arg.split_once(' ').unwrap_or((arg, "")) {
            ("show", "") => {}
            ("flush", "") => ueids.clear(),
            ("add", text) => {
                let form = "up to 32 of A-Z, 0-9, '.' and '-', beginning with a letter or digit";
                let ueid = Eid::ueid(text).map_err(|error| failure(&error.to_string(), text, form))?;
                if ueids.contains(&ueid) {
                    return Err(failure("this UEID is there already", text, "nothing to do"));
                }
                if ueids.len() >= MAX_UEIDS {
                    return Err(failure("no room for another UEID", text, "remove one first (ueid del)"));
                }
                ueids.push(ueid);
            }
            ("del", text) => {
                let at = Eid::ueid(text).ok().and_then(|ueid| ueids.iter().position(|u| *u == ueid));
                let unknown = || failure("no such UEID", text, "'ueid show' lists them");
                ueids.remove(at.ok_or_else(unknown)?);
            }
            _ => return Err(failure("unknown UEID command", arg, "use: show, add X, del X, flush")),
        }
        Ok(json(&Ueids { ueids: self.system.report() }))
    }

    fn seid(&self, arg: &str) -> Reply {
        match arg {
            "show" | "disable" => {
                Ok(json(&Seid { seid: self.system.seid.0.as_str().to_owned(), enabled: false }))
            }
            // As the kernel's smc_nl_enable_seid() (EOPNOTSUPP).
            "enable" => Err(failure("this host has no SEID", "seid", "only s390 has; use a UEID (ueid add)")),
            _ => Err(failure("unknown SEID command", arg, "use: show, enable, disable")),
        }
    }

    /// What was found, or why not: also who would have had to ask.
    pub(super) fn found<T>(&self, asker: SessionId, found: Result<T, Failure>) -> Result<T, Failure> {
        found.map_err(|failure| match failure.what.as_str() {
            "not permitted" => self.sessions.may_change(asker).err().unwrap_or(failure),
            _ => failure,
        })
    }

    /// With the processes that are shown.
    pub(super) fn link_group(&self, view: LinkView, is_shown: impl Fn(SessionId) -> bool) -> LinkGroup {
        let who = |id| match self.sessions.get(&id).filter(|_| is_shown(id)) {
            Some(session) => {
                let comm = session.program().map_or(String::new(), |program| program.comm.clone());
                (session.peer.pid, comm)
            }
            None => (0, String::new()),
        };
        let ((client_pid, client_comm), (server_pid, server_comm)) = (who(view.client), who(view.server));
        let cqs = |session| self.exchange.cqs(session) as u32;
        LinkGroup {
            id: view.id.0,
            conns: view.conns,
            max_conns: self.exchange.max_conns_per_lgr,
            client_pid,
            client_comm,
            server_pid,
            server_comm,
            state: if view.known { "LINK_ACTIVE" } else { "LINK_ACTIVATING" }.to_owned(),
            client_cqs: cqs(view.client),
            server_cqs: cqs(view.server),
        }
    }
}
