//! The names of smc-tools: links to this program that are called as those tools are.

use crate::args::Cli;
use clap::CommandFactory;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The arguments as this program's own, whatever name it was called by. Errors: what that name cannot do.
pub fn translated(mut arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let called = arguments.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    let called = called.as_deref().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let given = arguments.split_off(arguments.len().min(1));
    let own: Vec<OsString> = match called.as_str() {
        "smc_run" => run(given),
        "smcss" => with("ss", given),
        "smcd" => smcd(given),
        "smc_chk" => check(given)?,
        "smc_dbg" => with("dbg", given),
        // In Wireshark's directory, whatever it is called there.
        name if name.starts_with("shunpike") && is_extcap(&given) => with("extcap", given),
        _ => given,
    };
    arguments.extend(own);
    Ok(arguments)
}

/// Whether the subcommand is `run`, of arguments that cannot be understood.
pub fn is_run(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--socket" => drop(words.next()),
            word if word.starts_with(b"-") => {}
            word => return word == b"run",
        }
    }
    false
}

/// The subcommand that was meant goes with the error that there is none of the name given. clap itself finds no word as short as `run`
/// behind two letters in the wrong order.
pub fn with_tip(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let given = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(given)) if error.kind() == ErrorKind::InvalidSubcommand => given.to_owned(),
        _ => return error,
    };
    if error.get(ContextKind::SuggestedSubcommand).is_none() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name());
        let nearest = shown
            .map(|name| (strsim::damerau_levenshtein(name, &given), name))
            .min()
            .filter(|&(edits, name)| edits == 1 && name.len() > 1);
        if let Some((_, name)) = nearest {
            let tip = ContextValue::Strings(vec![name.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, tip);
        }
    }
    error
}

/// Whether Wireshark calls, as it does the programs of its extcap directory: without a subcommand.
fn is_extcap(given: &[OsString]) -> bool {
    let begins = |word: &OsString, with: &[u8]| word.as_bytes().starts_with(with);
    given.first().is_some_and(|word| begins(word, b"--"))
        && given.iter().any(|word| begins(word, b"--extcap-"))
}

fn with(subcommand: &str, given: Vec<OsString>) -> Vec<OsString> {
    [OsString::from(subcommand)].into_iter().chain(given).collect()
}

/// `smc_run [-d] [-r SIZE] [-t SIZE] CMD`: sizes are as large as a program needs, so they say nothing here.
fn run(given: Vec<OsString>) -> Vec<OsString> {
    let mut rest = given.as_slice();
    while let [option, others @ ..] = rest {
        rest = match option.as_bytes() {
            b"-d" => others,
            b"-r" | b"-t" => others.get(1..).unwrap_or(&[]),
            [b'-', b'r' | b't', _, ..] => others,
            b"-h" | b"--help" | b"-v" | b"--version" => return with("run", vec![option.clone()]),
            _ => break,
        };
    }
    [&["run".into(), "--".into()], rest].concat()
}

/// `smcd [-d] [-a] OBJECT [COMMAND]`, each as short as you like.
fn smcd(given: Vec<OsString>) -> Vec<OsString> {
    const OBJECTS: [&str; 6] = ["device", "linkgroup", "info", "ueid", "seid", "stats"];
    let (options, words): (Vec<OsString>, Vec<OsString>) =
        given.into_iter().partition(|word| word.as_bytes().starts_with(b"-"));
    let Some((object, rest)) = words.split_first() else {
        return if options.is_empty() { vec!["--help".into()] } else { options };
    };
    let full = |word: &OsStr, of: &[&'static str]| -> OsString {
        let whole = word.to_str().filter(|word| !word.is_empty());
        let whole = whole.and_then(|word| of.iter().find(|name| name.starts_with(word)));
        whole.map_or(word.to_owned(), OsString::from)
    };
    let object = full(object, &OBJECTS);
    let mut own = vec![object.clone()];
    let commands: &[&'static str] = match object.to_str() {
        // smc-tools prints the device and its groups as a table; 'show' is what it does without a word.
        Some("device") => {
            own.push("list".into());
            return own.into_iter().chain(options.into_iter().filter(|option| option != "-d")).collect();
        }
        Some("stats") => &["show", "reset", "json"],
        Some("linkgroup") => &["show", "link-show"],
        Some("ueid") => &["show", "add", "del", "flush"],
        Some("seid") => &["show", "enable", "disable"],
        _ => &[],
    };
    if let Some((command, rest)) = rest.split_first() {
        let command = full(command, commands);
        let is_default = command == "show" && !matches!(object.to_str(), Some("linkgroup" | "ueid" | "seid"));
        if !is_default {
            own.push(command);
        }
        own.extend(rest.iter().filter(|word| *word != "all").cloned());
    }
    own.extend(options);
    own
}

/// `smc_chk -C IP [-p PORT]`.
fn check(given: Vec<OsString>) -> Result<Vec<OsString>, String> {
    const WANTED: &str = "smc_chk: only '-C HOST -p PORT' is here, or '-C HOST:PORT'";
    let (mut host, mut port) = (None, None);
    let mut words = given.iter().map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = words.next() {
        match word.as_str() {
            "-C" | "--connect" => host = words.next(),
            "-p" | "--port" => port = words.next(),
            "-h" | "--help" => return Ok(vec!["chk".into(), "--help".into()]),
            _ => return Err(WANTED.into()),
        }
    }
    let target = match (host, port) {
        (Some(host), Some(port)) if host.contains(':') => format!("[{host}]:{port}"),
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(target), None) => target,
        (None, _) => return Err(WANTED.into()),
    };
    // smc_chk's test of a connection makes one.
    Ok(vec!["chk".into(), "--connect".into(), target.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        let words = translated(line.split(' ').map(OsString::from).collect())
            .unwrap_or_else(|error| vec![error.into()]);
        words.join(OsStr::new(" ")).to_string_lossy().into_owned()
    }

    #[test]
    fn smc_tools_lines_are_ours() {
        for (line, own) in [
            ("shunpike ss -d", "shunpike ss -d"),
            ("/usr/bin/smcss -a -D", "/usr/bin/smcss ss -a -D"),
            ("smc_run -d -r 64K -t64K nc -l 80", "smc_run run -- nc -l 80"),
            ("smc_run redis-server -d", "smc_run run -- redis-server -d"),
            ("smc_run --help", "smc_run run --help"),
            ("smcd d", "smcd device list"),
            ("smcd -d linkgroup", "smcd linkgroup -d"),
            ("smcd linkg show all", "smcd linkgroup show"),
            ("smcd linkgroup link-show 00000001", "smcd linkgroup link-show 00000001"),
            ("smcd -d stats show", "smcd stats -d"),
            ("smcd st reset", "smcd stats reset"),
            ("smcd stats json", "smcd stats json"),
            ("smcd -a stats", "smcd stats -a"),
            ("smcd ueid add MY-EID", "smcd ueid add MY-EID"),
            ("smcd se", "smcd seid"),
            ("smcd i", "smcd info"),
            ("smcd", "smcd --help"),
            ("smc_chk -C ::1 -p 80", "smc_chk chk --connect [::1]:80"),
            ("smc_chk -C localhost:80", "smc_chk chk --connect localhost:80"),
            ("smc_dbg", "smc_dbg dbg"),
            ("shunpike-extcap --extcap-interfaces", "shunpike-extcap extcap --extcap-interfaces"),
            ("shunpike tap -w -", "shunpike tap -w -"),
        ] {
            assert_eq!(of(line), own, "{line}");
        }
        assert!(of("smc_chk -S").contains("only '-C"));
    }
}
