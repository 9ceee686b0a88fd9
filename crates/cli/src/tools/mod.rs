//! The tools: each asks the broker one question and shows its answer.

mod connections;
mod device;
mod explain;
mod stats;
pub mod table;

use crate::args::{Command, DeviceAction, Format, SeidAction, StatsAction, Sysctl, UeidAction};
use crate::error::Error;
use crate::socket;
use serde::de::DeserializeOwned;
use serde_json::json;
use shunpike_broker::report::{Device, Done, Failure, Seid, Stats, Sysctls, Ueids};
use shunpike_broker::settings::Knob;
use shunpike_broker::{QueryError, query, what};
use std::path::PathBuf;

/// Asks the broker what `command` asks for, and shows the answer.
pub fn ask(command: Command, named: Option<PathBuf>) -> Result<(), Error> {
    let broker = Broker { socket: socket::answering(named)? };
    match command {
        Command::Ss(args) => {
            broker.show(what::SS, "", &args.format, |answer| connections::list(answer, &args))
        }
        Command::Stats(args) => match args.action {
            Some(StatsAction::Reset) => broker.ask(what::STATS_RESET, "").map(drop),
            None => {
                broker.show(what::STATS, "", &args.format, |answer: Stats| stats::show(&answer, args.details))
            }
        },
        Command::Explain(args) => {
            let target = args.target.map(|target| target.to_string()).unwrap_or_default();
            broker.show(what::EXPLAIN, &target, &args.format, explain::show)
        }
        Command::Revoke { target } => {
            broker.show(what::REVOKE, &target.to_string(), &Format::default(), |answer: Done| {
                table::print(&answer.done)
            })
        }
        Command::Device { action } => match action.unwrap_or(DeviceAction::Show(Format::default())) {
            DeviceAction::Show(format) => {
                broker.show(what::DEVICE, "", &format, |answer: Device| device::show(&answer))
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
        Command::Linkgroup(format) => broker.show(what::LINKGROUP, "", &format, connections::link_groups),
        Command::Sysctl(args) => sysctl(&broker, &args),
        Command::Run(_) | Command::Broker(_) | Command::Completions { .. } | Command::Man { .. } => {
            unreachable!("asks no broker")
        }
    }
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
}

impl Broker {
    fn ask(&self, what: u16, argument: &str) -> Result<String, Error> {
        query(&self.socket, what, argument).map_err(|error| match error {
            QueryError::NoBroker { socket, .. } => Error::NoBroker { tried: vec![socket] },
            QueryError::Refused(failure) => Error::Refused(failure),
            other => Error::Query(other),
        })
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

    fn parse<Answer: DeserializeOwned>(&self, text: &str) -> Result<Answer, Error> {
        serde_json::from_str(text)
            .map_err(|error| Error::Answer { socket: self.socket.clone(), reason: error.to_string() })
    }
}
