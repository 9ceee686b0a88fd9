//! The tools: each asks the broker one question and shows its answer.

mod baseline;
mod chk;
mod connections;
mod dbg;
mod device;
mod events;
mod explain;
mod pids;
pub mod policy;
mod presence;
mod select;
mod stats;
pub mod table;
pub mod tap;
pub mod top;

use crate::args::{
    Command, DeviceAction, Format, LinkgroupAction, PolicyAction, SeidAction, StatsAction, Sysctl, Target,
    UeidAction,
};
use crate::error::Error;
use crate::filter::Filter;
use crate::socket;
use pids::Pids;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shunpike_broker::report::{
    Connections, Device, Done, Explanations, Failure, LinkGroups, Seid, Stats, Sysctls, Ueids,
};
use shunpike_broker::settings::Knob;
use shunpike_broker::{query, what};
use std::path::PathBuf;

/// Asks the broker what `command` asks for, and shows the answer.
pub fn ask(command: Command, named: Option<PathBuf>) -> Result<(), Error> {
    let broker = Broker::answering(named)?;
    match command {
        Command::Ss(args) => {
            let filter: Filter<select::Wanted> = args.filter.join(" ").parse().map_err(Error::Filter)?;
            let mut answer = broker.connections()?;
            answer.connections.retain(|connection| {
                filter.admits(&|wanted: &select::Wanted| wanted.holds(&connection.into()))
            });
            if args.format.json {
                return table::print_report(&answer);
            }
            connections::list(answer, &args)
        }
        Command::Stats(args) => match args.action {
            Some(StatsAction::Reset { all: true }) => broker.ask(what::STATS_RESET, "").map(drop),
            Some(StatsAction::Reset { all: false }) => {
                baseline::remember(&broker.socket, &broker.answer(what::STATS, "")?)
            }
            action => {
                let mut counts: Stats = broker.answer(what::STATS, "")?;
                if !args.absolute {
                    baseline::since(&broker.socket, &mut counts);
                }
                match action {
                    Some(_) => stats::as_smcd(&counts),
                    None if args.format.json => table::print_json(&json!(counts)),
                    None => stats::show(&counts, args.details),
                }
            }
        },
        Command::Explain(args) => {
            let answer = match args.target {
                Some(target) => broker
                    .target(target)
                    .and_then(|theirs| broker.answer(what::EXPLAIN, &theirs))
                    .map_err(|error| explain::without_answer(target.pid, error)),
                None => broker.answer(what::EXPLAIN, ""),
            };
            let mut answer: Explanations = answer?;
            connections::complete(answer.explanations.iter_mut().map(|one| &mut one.connection));
            // Its PID and addresses are others by now than those that the broker knew.
            answer.explanations.iter_mut().for_each(|one| one.how = one.connection.how());
            if args.format.json { table::print_report(&answer) } else { explain::show(answer) }
        }
        Command::Revoke { target } => {
            let theirs = broker.target(target)?;
            broker.answer::<Done>(what::REVOKE, &theirs)?;
            table::print(&format!("asked {target} to go back to TCP"))
        }
        Command::Device { action } => match action.unwrap_or(DeviceAction::Show(Format::default())) {
            DeviceAction::Show(format) => {
                broker.show(what::DEVICE, "", &format, |answer: Device| device::show(&answer))
            }
            DeviceAction::List => {
                broker.show(what::DEVICE, "", &Format::default(), |answer: Device| device::list(&answer))
            }
            DeviceAction::Set { words } => {
                broker.show(what::DEVICE_SET, &words.join(" "), &Format::default(), |answer: Device| {
                    device::show(&answer)
                })
            }
            DeviceAction::Get { words } => {
                broker
                    .show(what::DEVICE, "", &Format::default(), |answer: Device| device::get(&answer, &words))
            }
        },
        Command::Policy { action } => {
            policy::ask(&broker, action.unwrap_or(PolicyAction::Show(Format::default())))
        }
        Command::Info(format) => broker.show(what::INFO, "", &format, device::info),
        Command::Ueid { action } => {
            let (change, format) = match action.unwrap_or(UeidAction::Show(Format::default())) {
                UeidAction::Show(format) => ("show".into(), format),
                UeidAction::Add { name } => (format!("add {name}"), Format::default()),
                UeidAction::Del { name } => (format!("del {name}"), Format::default()),
                UeidAction::Flush => ("flush".into(), Format::default()),
            };
            broker.show(what::UEID, &change, &format, |answer: Ueids| device::ueids(&answer))
        }
        Command::Seid { action } => {
            let (change, format) = match action.unwrap_or(SeidAction::Show(Format::default())) {
                SeidAction::Show(format) => ("show", format),
                SeidAction::Enable => ("enable", Format::default()),
                SeidAction::Disable => ("disable", Format::default()),
            };
            broker.show(what::SEID, change, &format, |answer: Seid| device::seid(&answer))
        }
        Command::Linkgroup { action, which } => {
            let (which, show): (_, fn(&LinkGroups) -> _) = match action {
                Some(LinkgroupAction::LinkShow(which)) => (which, connections::links),
                Some(LinkgroupAction::Show(which)) => (which, connections::link_groups),
                None => (which, connections::link_groups),
            };
            let mut answer: LinkGroups = broker.answer(what::LINKGROUP, "")?;
            connections::only(&mut answer, which.id)?;
            if which.format.json { table::print_json(&json!(answer)) } else { show(&answer) }
        }
        Command::Sysctl(args) => sysctl(&broker, &args),
        Command::Events(args) => events::show(&broker, &args),
        Command::Top(args) => top::run(&broker, &args),
        _ => unreachable!("asks no broker"),
    }
}

/// `chk`: whether a connection to `target` would get a lane.
pub fn check(target: &str, named: Option<PathBuf>, connects: bool, format: &Format) -> Result<bool, Error> {
    chk::check(target, Broker::answering(named), connects, format)
}

/// `dbg`, with or without a broker.
pub fn collect(named: Option<PathBuf>, output: Option<PathBuf>) -> Result<(), Error> {
    dbg::collect(Broker::answering(named), output)
}

fn sysctl(broker: &Broker, args: &Sysctl) -> Result<(), Error> {
    if args.words.is_empty() {
        return broker
            .show(what::SYSCTL, "", &args.format, |answer: Sysctls| device::sysctls(&answer, args.all));
    }
    // All are looked at before the first is changed.
    for word in &args.words {
        match word.split_once('=') {
            Some((name, value)) => Knob::of(name).and_then(|knob| knob.value(value)).map(drop),
            None if args.write => Err(Failure {
                what: "nothing to write".into(),
                on: word.clone(),
                hint: "-w takes NAME=VALUE".into(),
            }),
            None => Knob::of(word).map(drop),
        }
        .map_err(Error::Refused)?;
    }
    let mut sysctls = Vec::new();
    for word in &args.words {
        sysctls.extend(broker.answer::<Sysctls>(what::SYSCTL, word)?.sysctls);
    }
    if args.format.json {
        return table::print_json(&json!({ "sysctls": sysctls }));
    }
    sysctls.iter().try_for_each(|setting| table::print(&format!("{} = {}", setting.name, setting.value)))
}

/// A broker that answers.
struct Broker {
    socket: PathBuf,
    pids: Pids,
}

impl Broker {
    fn answering(named: Option<PathBuf>) -> Result<Self, Error> {
        let socket = socket::answering(named)?;
        Ok(Self { pids: Pids::of(&socket), socket })
    }

    /// The answer, with PIDs as they are here.
    fn ask(&self, what: u16, argument: &str) -> Result<String, Error> {
        let text = query(&self.socket, what, argument)?;
        if self.pids.is_same() {
            return Ok(text);
        }
        let mut answer: Value = self.parse(&text)?;
        self.pids.translate(&mut answer);
        Ok(answer.to_string())
    }

    /// What the broker calls the process that is `own` here. Errors: there is none that it tells of.
    fn pid_of(&self, own: u32) -> Result<u32, Error> {
        if self.pids.is_same() {
            return Ok(own);
        }
        let all: Value = self.parse(&query(&self.socket, what::SS, "")?)?;
        self.pids.theirs(own, &all).ok_or_else(|| {
            Error::Refused(Failure {
                what: "no watched connection".into(),
                on: format!("PID {own}"),
                hint: "the broker is in another pid namespace, and knows of no such process in this one; see 'shunpike ss'".into(),
            })
        })
    }

    /// A process or connection, as the broker names it.
    fn target(&self, target: Target) -> Result<String, Error> {
        Ok(Target { pid: self.pid_of(target.pid)?, ..target }.to_string())
    }

    /// Shows the answer as it came, or by `people`.
    fn show<Answer: DeserializeOwned>(
        &self,
        what: u16,
        argument: &str,
        format: &Format,
        people: impl FnOnce(Answer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let text = self.ask(what, argument)?;
        if format.json {
            return table::print(&text);
        }
        people(self.parse(&text)?)
    }

    /// The answer, for a tool that makes something else of it.
    fn answer<Answer: DeserializeOwned>(&self, what: u16, argument: &str) -> Result<Answer, Error> {
        self.parse(&self.ask(what, argument)?)
    }

    /// Where all connections run.
    fn connections(&self) -> Result<Connections, Error> {
        let mut answer: Connections = self.answer(what::SS, "")?;
        connections::complete(answer.connections.iter_mut());
        Ok(answer)
    }

    fn parse<Answer: DeserializeOwned>(&self, text: &str) -> Result<Answer, Error> {
        serde_json::from_str(text)
            .map_err(|error| Error::Answer { socket: self.socket.clone(), reason: error.to_string() })
    }
}
