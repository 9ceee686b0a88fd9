//! `shunpike run`: prepares the environment, sees to a broker, and becomes CMD.

use crate::args::{Entry, Run, Whose};
use crate::error::Error;
use crate::program::Obstacle;
use crate::say::say;
use crate::{background, children, program, shipped, socket};
use shunpike_inject::cache::Cache;
use shunpike_inject::program::Program;
use shunpike_inject::reason::Reason;
use shunpike_inject::trace;
use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Replaces this process by CMD; returns only errors.
///
/// `is_told`: the socket is an option's, not the environment's.
pub fn run(args: &Run, socket: Option<PathBuf>, is_told: bool) -> Result<Infallible, Error> {
    if is_told && args.broker != Whose::Auto {
        return Err(Error::TwoBrokers);
    }
    let mut environment = Environment::inherited();
    if args.entry == Entry::None {
        if let Ok(library) = shipped::library() {
            environment.take_away(&library);
        }
        environment.unset(children::VARIABLE);
        // A word against the list of `enable --all`, too.
        environment.set(socket::VARIABLE, OsString::new());
        return Err(exec(&args.command, environment));
    }
    let library = shipped::library()?;
    let command = args.command.first().map(OsString::as_os_str).unwrap_or_default();
    let file = program::find(command);
    let obstacle = file.as_deref().and_then(program::obstacle);
    let by_number = match (&file, obstacle) {
        (Some(file), None | Some(Obstacle::Static)) if args.entry == Entry::Syscall => {
            Some(reached_by_number(&program::executed(file)))
        }
        _ => None,
    };
    let entry = matches!(by_number, Some(Ok(()))).then(shipped::entry).transpose()?;
    if entry.is_none() {
        warn(command, file.as_deref(), obstacle, by_number.and_then(Result::err));
    }
    environment.preload(&library);
    let brokers = brokers_for(socket, args)?;
    environment.set(socket::VARIABLE, brokers.socket.into_os_string());
    match brokers.preferred {
        Some(path) => environment.set(socket::PREFERRED, path.into()),
        None => environment.unset(socket::PREFERRED),
    }
    // What its children execute, too.
    match (args.entry == Entry::Syscall).then(for_children).flatten() {
        Some(told) => environment.set(children::VARIABLE, told),
        None => environment.unset(children::VARIABLE),
    }
    if args.eager {
        environment.set("SHUNPIKE_EAGER", "1".into());
    }
    if let Some(profile) = &args.profile {
        environment.set("SHUNPIKE_PROFILE", profile.into());
    }
    Err(match (file, entry) {
        (Some(file), Some(entry)) => exec_patched(&file, &entry, &args.command, environment),
        _ => exec(&args.command, environment),
    })
}

/// Whether it is a program without a libc that may be patched.
fn reached_by_number(file: &Path) -> Result<(), Reason> {
    let opened = program::open_regular(file).map_err(|_| Reason::Unreadable)?;
    Program::of(&opened).map(drop)
}

/// Says what keeps CMD on TCP: no loader, or other rights or another machine than ours; and why it was not patched, where that was asked
/// for.
fn warn(command: &OsStr, file: Option<&Path>, obstacle: Option<Obstacle>, unpatched: Option<Reason>) {
    let command = Path::new(command).display();
    let unpatched_too = match unpatched {
        Some(reason) => format!(", and cannot be patched (injector's reason {reason})"),
        None => String::new(),
    };
    if obstacle == Some(Obstacle::Privileged) {
        // The loader takes LD_PRELOAD out of its environment.
        say(format_args!(
            "{command} {}: it stays on TCP, and so does what it starts; have it start 'shunpike run' in turn, as 'sudo -u USER \
             shunpike run ...'",
            Obstacle::Privileged
        ));
    } else if let Some(obstacle) = obstacle {
        say(format_args!(
            "{command} {obstacle}{unpatched_too}: the programs that it starts may still be accelerated; it stays on TCP"
        ));
    } else if unpatched == Some(Reason::HasLibc) && file.is_some_and(program::is_go) {
        say(format_args!(
            "{command} is a Go program that is linked with a libc, and is not patched: it stays on TCP; build it with CGO_ENABLED=0"
        ));
    }
}

/// It stays on TCP: its system calls cannot be patched.
fn refused(file: &Path, reason: Reason) {
    say(format_args!("{} stays on TCP: injector's reason {reason}", file.display()));
}

/// What programs are told, for those that they execute and no preloaded library reaches. Without the library CMD runs all the same.
fn for_children() -> Option<OsString> {
    match shipped::entry() {
        Ok(library) => children::told(&library, sites_directory().as_deref()),
        Err(error) => {
            say(format_args!("{error} (static programs that are started stay on TCP)"));
            None
        }
    }
}

/// Where it is kept which sites programs have: beside the private broker's socket, where that directory is our own: not where it
/// is still to be made, which anybody could do by then. Else, as with a broker for all, among what the user's programs keep to be quicker.
fn sites_directory() -> Option<PathBuf> {
    let socket = socket::private();
    if socket::is_in_ours(&socket) {
        return Some(socket.with_file_name("sites"));
    }
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    caches.is_dir().then(|| caches.join("shunpike"))
}

fn sites() -> Option<Cache> {
    Cache::open(&sites_directory()?).ok()
}

/// Becomes `command`, whose file this is, with its system calls patched.
fn exec_patched(file: &Path, library: &Path, command: &[OsString], environment: Environment) -> Error {
    let arguments: Vec<CString> = command.iter().cloned().map(c_string).collect();
    let sites = sites();
    let execution = trace::Execution {
        path: &c_string(file.as_os_str().to_owned()),
        program: &c_string(program::executed(file).into_os_string()),
        arguments: &arguments,
        environment: &environment.into_strings(),
        cache: sites.as_ref(),
        counts: None,
        library: Some(library),
    };
    let source = trace::exec(&execution, &|done| {
        if let Err(reason) = done {
            refused(file, reason);
        }
    });
    Error::Exec { command: command[0].to_string_lossy().into_owned(), source, missing: None }
}

/// What CMD is told of brokers.
struct Brokers {
    /// Where it finds its own.
    socket: PathBuf,
    /// Where it goes as soon as one serves there.
    preferred: Option<&'static str>,
}

impl Brokers {
    fn only(socket: PathBuf) -> Self {
        Self { socket, preferred: None }
    }
}

/// The brokers for CMD to use: where one answers, or soon may. Errors: the system's is insisted on, and does not serve; `--set` is wished
/// for, and a broker with settings of its own is there.
fn brokers_for(named: Option<PathBuf>, args: &Run) -> Result<Brokers, Error> {
    let chosen = match (named, args.broker) {
        (Some(named), Whose::Auto) => at_named(named, args)?,
        (_, Whose::System) => {
            if !answers_in_time(Path::new(socket::SYSTEM), args.wait) {
                return Err(Error::NoSystemBroker { waited: args.wait.unwrap_or(0) });
            }
            of_others(socket::SYSTEM.into(), &args.set)?
        }
        (_, Whose::Private) => Brokers::only(private(&args.set, None)?),
        (None, Whose::Auto) if answers_in_time(Path::new(socket::SYSTEM), args.wait) => {
            of_others(socket::SYSTEM.into(), &args.set)?
        }
        // Settings are wished for: they are that broker's, and CMD stays with it.
        (None, Whose::Auto) if !args.set.is_empty() => Brokers::only(private(&args.set, None)?),
        (None, Whose::Auto) => {
            Brokers { socket: private(&[], Some(socket::SYSTEM))?, preferred: Some(socket::SYSTEM) }
        }
    };
    if let Some(whose) = socket::foreign(&chosen.socket) {
        say(format_args!("{whose} (connections stay on TCP)"));
    }
    Ok(chosen)
}

/// A broker that serves already, where no settings are wished for.
fn of_others(socket: PathBuf, settings: &[String]) -> Result<Brokers, Error> {
    if settings.is_empty() { Ok(Brokers::only(socket)) } else { Err(Error::SettingsOfOthers { socket }) }
}

/// Who names a socket has a certain broker in mind: another one there would hide that it is missing.
fn at_named(named: PathBuf, args: &Run) -> Result<Brokers, Error> {
    if answers_in_time(&named, args.wait) {
        return of_others(named, &args.set);
    }
    say(format_args!(
        "no broker answers at {} (connections stay on TCP until a broker serves there)",
        named.display()
    ));
    Ok(Brokers::only(named))
}

/// The private broker's socket, where one answers or was started, with these settings, and to leave for one at `successor`. Where it cannot be
/// started, the socket at which there may be a broker later.
fn private(settings: &[String], successor: Option<&str>) -> Result<PathBuf, Error> {
    let wanted = socket::private();
    // Whoever serves this socket is given our connections: it must be ourselves.
    let is_ours = socket::owned_by_us(&wanted);
    if is_ours && socket::answers(&wanted) {
        return of_others(wanted, settings).map(|brokers| brokers.socket);
    }
    match background::private(&wanted, settings, successor) {
        Ok(()) => Ok(wanted),
        Err(reason) => {
            say(format_args!("{reason} (connections stay on TCP until a broker serves there)"));
            Ok(if is_ours { wanted } else { socket::SYSTEM.into() })
        }
    }
}

/// Whether a broker answers at `path`, within so many seconds.
fn answers_in_time(path: &Path, seconds: Option<u32>) -> bool {
    let deadline = Instant::now() + Duration::from_secs(seconds.unwrap_or(0).into());
    loop {
        if socket::answers(path) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
}

/// The variables that CMD gets.
struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    fn inherited() -> Self {
        Self(env::vars_os().collect())
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_os_str()).filter(|v| !v.is_empty())
    }

    fn set(&mut self, name: &str, value: OsString) {
        self.0.retain(|(n, _)| n != name);
        self.0.push((name.into(), value));
    }

    fn unset(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    /// Puts `library` before what is preloaded already, once.
    fn preload(&mut self, library: &Path) {
        let mut value = library.as_os_str().to_owned();
        let others = self.get("LD_PRELOAD").unwrap_or_default().as_bytes();
        for other in others.split(|byte| b" :".contains(byte)) {
            if !other.is_empty() && other != library.as_os_str().as_bytes() {
                value.push(":");
                value.push(OsStr::from_bytes(other));
            }
        }
        self.set("LD_PRELOAD", value);
    }

    /// Takes `library` out of what is preloaded.
    fn take_away(&mut self, library: &Path) {
        let is_other = |one: &&[u8]| !one.is_empty() && *one != library.as_os_str().as_bytes();
        let others = self.get("LD_PRELOAD").unwrap_or_default().as_bytes().split(|byte| b" :".contains(byte));
        let others: Vec<&[u8]> = others.filter(is_other).collect();
        match OsString::from_vec(others.join(&b':')) {
            others if others.is_empty() => self.unset("LD_PRELOAD"),
            others => self.set("LD_PRELOAD", others),
        }
    }

    fn into_strings(self) -> Vec<CString> {
        let join = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            c_string(name)
        };
        self.0.into_iter().map(join).collect()
    }
}

fn c_string(text: OsString) -> CString {
    // Arguments, variables and the paths made of them were C strings when they came.
    CString::new(text.into_vec()).expect("no NUL byte")
}

/// Becomes `command`, with signals and descriptors as they are. std's exec would reset SIGPIPE.
fn exec(command: &[OsString], environment: Environment) -> Error {
    let arguments: Vec<CString> = command.iter().cloned().map(c_string).collect();
    let variables = environment.into_strings();
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    // SAFETY: both arrays end with a null pointer and point to strings that `arguments` and `variables`
    // keep alive; clap requires at least one argument, so argv[0] is a string.
    unsafe { libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()) };
    let mut source = io::Error::last_os_error();
    // A script without a first line that says what it is for: glibc's call has the shell run it, musl's has not.
    if source.raw_os_error() == Some(libc::ENOEXEC)
        && let Some(file) = program::find(&command[0]).filter(|file| !program::is_elf(file))
    {
        let (shell, script) = (c"/bin/sh", c_string(file.into_os_string()));
        let argv: Vec<*const libc::c_char> =
            [shell.as_ptr(), script.as_ptr()].into_iter().chain(argv[1..].iter().copied()).collect();
        // SAFETY: as above; the rest of the array is the one above, with its null pointer.
        unsafe { libc::execve(shell.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        source = io::Error::last_os_error();
    }
    let is_missing = source.kind() == io::ErrorKind::NotFound;
    let missing = program::find(&command[0]).filter(|_| is_missing).and_then(|file| program::missing(&file));
    Error::Exec { command: command[0].to_string_lossy().into_owned(), source, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preloading_keeps_what_is_preloaded() {
        for (before, after) in [
            ("", "/l/libshunpike.so"),
            ("/a.so", "/l/libshunpike.so:/a.so"),
            ("/a.so /l/libshunpike.so:b.so", "/l/libshunpike.so:/a.so:b.so"),
        ] {
            let mut environment = Environment(vec![("LD_PRELOAD".into(), before.into())]);
            environment.preload(Path::new("/l/libshunpike.so"));
            assert_eq!(environment.get("LD_PRELOAD"), Some(OsStr::new(after)), "{before}");
        }
    }
}
