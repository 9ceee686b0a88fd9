//! `dbg`: one archive for a bug report. No payload is in it, and no secret: tokens are numbered, command lines and
//! environments left out but for Shunpike's own variables.

use super::Broker;
use super::table::{plain, print};
use crate::error::Error;
use crate::kernel;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use shunpike_broker::what;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const README: &str = "\
What 'shunpike dbg' has collected, for a bug report. Addresses, ports, process names and user ids are in it; bytes of
connections, command lines, environments (but for SHUNPIKE_* and LD_PRELOAD) and tokens are not: token-1, token-2, ...
stand for those, so that two ends of a lane can be told to belong together.
";

/// Collects all that can be had into an archive and says where it is.
pub fn collect(broker: Result<Broker, Error>, output: Option<PathBuf>) -> Result<(), Error> {
    let name =
        format!("shunpike-dbg-{}", SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_secs()));
    let path = output.unwrap_or_else(|| format!("{name}.tar.gz").into());
    let failed = |source| Error::Write { path: path.clone(), source };
    // Never over a file that is there, and nobody else's to read.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (file, text) in contents(broker) {
        // It is looked through before it is sent, at a terminal.
        add(&mut archive, &format!("{name}/{file}"), &plain(&text)).map_err(failed)?;
    }
    archive.into_inner().and_then(GzEncoder::finish).and_then(|mut file| file.flush()).map_err(failed)?;
    print(&format!(
        "{}: please attach it to your report; look through it before, it is plain text",
        path.display()
    ))
}

fn add(archive: &mut tar::Builder<impl Write>, name: &str, text: &str) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    header.set_cksum();
    archive.append_data(&mut header, name, text.as_bytes())
}

fn contents(broker: Result<Broker, Error>) -> Vec<(String, String)> {
    let mut files = vec![("README".into(), README.into()), ("system".into(), system())];
    let broker = match broker {
        Ok(broker) => broker,
        Err(error) => {
            files.push(("errors".into(), format!("{error}\n")));
            return files;
        }
    };
    let mut mask = Mask::default();
    let mut errors = String::new();
    let mut pids = Vec::new();
    for (name, what) in [
        ("info.json", what::INFO),
        ("device.json", what::DEVICE),
        ("sysctl.json", what::SYSCTL),
        ("ueid.json", what::UEID),
        ("ss.json", what::SS),
        ("linkgroup.json", what::LINKGROUP),
        ("stats.json", what::STATS),
    ] {
        let argument = if what == what::UEID { "show" } else { "" };
        match broker.answer::<Value>(what, argument) {
            Ok(mut answer) => {
                mask.tokens(&mut answer);
                if what == what::SS {
                    pids = processes_of(&answer);
                }
                files.push((name.into(), format!("{answer:#}\n")));
            }
            Err(error) => {
                let _ = writeln!(errors, "{name}: {error}");
            }
        }
    }
    files.extend(pids.into_iter().map(|pid| (format!("processes/{pid}"), process(pid))));
    files.push(("errors".into(), errors));
    files
}

fn processes_of(answer: &Value) -> Vec<u32> {
    let connections = answer["connections"].as_array().map_or(&[][..], Vec::as_slice);
    let pids = connections.iter().filter_map(|one| u32::try_from(one["pid"].as_u64()?).ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn system() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}\n"));
    let wanted = |text: String, keys: &[&str]| {
        let lines = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let mut text = format!("shunpike {}\n", env!("CARGO_PKG_VERSION"));
    text += &read("/proc/version");
    text += &wanted(read("/etc/os-release"), &["PRETTY_NAME"]);
    text += &wanted(read("/proc/meminfo"), &["MemTotal", "MemAvailable", "Shmem:"]);
    let cpus = read("/proc/cpuinfo");
    let _ = writeln!(text, "CPUs {}", cpus.lines().filter(|line| line.starts_with("processor")).count());
    text += cpus.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    text += "\n";
    for (variable, value) in std::env::vars_os() {
        let variable = variable.to_string_lossy();
        if is_ours(&variable) {
            let _ = writeln!(text, "{variable}={}", value.to_string_lossy());
        }
    }
    text
}

/// The most of a process's mappings that are told of: a program can have any number that bear our name.
const MAPPINGS: usize = 64;

/// What may matter of a process, as far as we may look.
fn process(pid: u32) -> String {
    let of = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_else(|error| format!("{file}: {error}\n"))
    };
    let mut text = String::new();
    let status = of("status");
    for line in status.lines() {
        let key = line.split(':').next().unwrap_or_default();
        if ["Name", "Uid", "Gid", "Threads", "VmRSS", "VmLck", "NSpid", "Seccomp", "NoNewPrivs", "SigCgt"]
            .contains(&key)
        {
            let _ = writeln!(text, "{line}");
        }
    }
    if let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) {
        let _ = writeln!(text, "program {}", line(&program.display().to_string()));
    }
    for (variable, value) in kernel::variables(pid, "").unwrap_or_default() {
        if is_ours(&variable) {
            let _ = writeln!(text, "{}", line(&format!("{variable}={value}")));
        }
    }
    for line in kernel::mappings(pid).filter(|line| line.contains("shunpike")).take(MAPPINGS) {
        let _ = writeln!(text, "{line}");
    }
    text + &of("limits")
}

/// What a process says of itself, as one line: it is not to look like several.
fn line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], "?")
}

fn is_ours(variable: &str) -> bool {
    variable.starts_with("SHUNPIKE_") || variable == "LD_PRELOAD"
}

/// Numbers in the place of tokens, the same one for the same.
#[derive(Default)]
struct Mask(HashMap<String, usize>);

impl Mask {
    fn tokens(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(token) if name == "token" => *value = json!(self.name(token)),
                        _ => self.tokens(value),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.tokens(value)),
            _ => {}
        }
    }

    fn name(&mut self, token: &str) -> String {
        if token.bytes().all(|digit| digit == b'0') {
            return "none".into();
        }
        let next = self.0.len() + 1;
        format!("token-{}", *self.0.entry(token.to_owned()).or_insert(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_is_one_line_without_orders() {
        assert_eq!(line("SHUNPIKE_X=a\nUid:\t0\x1b[2J"), "SHUNPIKE_X=a?Uid:?0?[2J");
    }

    #[test]
    fn a_token_is_the_same_number_everywhere() {
        let mut value = json!({"connections": [
            {"tx": {"token": "00ff"}, "rx": {"token": "00aa"}, "comm": "00ff"},
            {"tx": {"token": "00aa"}, "rx": {"token": "0000"}},
        ]});
        Mask::default().tokens(&mut value);
        let masked = value.to_string();
        assert!(masked.contains("\"comm\":\"00ff\"") && !masked.contains("00aa"), "{masked}");
        assert_eq!(value["connections"][0]["rx"], value["connections"][1]["tx"]);
        assert_ne!(value["connections"][0]["rx"], value["connections"][0]["tx"]);
        assert_eq!(value["connections"][1]["rx"]["token"], "none");
    }
}
