//! `device`, `info`, `ueid`, `seid` and `sysctl`.

use super::table::{Table, print};
use crate::error::Error;
use shunpike_broker::report::{Device, Info, Seid, Sysctls, Ueids};

/// The emulated ISM device.
pub fn show(device: &Device) -> Result<(), Error> {
    let mut table = Table::headless();
    rows(&mut table, device);
    table.print()
}

/// The broker, its system and its device.
pub fn info(info: Info) -> Result<(), Error> {
    let mut table = Table::headless();
    table.row(["Shunpike", env!("CARGO_PKG_VERSION")]);
    table.row(["Broker", &info.version]);
    table.row(["Broker protocol", &info.protocol.to_string()]);
    table.row(["SMC", &info.smc]);
    table.row(["Socket", &info.socket]);
    table.row(["Serves", if info.private { "one user" } else { "all users" }]);
    table.row(["PID", &info.pid.to_string()]);
    table.row(["Up (seconds)", &info.uptime.to_string()]);
    table.row(["Processes", &info.sessions.to_string()]);
    table.row(["Waiting for their peer", &info.waiting.to_string()]);
    table.row(["UEIDs", &info.ueids.join(" ")]);
    rows(&mut table, &info.device);
    table.print()
}

/// UEIDs, one a line.
pub fn ueids(answer: &Ueids) -> Result<(), Error> {
    if answer.ueids.is_empty() { Ok(()) } else { print(&answer.ueids.join("\n")) }
}

/// The SEID and whether it takes part.
pub fn seid(answer: &Seid) -> Result<(), Error> {
    let name = if answer.seid.is_empty() { "n/a" } else { &answer.seid };
    print(&format!("{name} [{}]", if answer.enabled { "enabled" } else { "disabled" }))
}

/// Settings with their ranges.
pub fn sysctls(answer: Sysctls) -> Result<(), Error> {
    let mut table = Table::new(&["Name", "Value", "Least", "Most", "Meaning"]);
    for setting in &answer.sysctls {
        let [value, min, max] = [setting.value, setting.min, setting.max].map(|number| number.to_string());
        table.row([&setting.name, &value, &min, &max, &setting.text]);
    }
    table.print()
}

fn rows(table: &mut Table, device: &Device) {
    let on = |value| if value { "on" } else { "off" };
    table.row(["Device", &device.name]);
    table.row(["GID", &device.gid]);
    table.row(["CHID", &device.chid]);
    table.row(["active", on(device.active)]);
    table.row(["dmb_copy", on(device.dmb_copy)]);
    table.row(["rmem (bytes)", &device.rmem.to_string()]);
    table.row(["DMBs", &format!("{} of {}", device.dmbs, device.max_dmbs)]);
    table.row(["Link groups", &device.link_groups.to_string()]);
}
