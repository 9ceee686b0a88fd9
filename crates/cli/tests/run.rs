//! `shunpike run`: CMD is what the caller started, in all but the preloaded library.

mod bed;

use bed::{Bed, errors, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// Runs CMD with a socket at which nobody answers, so that no broker has to be started.
const ALONE: [&str; 3] = ["--socket", "/nonexistent/broker.sock", "run"];

fn alone(bed: &Bed, command: &[&str]) -> std::process::Output {
    bed.output(&[&ALONE, command].concat())
}

#[test]
fn exit_status_is_the_commands() {
    let bed = Bed::new();
    for status in [0, 1, 7, 255] {
        let output = alone(&bed, &["sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
    }
}

#[test]
fn a_command_killed_by_a_signal_is_seen_so() {
    let output = alone(&Bed::new(), &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15));
}

#[test]
fn the_command_is_the_process_that_was_started() {
    let bed = Bed::new();
    let mut command = bed.shunpike();
    command.args(ALONE).args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().expect("shunpike");
    let pid = child.id();
    assert_eq!(text(&child.wait_with_output().expect("output")).trim(), pid.to_string());
}

#[test]
fn signals_and_descriptors_are_inherited_as_they_are() {
    let bed = Bed::new();
    let shell = |script: &str| {
        let script = format!(
            "run() {{ exec {} {} \"$@\"; }}; {script}",
            env!("CARGO_BIN_EXE_shunpike"),
            ALONE.join(" ")
        );
        text(&bed.command("sh").args(["-c", &script]).output().expect("sh"))
    };
    // Bit 12 is SIGPIPE.
    let ignored = |output: String| {
        let line = output.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("SigIgn").to_owned();
        u64::from_str_radix(line.trim(), 16).expect("a mask") & 1 << 12 != 0
    };
    assert!(!ignored(shell("run cat /proc/self/status")));
    assert!(ignored(shell("trap '' PIPE; run cat /proc/self/status")));
    let closed = "run sh -c 'test -e /proc/self/fd/0 || echo closed'";
    assert_eq!(shell(&format!("exec 0<&-; {closed}")), "closed\n");
    assert_eq!(shell(&format!("exec 0</dev/null; {closed}")), "");
}

/// Neither aborts it (a full disk) nor kills it (SIGPIPE), nor changes what CMD inherits.
#[test]
fn a_warning_that_cannot_be_written_stops_nothing() {
    let bed = Bed::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let (reader, unread) = std::io::pipe().expect("a pipe");
    drop(reader);
    let signals = ["grep", "-E", "^(SigPnd|ShdPnd|SigBlk|SigIgn)", "/proc/self/status"];
    // Those of 32 and above are libc's own, which starts programs with this or that.
    let standard = |output: &std::process::Output| -> Vec<u64> {
        let mask = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
        text(output).lines().map(|line| mask(line).expect("a mask") & 0x7fff_ffff).collect()
    };
    let plain = standard(&bed.command(signals[0]).args(&signals[1..]).output().expect("grep"));
    assert_eq!(plain.len(), 4);
    for (name, stderr) in [("full", Stdio::from(full)), ("unread", unread.into())] {
        let output = bed.shunpike().args(ALONE).args(signals).stderr(stderr).output().expect("shunpike");
        assert_eq!(output.status.code(), Some(0), "{name}: {}", output.status);
        assert_eq!(standard(&output), plain, "{name}");
    }
}

#[test]
fn a_command_that_cannot_run_is_told_as_a_shell_does() {
    let bed = Bed::new();
    let missing = alone(&bed, &["no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        errors(&missing).contains("cannot run 'no-such-program-anywhere': not found"),
        "{}",
        errors(&missing)
    );

    let file = bed.path("data");
    fs::write(&file, "data").expect("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("mode");
    for path in [file.as_path(), bed.path("").as_path()] {
        let refused = alone(&bed, &[path.to_str().expect("UTF-8")]);
        assert_eq!(refused.status.code(), Some(126), "{}", path.display());
        assert!(errors(&refused).contains("cannot run"), "{}", errors(&refused));
    }
}

#[test]
fn what_a_command_lacks_is_not_taken_for_its_own_name() {
    let bed = Bed::new();
    let script = |name: &str, line: &str| {
        let path = bed.path(name);
        fs::write(&path, format!("{line}\necho hi\n")).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        path.display().to_string()
    };
    let outer = script("inner", "#!/no/such/interpreter -x");
    for (path, what, hint) in [
        (script("a", "#!/no/such/interpreter"), "/no/such/interpreter", "first line"),
        (script("b", &format!("#! {outer}")), "/no/such/interpreter", &*outer),
        (script("c", "#!/bin/sh\r"), "carriage return", "sed -i"),
        (
            bed.compile("d", "int main(void) { return 0; }", &["-Wl,--dynamic-linker=/no/such/ld.so"])
                .display()
                .to_string(),
            "/no/such/ld.so",
            "another system",
        ),
    ] {
        let output = alone(&bed, &[&path]);
        assert_eq!(output.status.code(), Some(127), "{path}");
        let message = errors(&output);
        assert!(message.contains(what) && message.contains(hint), "{path}: {message}");
        assert!(message.contains(&path) && !message.contains("check the name"), "{path}: {message}");
    }
    // What sed is told mends it.
    let crlf = bed.path("c");
    let sed = std::process::Command::new("sed").args(["-i", "s/\r$//"]).arg(&crlf).status();
    assert!(sed.expect("sed").success());
    assert_eq!(text(&alone(&bed, &[crlf.to_str().expect("UTF-8")])), "hi\n");
}

/// As execvp(3) has it, whichever libc the command is linked with.
#[test]
fn a_script_without_a_first_line_of_its_own_is_the_shells() {
    let bed = Bed::new();
    for (name, content, said) in [("script", "echo \"$0 $*\"\n", true), ("empty", "", false)] {
        let path = bed.path(name);
        fs::write(&path, content).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        let path = path.display().to_string();
        let output = alone(&bed, &[&path, "a b", "c"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", errors(&output));
        assert_eq!(text(&output), if said { format!("{path} a b c\n") } else { String::new() });
    }
}

/// It said that what a setuid program starts may still be accelerated, which the loader prevents.
#[test]
fn a_program_of_other_rights_and_what_it_starts_stay_on_tcp() {
    // Only root can give a file away.
    if !rustix::process::getuid().is_root() {
        return;
    }
    let bed = Bed::new();
    let program = bed.compile("setuid", "int main(void) { return 0; }", &[]);
    std::os::unix::fs::chown(&program, Some(1), None).expect("chown");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("mode");
    let message = errors(&alone(&bed, &[program.to_str().expect("UTF-8")]));
    assert!(message.contains("so does what it starts") && message.contains("sudo -u USER"), "{message}");
    assert!(!message.contains("may still be accelerated"), "{message}");
}

/// 2 may be the command's own.
#[test]
fn wrong_usage_of_run_is_not_taken_for_the_commands_status() {
    let bed = Bed::new();
    for (arguments, status) in [
        (&["run", "--set", "speed=1", "true"][..], 125),
        (&["--socket", "/s", "run"], 125),
        (&["run", "--help"], 0),
        (&["--socket", "run", "nonsense"], 2),
        (&["ss", "--nonsense"], 2),
    ] {
        assert_eq!(bed.output(arguments).status.code(), Some(status), "{arguments:?}");
    }
}

/// It was said that the library is not at /libshunpike.so.
#[test]
fn a_system_without_proc_is_told_what_it_lacks() {
    // Only root can hide it.
    if !rustix::process::getuid().is_root() {
        return;
    }
    let bed = Bed::new();
    let script = format!("mount -t tmpfs none /proc && exec {} run true", env!("CARGO_BIN_EXE_shunpike"));
    let mut command = bed.command("unshare");
    let output =
        command.args(["-m", "sh", "-c", &script]).env_remove("SHUNPIKE_LIB").output().expect("unshare");
    assert_eq!(output.status.code(), Some(125), "{}", errors(&output));
    assert!(errors(&output).contains("mount /proc"), "{}", errors(&output));
}

#[test]
fn a_missing_or_unusable_library_is_an_error_of_its_own() {
    let bed = Bed::new();
    let run = |library: &str| {
        bed.shunpike().args(ALONE).arg("true").env("SHUNPIKE_LIB", library).output().expect("shunpike")
    };
    let missing = run("/nonexistent/libshunpike.so");
    assert_eq!(missing.status.code(), Some(125));
    assert!(errors(&missing).contains("/nonexistent/libshunpike.so"), "{}", errors(&missing));
    assert!(errors(&missing).contains("SHUNPIKE_LIB"), "{}", errors(&missing));

    let spaced = bed.path("a b.so");
    fs::copy(bed.path("libshunpike.so"), &spaced).expect("copy");
    let unusable = run(spaced.to_str().expect("UTF-8"));
    assert_eq!(unusable.status.code(), Some(125));
    assert!(errors(&unusable).contains("space or colon"), "{}", errors(&unusable));
}

#[test]
fn the_environment_says_what_the_library_needs() {
    let bed = Bed::new();
    let library = bed.path("libshunpike.so").display().to_string();
    let mut command = bed.shunpike();
    command.args(ALONE).args(["--eager", "--profile", "latency", "--", "env"]);
    let output = text(&command.env("LD_PRELOAD", "libm.so.6").env("KEPT", "yes").output().expect("shunpike"));
    for line in [
        &format!("LD_PRELOAD={library}:libm.so.6"),
        "SHUNPIKE_SOCKET=/nonexistent/broker.sock",
        "SHUNPIKE_EAGER=1",
        "SHUNPIKE_PROFILE=latency",
        "KEPT=yes",
    ] {
        assert!(output.lines().any(|have| have == line), "{line} in {output}");
    }
    let plain = text(&alone(&bed, &["env"]));
    assert!(!plain.contains("SHUNPIKE_EAGER") && !plain.contains("SHUNPIKE_PROFILE"), "{plain}");
}

#[test]
fn a_named_broker_that_is_missing_is_warned_of_once_and_not_replaced() {
    let bed = Bed::new();
    let socket = bed.path("named.sock");
    let output = bed
        .shunpike()
        .args(["run", "echo", "ran"])
        .env("SHUNPIKE_SOCKET", &socket)
        .output()
        .expect("shunpike");
    assert_eq!(text(&output), "ran\n");
    assert_eq!(errors(&output).lines().count(), 1, "{}", errors(&output));
    assert!(errors(&output).contains(socket.to_str().expect("UTF-8")), "{}", errors(&output));
    assert!(!socket.exists());
}

#[test]
fn a_static_program_is_warned_of() {
    let bed = Bed::new();
    let program = bed.compile("static", "int main(void) { return 3; }", &["-static"]);
    let output = alone(&bed, &[program.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(3));
    assert!(errors(&output).contains("is statically linked"), "{}", errors(&output));
    assert!(!errors(&alone(&bed, &["true"])).contains("linked"));
}
