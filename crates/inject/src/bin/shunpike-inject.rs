//! Executes a program, patched. For tests: what came of it goes to a file, calls are counted in another.
//!
//! Usage: shunpike-inject [--report FILE] [--counts FILE] [--cache DIRECTORY] [--library FILE] [--stop | --plain] PROGRAM [ARGUMENT...]
//!
//! `--stop`: the program is stopped before its first instruction, so that a tracer can attach. `--plain`: nothing is patched, to compare
//! with.

use shunpike_inject::{cache::Cache, trace};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let (mut report, mut counts, mut cache, mut library, mut stop, mut plain) =
        (None, None, None, None, false, false);
    while let Some(option) = arguments.next_if(|one| one.as_bytes().starts_with(b"--")) {
        let mut file = || arguments.next().map(PathBuf::from);
        match option.to_str() {
            Some("--report") => report = file(),
            Some("--counts") => counts = file(),
            Some("--cache") => cache = file(),
            Some("--library") => library = file(),
            Some("--stop") => stop = true,
            Some("--plain") => plain = true,
            _ => usage(),
        }
    }
    let arguments: Vec<CString> = arguments.map(string).collect();
    let Some(path) = arguments.first() else { usage() };
    let error = if plain {
        let all = arguments[1..].iter().map(|one| std::ffi::OsStr::from_bytes(one.as_bytes()));
        Command::new(std::ffi::OsStr::from_bytes(path.as_bytes())).args(all).exec()
    } else {
        let environment = std::env::vars_os().map(|(name, value)| string([name, value].join("=".as_ref())));
        let environment: Vec<CString> = environment.collect();
        let open = |directory: PathBuf| Cache::open(Path::new(&directory)).unwrap_or_else(|_| usage());
        let (cache, counts) = (cache.map(open), counts.map(|path| string(path.into())));
        let own = rustix::process::getpid();
        let execution = trace::Execution {
            path,
            program: path,
            arguments: &arguments,
            environment: &environment,
            cache: cache.as_ref(),
            counts: counts.as_deref(),
            library: library.as_deref(),
        };
        trace::exec(&execution, &|done| {
            if let Some(report) = &report {
                let text = done.map_or_else(|reason| reason.to_string(), |()| "0".to_owned());
                let _ = std::fs::write(report, text);
            }
            if stop {
                let _ = rustix::process::kill_process(own, rustix::process::Signal::STOP);
            }
        })
    };
    eprintln!("shunpike-inject: {}: {error}", path.to_string_lossy());
    exit(127);
}

fn string(bytes: OsString) -> CString {
    CString::new(bytes.into_vec()).unwrap_or_else(|_| usage())
}

fn usage() -> ! {
    eprintln!(
        "usage: shunpike-inject [--report FILE] [--counts FILE] [--cache DIRECTORY] [--library FILE] [--stop | --plain] PROGRAM [ARGUMENT...]"
    );
    exit(2);
}
