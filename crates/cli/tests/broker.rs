//! The private broker that `shunpike run` starts, and tools that have none.

mod bed;

use bed::{Bed, errors, text, until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const SYSTEM: &str = "/run/shunpike/broker.sock";

/// `run` prefers a system-wide broker, and starts none where that one answers.
fn bed_without_system_broker() -> Bed {
    let bed = Bed::new();
    assert_eq!(bed.broker(Path::new(SYSTEM)), None, "stop the broker at {SYSTEM} for this test");
    bed
}

/// A process's session, field 6 of stat; "0" where its leader lives in an outer pid namespace.
fn session(process: &str) -> String {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("stat");
    let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
    rest.split_whitespace().nth(3).expect("session").to_owned()
}

#[test]
fn run_starts_one_that_keeps_nothing_of_its_starter_and_leaves_when_idle() {
    let bed = bed_without_system_broker();
    // The shell's own builtin reads, so that it has no child but what it was given.
    let script = "echo $SHUNPIKE_SOCKET; read children </proc/$$/task/$$/children; echo \"[$children]\"";
    let output = bed.output(&["run", "sh", "-c", script]);
    assert_eq!(errors(&output), "");
    assert_eq!(text(&output), format!("{}\n[]\n", bed.socket().display()));

    let broker = bed.broker(&bed.socket()).expect("a broker");
    let link = |name: &str| fs::read_link(format!("/proc/{broker}/{name}")).expect("a link of ours");
    for descriptor in 0..2 {
        assert_eq!(link(&format!("fd/{descriptor}")), Path::new("/dev/null"));
    }
    // It has said why it fails, if it did, and takes nothing more.
    let errors = fs::OpenOptions::new().write(true).open(format!("/proc/{broker}/fd/2")).expect("its errors");
    let sealed = std::io::Write::write(&mut &errors, b"x").expect_err("sealed");
    assert_eq!(sealed.kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(link("cwd"), Path::new("/"));
    let environment = fs::read(format!("/proc/{broker}/environ")).expect("environment");
    assert!(!String::from_utf8_lossy(&environment).contains("LD_PRELOAD"));
    // Not our session, so that a hang-up of our terminal is not for it.
    assert_ne!(session(&broker.to_string()), session("self"));

    until("the idle broker leaves", || bed.serving(&bed.socket()).is_empty());
    assert!(!bed.socket().exists(), "its socket is gone with it");
}

/// What was opened first had the numbers 0 to 2, and the log went into the third of them.
#[test]
fn closed_standard_descriptors_are_opened() {
    let bed = Bed::new();
    let socket = bed.socket().display().to_string();
    let script = format!(
        "exec {} broker --private --idle-exit 60 --socket {socket} <&- >&- 2>&-",
        env!("CARGO_BIN_EXE_shunpike")
    );
    let mut broker = bed.command("sh").args(["-c", &script]).spawn().expect("sh");
    until("it serves", || bed.broker(&bed.socket()).is_some());
    for descriptor in 0..3 {
        let link = fs::read_link(format!("/proc/{}/fd/{descriptor}", broker.id())).expect("a link of ours");
        assert_eq!(link, Path::new("/dev/null"));
    }
    broker.kill().expect("ours");
    broker.wait().expect("status");
    let state = fs::read_to_string(format!("{socket}.state")).expect("state");
    assert_eq!(state.lines().count(), 1, "{state}");
}

/// The broker served, and `run` said that none could be started ("No child processes").
#[test]
fn a_caller_that_ignores_the_end_of_children_has_a_broker_too() {
    let bed = bed_without_system_broker();
    let command = [env!("CARGO_BIN_EXE_shunpike"), "run", "grep", "SigIgn", "/proc/self/status"];
    let output = bed.command("env").arg("--ignore-signal=CHLD").args(command).output().expect("env");
    assert_eq!(errors(&output), "");
    let ignores = |line: &str| {
        let mask = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).expect("a mask");
        mask & 1 << (libc::SIGCHLD - 1) != 0
    };
    assert!(ignores(&text(&output)), "what it starts inherits that");
    let broker = bed.broker(&bed.socket()).expect("a broker");
    let status = fs::read_to_string(format!("/proc/{broker}/status")).expect("status");
    assert!(!status.lines().filter(|line| line.starts_with("SigIgn:")).any(ignores), "the broker does not");
}

/// It was another broker's place in each working directory.
#[test]
fn a_relative_runtime_directory_is_ignored() {
    let bed = Bed::new();
    fs::create_dir(bed.path("rt")).expect("a directory");
    let output = bed
        .shunpike()
        .arg("info")
        .current_dir(bed.path(""))
        .env("XDG_RUNTIME_DIR", "rt")
        .output()
        .expect("shunpike");
    let message = errors(&output);
    assert!(message.contains("/tmp/shunpike-") && !message.contains(" rt/"), "{message}");
}

#[test]
fn many_runs_at_once_have_one_broker() {
    let bed = bed_without_system_broker();
    let runs: Vec<_> = (0..8)
        .map(|_| {
            bed.shunpike().args(["run", "true"]).stderr(std::process::Stdio::piped()).spawn().expect("run")
        })
        .collect();
    for run in runs {
        let output = run.wait_with_output().expect("output");
        assert!(output.status.success());
        assert_eq!(errors(&output), "");
    }
    let broker = bed.broker(&bed.socket()).expect("a broker");
    until("the brokers that came too late leave", || bed.serving(&bed.socket()) == [broker]);
}

#[test]
fn a_runtime_directory_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let bed = bed_without_system_broker();
    fs::create_dir(bed.path("shunpike")).expect("directory");
    fs::set_permissions(bed.path("shunpike"), fs::Permissions::from_mode(0o777)).expect("mode");
    let output = bed.output(&["run", "echo", "ran"]);
    assert_eq!(text(&output), "ran\n");
    assert_eq!(errors(&output).lines().count(), 1, "{}", errors(&output));
    assert!(errors(&output).contains("stay on TCP"), "{}", errors(&output));
    assert!(!bed.socket().exists());
}

#[test]
fn a_second_broker_at_one_socket_is_refused() {
    let bed = Bed::new();
    let socket = bed.socket().display().to_string();
    let start = ["broker", "--private", "--socket", &socket, "--idle-exit", "60"];
    let first = bed.output(&[&start[..], &["--background"]].concat());
    assert!(first.status.success(), "{}", errors(&first));
    let broker = bed.broker(&bed.socket());
    let second = bed.output(&start);
    // A status of its own: `run` tells by it that another one was faster.
    assert_eq!(second.status.code(), Some(3));
    assert!(errors(&second).contains(&socket), "{}", errors(&second));
    assert_eq!(bed.broker(&bed.socket()), broker, "the first one still serves");
}

/// It named a command without the options that mattered, which served.
#[test]
fn a_broker_in_the_background_says_itself_why_it_fails() {
    let bed = Bed::new();
    let policy = bed.path("policy.toml");
    fs::write(&policy, "[sysctl]\nspin_us = 99999\n").expect("file");
    let socket = bed.socket().display().to_string();
    let output = bed.output(&[
        "broker",
        "--private",
        "--background",
        "--socket",
        &socket,
        "--config",
        policy.to_str().expect("UTF-8"),
    ]);
    let message = errors(&output);
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains(&socket) && message.contains("line 2 (spin_us = 99999)"), "{message}");
    assert!(!message.contains("says why") && !message.contains("shunpike: cannot"), "{message}");
}

/// Nobody can connect to it, so that it is not the one to use.
#[test]
fn a_broker_whose_socket_is_gone_is_named_with_what_to_do() {
    let bed = Bed::new();
    let socket = bed.socket().display().to_string();
    let start = ["broker", "--private", "--socket", &socket, "--idle-exit", "60"];
    let mut broker = bed.shunpike().args(start).spawn().expect("broker");
    until("it serves", || bed.broker(&bed.socket()).is_some());
    fs::remove_file(&socket).expect("removed");
    let second = bed.output(&start);
    let _ = (broker.kill(), broker.wait());
    assert_eq!(second.status.code(), Some(3));
    let message = errors(&second);
    assert!(message.contains("nobody listens at") && message.contains(&socket), "{message}");
    assert!(message.contains(&format!("PID {}", broker.id())) && message.contains("end that"), "{message}");
    assert!(!message.contains("use that one"), "{message}");
}

/// Nobody but root could enter it.
#[test]
fn the_directory_of_a_broker_for_all_is_open_to_all_whatever_the_umask() {
    let bed = Bed::new();
    let socket = bed.path("new/run/broker.sock");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let before = mode(&bed.path(""));
    let script = format!(
        "umask 077; exec {} broker --idle-exit 60 --socket {}",
        env!("CARGO_BIN_EXE_shunpike"),
        socket.display()
    );
    let mut broker = bed.command("sh").args(["-c", &script]).spawn().expect("sh");
    until("it serves", || bed.broker(&socket).is_some());
    let modes = [mode(&bed.path("new")), mode(&bed.path("new/run")), mode(&socket)];
    let _ = (broker.kill(), broker.wait());
    assert_eq!(modes, [0o755, 0o755, 0o666]);
    assert_eq!(mode(&bed.path("")), before, "which was there already");
}

#[test]
fn tools_without_a_broker_say_where_they_looked_and_what_to_do() {
    let bed = Bed::new();
    let socket = bed.path("none.sock").display().to_string();
    for tool in [
        &["ss"][..],
        &["stats"],
        &["stats", "reset"],
        &["explain", "1"],
        &["revoke", "1:3"],
        &["device"],
        &["device", "set", "active", "off"],
        &["info"],
        &["ueid", "show"],
        &["seid", "disable"],
        &["linkgroup"],
        &["sysctl", "wmem=65536"],
    ] {
        let output = bed.output(&[&["--socket", &socket], tool].concat());
        assert_eq!(output.status.code(), Some(1), "{tool:?}");
        let message = errors(&output);
        assert_eq!(message.lines().count(), 1, "{tool:?}: {message}");
        assert!(message.contains(&socket) && message.contains("shunpike run"), "{tool:?}: {message}");
    }
}

#[test]
fn a_broker_that_may_not_be_asked_is_not_one_that_is_missing() {
    let bed = Bed::new();
    let socket = bed.path("none.sock").display().to_string();
    assert!(errors(&bed.output(&["--socket", &socket, "info"])).contains("(not there)"));
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    assert!(errors(&bed.output(&["--socket", &socket, "info"])).contains("(nobody listens)"));
    let closed = bed.path("closed");
    fs::create_dir(&closed).expect("directory");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("mode");
    let socket = closed.join("broker.sock").display().to_string();
    let message = errors(&stranger(&bed).args(["--socket", &socket, "info"]).output().expect("shunpike"));
    assert!(message.contains("permission denied") && message.contains("as root"), "{message}");
}

/// The command as a user who has no broker: not root, who may enter every directory.
fn stranger(bed: &Bed) -> Command {
    if !rustix::process::getuid().is_root() {
        return bed.shunpike();
    }
    // Where the tests were built, nobody else may come, perhaps.
    let copy = bed.path("shunpike-of-another");
    // By a process of its own: what this one writes, children of other threads hold open until they execute, and it could not be executed.
    let copied = Command::new("cp").args([Path::new(env!("CARGO_BIN_EXE_shunpike")), &copy]).status();
    assert!(copied.expect("cp").success());
    fs::set_permissions(bed.path(""), fs::Permissions::from_mode(0o755)).expect("mode");
    let mut command = bed.command(copy.to_str().expect("UTF-8"));
    command.uid(65533).gid(65533);
    command
}

#[test]
fn a_stale_runtime_directory_is_named() {
    let bed = bed_without_system_broker();
    let mut tool = stranger(&bed);
    tool.arg("info").env("XDG_RUNTIME_DIR", bed.path("gone"));
    let message = errors(&tool.output().expect("shunpike"));
    assert!(message.contains("gone is not there, and was left aside"), "{message}");
    if rustix::process::getuid().is_root() {
        let message = errors(&stranger(&bed).arg("info").output().expect("shunpike"));
        assert!(message.contains("is not yours alone, and was left aside"), "{message}");
    }
}

#[test]
fn an_idle_broker_stays_while_a_program_could_come() {
    let bed = Bed::new();
    let socket = bed.socket().display().to_string();
    let log = bed.path("log");
    let mut broker = bed.shunpike();
    broker.args(["broker", "--private", "--idle-exit", "1", "--socket", &socket]);
    let mut broker = broker.stderr(fs::File::create(&log).expect("log")).spawn().expect("broker");
    until("it serves", || bed.broker(&bed.socket()).is_some());
    // A relative name is the same socket, wherever the program goes.
    let mut program = bed.shunpike();
    program.current_dir(bed.path("shunpike")).args(["--socket", "broker.sock", "run", "sleep", "600"]);
    let mut program = program.spawn().expect("run");
    let served = || fs::read_to_string(&log).expect("log").matches("serving").count();
    until("it has been idle twice", || served() >= 3);
    assert_eq!(broker.try_wait().expect("status"), None);
    until("it answers again", || bed.broker(&bed.socket()) == Some(broker.id()));
    program.kill().expect("ours");
    program.wait().expect("status");
    assert!(broker.wait().expect("status").success(), "it leaves with the last program");
}
