//! Help, man pages, completions and the list of codes.

mod bed;

use bed::{Bed, errors, text};
use shunpike_wire::Reason;
use std::fs;

const SUBCOMMANDS: [&str; 22] = [
    "run",
    "broker",
    "enable",
    "disable",
    "cdi",
    "ss",
    "stats",
    "explain",
    "events",
    "policy",
    "revoke",
    "device",
    "info",
    "ueid",
    "seid",
    "linkgroup",
    "chk",
    "top",
    "dbg",
    "sysctl",
    "bench",
    "completions",
];

#[test]
fn help_teaches() {
    let bed = Bed::new();
    let help = text(&bed.output(&["--help"]));
    for name in SUBCOMMANDS {
        assert!(help.contains(&format!("\n  {name} ")), "{name} in {help}");
        let output = bed.output(&[name, "--help"]);
        assert!(output.status.success() && text(&output).contains("Usage:"), "{name}");
    }
    assert!(help.contains("Examples:") && help.contains("Exit status:"));
    assert!(!help.contains("\n  man "), "not for people");
    assert!(text(&bed.output(&["ss", "--help"])).contains("TCP 0xOWN/0xPEER"));
    assert!(text(&bed.output(&["run", "--help"])).contains("127"));
}

#[test]
fn wrong_usage_is_status_2_and_says_what_is_right() {
    let bed = Bed::new();
    for (arguments, hint) in [
        (&["frobnicate"][..], "--help"),
        (&["run"], "CMD"),
        (&["sysctl", "-w"], "NAME"),
        (&["run", "--set", "speed=1", "true"], "no such setting"),
        (&["explain", "abc"], "PID:FD"),
        (&["revoke"], "PID[:FD]"),
        (&["broker", "--gid", "xyz"], "hexadecimal"),
        (&["broker", "--idle-exit", "0"], "0"),
        (&["ss", "-a", "-l"], "cannot be used with"),
        (&["device", "set", "active"], "VALUE"),
        (&["linkgroup", "show", "xyz"], "LG-ID"),
        (&["ss", "-D", "-R"], "cannot be used with"),
    ] {
        let output = bed.output(arguments);
        let status = if arguments[0] == "run" { 125 } else { 2 };
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(errors(&output).contains(hint), "{arguments:?}: {}", errors(&output));
    }
}

#[test]
fn a_subcommand_that_is_nearly_one_is_recognised() {
    let bed = Bed::new();
    for (given, meant) in [("rnu", "run"), ("rn", "run"), ("sss", "ss"), ("statz", "stats"), ("chck", "chk")]
    {
        let output = bed.output(&[given]);
        assert_eq!(output.status.code(), Some(2), "{given}");
        assert!(errors(&output).contains(&format!("'{meant}'")), "{given}: {}", errors(&output));
    }
    assert!(!errors(&bed.output(&["frobnicate"])).contains("tip"), "nothing is near");
}

#[test]
fn every_code_is_listed() {
    let bed = Bed::new();
    let list = text(&bed.output(&["explain", "--codes"]));
    let json = text(&bed.output(&["explain", "--codes", "--json"]));
    let values: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let values = values.as_array().expect("a list");
    assert_eq!(values.len(), Reason::COUNT);
    for (reason, value) in Reason::ALL.iter().zip(values) {
        let code = format!("0x{:08x}", reason.code());
        let line = list.lines().find(|line| line.starts_with(&code)).expect("a line for each code");
        assert!(line.contains(reason.key()) && line.ends_with(reason.text()), "{line}");
        assert_eq!((&value["code"], &value["name"]), (&code.into(), &reason.key().into()));
        assert!(value["advice"].as_str().is_some_and(|advice| advice.ends_with('.')));
    }
}

#[test]
fn man_pages_are_written_for_all_that_help_shows() {
    let bed = Bed::new();
    let directory = bed.path("man");
    fs::create_dir(&directory).expect("directory");
    let output = bed.output(&["man", directory.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", errors(&output));
    let page = |name: &str| fs::read_to_string(directory.join(name)).expect(name);
    assert!(page("shunpike.1").contains("shunpike\\-linkgroup(1)"));
    for name in SUBCOMMANDS {
        let page = page(&format!("shunpike-{name}.1"));
        for section in ["SYNOPSIS", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
        }
    }
    let mut written = 0;
    for entry in fs::read_dir(&directory).expect("a directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        // What is shown is what one types: a line each, that begins with the command.
        let page = page(&name);
        let (_, examples) =
            page.split_once("\n.SH EXAMPLES\n").unwrap_or_else(|| panic!("{name} has no EXAMPLES"));
        let (examples, _) = examples.split_once("\n.SH ").expect("SEE ALSO behind it");
        assert!(
            examples.contains("\n  shunpike ") || examples.contains("\n.nf\n  shunpike "),
            "{name}: {examples}"
        );
        written += 1;
    }
    assert!(written > SUBCOMMANDS.len(), "{written}");
    let (run, broker) = (page("shunpike-run.1"), page("shunpike-broker.1"));
    assert!(run.contains("127 CMD was not found") && run.contains(".SH EXAMPLES\n.PP\n.nf\n"), "{run}");
    assert!(run.contains("SHUNPIKE_LIB") && !broker.contains("SHUNPIKE_LIB"));
    assert!(broker.contains("/etc/shunpike/broker.toml") && !run.contains("broker.toml"));
    assert!(!directory.join("shunpike-man.1").exists());

    let nowhere = bed.output(&["man", "/nonexistent"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(errors(&nowhere).contains("/nonexistent"), "{}", errors(&nowhere));
}

#[test]
fn completions_are_scripts_that_know_the_subcommands() {
    let bed = Bed::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = bed.output(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(text(&output).contains("linkgroup"), "{shell}");
    }
    let script = bed.path("completions");
    fs::write(&script, text(&bed.output(&["completions", "bash"]))).expect("file");
    let check = bed.command("bash").arg("-n").arg(&script).status().expect("bash");
    assert!(check.success());
    let completed = |words: &str, shown: &str| {
        let line = format!(
            "shunpike() {{ printf '%s\\n' {shown}; }}; . '{}'; COMP_WORDS=({words}); COMP_CWORD=2; \
             _shunpike_more shunpike \"${{COMP_WORDS[2]}}\" \"${{COMP_WORDS[1]}}\"; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        text(&bed.command("bash").args(["-c", &line]).output().expect("bash")).trim().to_owned()
    };
    assert_eq!(completed("shunpike sysctl spin", "''"), "spin_us");
    let rows = "'State PID Command' 'ACTIVE 4711 redis' 'ACTIVE 4711 redis' 'ACTIVE 52 nginx'";
    assert_eq!(completed("shunpike explain 4", rows), "4711");
    assert_eq!(
        completed("shunpike revoke ''", rows).split_whitespace().collect::<Vec<_>>().last(),
        Some(&"4711")
    );
}
