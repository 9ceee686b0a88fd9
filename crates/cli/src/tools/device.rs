//! `device`, `info`, `ueid`, `seid` and `sysctl`.

use super::table::{Table, print};
use crate::error::Error;
use shunpike_broker::report::{Device, Failure, Info, OpenFiles, ProgramSysctl, Seid, Sysctls, Ueids};

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
    policy(&mut table, &info.policy);
    let sees = if info.privileged { "yes: matches through NAT and between namespaces" } else { "no" };
    table.row(["Sees sequence numbers", sees]);
    table.row(["PID", &info.pid.to_string()]);
    table.row(["Up (seconds)", &info.uptime.to_string()]);
    table.row(["Processes", &info.sessions.to_string()]);
    if info.other_versions > 0 {
        table.row(["Of another version", &info.other_versions.to_string()]);
    }
    table.row(["Waiting for their peer", &info.waiting.to_string()]);
    if let Some(files) = info.open_files.filter(OpenFiles::are_few) {
        // A private broker has it from whoever started the first program, hard limit included.
        table.row([
            "Open files",
            &format!(
                "{} of {}: too few are left for more programs and lanes, which stay on TCP; the limit is its starter's ('ulimit -n', \
                 LimitNOFILE= of a unit): restart it with a higher one",
                files.open, files.limit
            ),
        ]);
    }
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

/// The device as `smcd device` lists it.
pub fn list(device: &Device) -> Result<(), Error> {
    let mut table = Table::new(&["FID", "Type", "PCI-ID", "PCHID", "InUse", "#LGs", "PNET-ID"]);
    let in_use = if device.link_groups > 0 { "Yes" } else { "No" };
    let groups = device.link_groups.to_string();
    table.row(["0000", "0", &device.name, &device.chid, in_use, &groups, ""]);
    table.print()
}

/// The name that Linux 6.18's dibs, where loopback-ism is now, has for it: /sys/class/dibs/lo.
const DIBS_NAME: &str = "lo";

/// A GID as dibs shows it in sysfs (`gid`): as a UUID.
fn uuid(gid: &str) -> String {
    let digits: Vec<char> = gid.chars().filter(char::is_ascii_hexdigit).collect();
    let ends = [8, 12, 16, 20, 32];
    let starts = [0, 8, 12, 16, 20];
    let parts = starts.into_iter().zip(ends).filter_map(|(start, end)| digits.get(start..end));
    parts.map(|part| part.iter().collect::<String>()).collect::<Vec<_>>().join("-")
}

/// A CHID as dibs shows it in sysfs (`fabric_id`).
fn fabric_id(chid: &str) -> String {
    format!("0x{}", chid.trim_start_matches("0x").to_lowercase())
}

/// One value, for scripts, as sysfs would print it.
pub fn get(device: &Device, words: &[String]) -> Result<(), Error> {
    let (named, key) = match words {
        [named, key] => (named.as_str(), key.as_str()),
        [key] => (device.name.as_str(), key.as_str()),
        _ => ("", ""),
    };
    let value = match key {
        _ if ![device.name.as_str(), DIBS_NAME].contains(&named) => None,
        "gid" => Some(uuid(&device.gid)),
        "fabric_id" => Some(fabric_id(&device.chid)),
        "active" => Some(u64::from(device.active).to_string()),
        "dmb_copy" => Some(u64::from(device.dmb_copy).to_string()),
        "dmb_type" => Some(device.dmb_type.clone()),
        "rmem" => Some(device.rmem.to_string()),
        "xfer_bytes" => Some(device.xfer_bytes.to_string()),
        "dmbs_cnt" => Some(device.dmbs_cnt.to_string()),
        _ => None,
    };
    let value = value.ok_or_else(|| Failure {
        what: "no such value of a device".into(),
        on: words.join(" "),
        hint: format!(
            "use: [{}] active, dmb_copy, dmb_type, rmem, xfer_bytes, dmbs_cnt, gid or fabric_id",
            device.name
        ),
    });
    print(&value.map_err(Error::Refused)?)
}

/// Settings with their ranges, or with where they come from.
pub fn sysctls(answer: &Sysctls, with_sources: bool) -> Result<(), Error> {
    if with_sources {
        let mut table = Table::new(&["Name", "Value", "Default", "Source"]);
        for setting in &answer.sysctls {
            let source = format!("{} {}", setting.source, setting.from);
            table.row([&setting.name, &setting.value.to_string(), &setting.default.to_string(), &source]);
        }
        table.print()?;
        if answer.programs.is_empty() {
            return Ok(());
        }
        print("")?;
        let mut table = Table::new(&["Program", "Name", "Value", "Source"]);
        for ProgramSysctl { program, name, value, from } in &answer.programs {
            table.row([program, name, &value.to_string(), &format!("file {from}")]);
        }
        return table.print();
    }
    let mut table = Table::new(&["Name", "Value", "Least", "Most", "Meaning"]);
    for setting in &answer.sysctls {
        let [value, min, max] = [setting.value, setting.min, setting.max].map(|number| number.to_string());
        table.row([&setting.name, &value, &min, &max, &setting.text]);
    }
    table.print()
}

/// Rows of a policy.
pub fn policy(table: &mut Table, policy: &shunpike_broker::report::Policy) {
    let file = policy.file.as_deref().unwrap_or("built in");
    let line = policy.line.map_or(String::new(), |line| format!(", line {line}"));
    table.row(["Policy", &format!("{} ({file}{line})", policy.peers)]);
    let peers = match policy.peers.as_str() {
        "groups" => format!("one user, or members of one of: {}", policy.groups.join(" ")),
        "any" => "all users".to_owned(),
        _ => "one user".to_owned(),
    };
    table.row(["Joins processes of", &peers]);
    let group = policy.socket_group.as_ref().map_or(String::new(), |group| format!(", group {group}"));
    table.row(["Socket mode", &format!("{}{group}", policy.socket_mode)]);
    for (of, limits) in [("Limits of a process", &policy.process), ("Limits of a user", &policy.user)] {
        let mut parts = Vec::new();
        parts.extend(limits.sessions.map(|n| format!("{n} sessions")));
        parts.extend(limits.dmbs.map(|n| format!("{n} DMBs")));
        parts.extend(limits.bytes.map(|n| format!("{} MiB", n >> 20)));
        parts.extend(limits.nominations_per_second.map(|n| format!("{n} nominations/s")));
        let text = if parts.is_empty() { "none".to_owned() } else { parts.join(", ") };
        table.row([of, &text]);
    }
}

fn rows(table: &mut Table, device: &Device) {
    let on = |value| if value { "on" } else { "off" };
    table.row(["Device", &device.name]);
    table.row(["GID", &device.gid]);
    table.row(["CHID", &device.chid]);
    table.row(["dibs gid", &uuid(&device.gid)]);
    table.row(["fabric_id", &fabric_id(&device.chid)]);
    table.row(["active", on(device.active)]);
    table.row(["dmb_copy", on(device.dmb_copy)]);
    table.row(["rmem (bytes)", &device.rmem.to_string()]);
    table.row(["dmb_type", &device.dmb_type]);
    table.row(["xfer_bytes", &device.xfer_bytes.to_string()]);
    table.row(["dmbs_cnt", &format!("{} of {}", device.dmbs_cnt, device.max_dmbs)]);
    table.row(["Link groups", &device.link_groups.to_string()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// drivers/dibs/dibs_main.c: "%pUb" and "0x%04x".
    #[test]
    fn identities_are_written_as_dibs_does() {
        assert_eq!(uuid("d25bb3dea1c44dec:b2b5e0fa8165df86"), "d25bb3de-a1c4-4dec-b2b5-e0fa8165df86");
        assert_eq!(fabric_id("FFFF"), "0xffff");
        assert_eq!(fabric_id("0xffff"), "0xffff");
    }
}
