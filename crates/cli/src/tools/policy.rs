//! `policy`: who may be a peer of whom, looked at, checked, and read again.

use super::table::{Table, print, print_json};
use super::{Broker, device};
use crate::args::PolicyAction;
use crate::error::Error;
use crate::policy::source;
use serde_json::json;
use shunpike_broker::policy::Policy;
use shunpike_broker::report::{Info, Reloaded};
use shunpike_broker::{Config, what};
use std::path::PathBuf;

/// Asks the broker.
pub(super) fn ask(broker: &Broker, action: PolicyAction) -> Result<(), Error> {
    match action {
        PolicyAction::Show(format) => {
            let info: Info = broker.answer(what::INFO, "")?;
            if format.json {
                return print_json(&json!(info.policy));
            }
            let mut table = Table::headless();
            device::policy(&mut table, &info.policy);
            table.print()
        }
        PolicyAction::Reload(format) => broker.show(what::POLICY_RELOAD, "", &format, reloaded),
        PolicyAction::Check { file, private } => check(file, private),
    }
}

/// Looks at a file as a broker would that starts with it. Needs none.
pub fn check(file: Option<PathBuf>, private: bool) -> Result<(), Error> {
    let built_in = if private { Policy::private() } else { Config::system_wide(PathBuf::new()).policy };
    let read = source(file, private, built_in).read().map_err(Error::Policy)?;
    let mut table = Table::headless();
    device::policy(&mut table, &read.policy.report());
    for setting in &read.settings {
        table.row([setting.knob.name(), &setting.value.to_string()]);
    }
    for (program, setting) in
        read.programs.iter().flat_map(|(name, of)| of.iter().map(move |one| (name, one)))
    {
        table.row([&format!("{} of {program}", setting.knob.name()), &setting.value.to_string()]);
    }
    table.print()
}

fn reloaded(answer: Reloaded) -> Result<(), Error> {
    let mut table = Table::headless();
    device::policy(&mut table, &answer.policy);
    table.row(["Changed", if answer.changed { "yes" } else { "no" }]);
    if !answer.settings.is_empty() {
        table.row(["Settings changed", &answer.settings.join(" ")]);
    }
    table.row(["Connections sent back to TCP", &answer.revoked.to_string()]);
    table.print()?;
    answer.notes.iter().try_for_each(|note| print(note))
}
