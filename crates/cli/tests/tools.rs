//! The tools against a broker that nobody uses: what they show, change and refuse.

mod bed;

use bed::{Bed, errors, text};
use shunpike_broker::report::{
    Connections, Device, Explanations, Info, LinkGroups, Seid, Stats, Sysctls, Ueids,
};

/// A bed with a private broker of GID 0xabc and UEID TEST.
fn bed_with_broker() -> Bed {
    let bed = Bed::new();
    let options = ["--idle-exit", "60", "--gid", "abc", "--ueid", "test", "--max-dmbs", "77"];
    let started = ask(&bed, &[&["broker", "--private", "--background"], &options[..]].concat());
    assert!(started.status.success(), "{}", errors(&started));
    bed
}

fn ask(bed: &Bed, arguments: &[&str]) -> std::process::Output {
    let socket = bed.socket().display().to_string();
    bed.output(&[&["--socket", &socket], arguments].concat())
}

fn shown(bed: &Bed, arguments: &[&str]) -> String {
    let output = ask(bed, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
    text(&output)
}

fn json<Answer: serde::de::DeserializeOwned>(bed: &Bed, arguments: &[&str]) -> Answer {
    serde_json::from_str(&shown(bed, &[arguments, &["--json"]].concat())).expect("the report's type")
}

#[test]
fn options_of_the_broker_reach_its_device() {
    let bed = bed_with_broker();
    let device: Device = json(&bed, &["device", "show"]);
    assert_eq!(device.gid, "0000000000000000:0000000000000abc");
    assert_eq!((device.chid.as_str(), device.max_dmbs, device.active), ("ffff", 77, true));
    let info: Info = json(&bed, &["info"]);
    assert_eq!(
        (info.private, info.ueids, info.socket),
        (true, vec!["TEST".into()], bed.socket().display().to_string())
    );
    assert_eq!(Some(info.pid), bed.broker(&bed.socket()));
    let words = shown(&bed, &["info"]);
    assert!(words.contains("TEST") && words.contains("0 of 77"), "{words}");
}

#[test]
fn knobs_are_turned_and_shown() {
    let bed = bed_with_broker();
    for (active, word) in [(false, "off"), (true, "on")] {
        shown(&bed, &["device", "set", "active", word]);
        assert_eq!(json::<Device>(&bed, &["device", "show"]).active, active);
        let line = format!("active        {word}\n");
        assert!(shown(&bed, &["device"]).contains(&line), "{line}");
    }
    shown(&bed, &["sysctl", "rmem=131072"]);
    let settings = json::<Sysctls>(&bed, &["sysctl"]).sysctls;
    assert!(settings.iter().any(|setting| setting.name == "rmem" && setting.value == 131072));
    assert!(shown(&bed, &["sysctl"]).contains("131072"));
    assert_eq!(
        shown(&bed, &["sysctl", "-w", "spin_us=0", "net.smc.limit_smc_hs=on"]),
        "spin_us = 0\nlimit_smc_hs = 1\n"
    );
    assert_eq!(shown(&bed, &["sysctl", "net.smc.rmem", "spin_us"]), "rmem = 131072\nspin_us = 0\n");
    // The first is not changed where the second is wrong.
    assert_eq!(ask(&bed, &["sysctl", "-w", "spin_us=9", "grace_ms=-1"]).status.code(), Some(1));
    assert_eq!(shown(&bed, &["sysctl", "spin_us"]), "spin_us = 0\n");
}

#[test]
fn the_device_has_the_knobs_of_sysfs() {
    let bed = bed_with_broker();
    let get = |key: &str| shown(&bed, &["device", "get", "loopback-ism", key]);
    shown(&bed, &["device", "set", "loopback-ism", "dmb_copy", "1"]);
    assert_eq!(get("dmb_copy"), "1\n");
    shown(&bed, &["device", "set", "dmb_copy", "off"]);
    assert_eq!((get("dmb_copy"), get("active")), ("0\n".into(), "1\n".into()));
    // As dibs has them, under its name for the device.
    shown(&bed, &["device", "set", "lo", "dmb_copy", "off"]);
    assert_eq!(shown(&bed, &["device", "get", "lo", "fabric_id"]), "0xffff\n");
    let gid = shown(&bed, &["device", "get", "gid"]);
    assert!(shown(&bed, &["device"]).contains(gid.trim_end()) && gid.split('-').count() == 5, "{gid}");
    shown(&bed, &["device", "set", "dmb_type", "virtual"]);
    assert_eq!(get("dmb_type"), "virtual\n");
    assert_eq!((get("xfer_bytes"), get("dmbs_cnt")), ("0\n".into(), "0\n".into()));
    for (arguments, hint) in [
        (&["device", "set", "ism0", "active", "on"][..], "loopback-ism"),
        (&["device", "set", "dmb_type", "physical"], "virtual"),
        (&["device", "set", "xfer_bytes", "0"], "get"),
        (&["device", "set", "active", "maybe"], "off, on"),
        (&["device", "get", "speed"], "xfer_bytes"),
        (&["device", "get", "ism0", "active"], "loopback-ism"),
    ] {
        let output = ask(&bed, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors(&output).contains(hint), "{arguments:?}: {}", errors(&output));
    }
}

#[test]
fn a_value_knows_where_it_comes_from() {
    let bed = Bed::new();
    let file = bed.path("shunpike.toml");
    std::fs::write(&file, "[sysctl]\nspin_us = 1\ngrace_ms = 1\nnominate_calls = 1\nlimit_smc_hs = true\n")
        .expect("file");
    let mut broker = bed.shunpike();
    broker.args([
        "broker",
        "--private",
        "--background",
        "--idle-exit",
        "60",
        "--config",
        &file.display().to_string(),
    ]);
    broker.args(["--set", "grace_ms=3", "--set=nominate_calls=3"]);
    broker
        .env("SHUNPIKE_GRACE_MS", "2")
        .env("SHUNPIKE_NOMINATE_CALLS", "2")
        .env("SHUNPIKE_NOMINATE_BYTES", "64K");
    let started = broker.output().expect("shunpike");
    assert!(started.status.success(), "{}", errors(&started));
    shown(&bed, &["sysctl", "-w", "nominate_calls=4"]);
    let all = json::<Sysctls>(&bed, &["sysctl", "-a"]).sysctls;
    let uid = format!("uid {}", rustix::process::getuid().as_raw());
    for (name, value, source, from) in [
        ("wmem", 16 << 20, "default", ""),
        ("spin_us", 1, "file", file.to_str().expect("UTF-8")),
        ("limit_smc_hs", 1, "file", file.to_str().expect("UTF-8")),
        ("nominate_bytes", 65536, "environment", "SHUNPIKE_NOMINATE_BYTES"),
        ("grace_ms", 3, "command line", ""),
        ("nominate_calls", 4, "run time", &uid),
    ] {
        let setting = all.iter().find(|setting| setting.name == name).expect(name);
        assert_eq!(
            (setting.value, setting.source.as_str(), setting.from.as_str()),
            (value, source, from),
            "{name}"
        );
    }
    let table = shown(&bed, &["sysctl", "-a"]);
    assert!(table.contains("run time") && table.contains("SHUNPIKE_NOMINATE_BYTES"), "{table}");
}

#[test]
fn a_broker_does_not_start_with_a_wrong_setting() {
    let bed = Bed::new();
    let mut broker = bed.shunpike();
    broker.args(["broker", "--private"]).env("SHUNPIKE_SPIN_US", "much");
    let output = broker.output().expect("shunpike");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors(&output).contains("SHUNPIKE_SPIN_US=much") && errors(&output).contains("0 to 10000"),
        "{output:?}"
    );
    let output = bed.output(&["broker", "--private", "--set", "max_conns_per_lgr=8"]);
    assert_eq!(output.status.code(), Some(2), "before anything is done");
    assert!(errors(&output).contains("16 to 255"), "{}", errors(&output));
}

#[test]
fn a_ninth_ueid_is_not_dropped_in_silence() {
    let bed = Bed::new();
    let names: Vec<String> = (1..=9).map(|n| format!("--ueid=U{n}")).collect();
    let words: Vec<&str> =
        ["broker", "--private"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let output = bed.output(&words);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("9 times") && errors(&output).contains("8 at most"), "{output:?}");
}

#[test]
fn run_sets_for_the_broker_that_it_starts_and_for_no_other() {
    let bed = Bed::new();
    let ran = bed.output(&["run", "--set", "spin_us=7", "--", "true"]);
    assert!(ran.status.success(), "{}", errors(&ran));
    let setting = &json::<Sysctls>(&bed, &["sysctl", "spin_us"]).sysctls[0];
    assert_eq!((setting.value, setting.source.as_str()), (7, "command line"));
    let again = bed.output(&["run", "--set", "spin_us=8", "--", "true"]);
    assert_eq!(again.status.code(), Some(125));
    assert!(errors(&again).contains("sysctl -w"), "{}", errors(&again));
    assert_eq!(shown(&bed, &["sysctl", "spin_us"]), "spin_us = 7\n");
}

#[test]
fn ueids_come_and_go() {
    let bed = bed_with_broker();
    assert_eq!(shown(&bed, &["ueid"]), "TEST\n");
    assert_eq!(shown(&bed, &["ueid", "add", "NEXT-1"]), "TEST\nNEXT-1\n");
    assert_eq!(shown(&bed, &["ueid", "del", "TEST"]), "NEXT-1\n");
    assert_eq!(shown(&bed, &["ueid", "flush"]), "");
    assert!(json::<Ueids>(&bed, &["ueid", "show"]).ueids.is_empty());
    assert_eq!(shown(&bed, &["seid"]), "n/a [disabled]\n");
    assert!(!json::<Seid>(&bed, &["seid", "show"]).enabled);
}

#[test]
fn lists_have_smc_tools_columns_even_when_empty() {
    let bed = bed_with_broker();
    let columns = |arguments: &[&str]| -> String {
        let output = shown(&bed, arguments);
        assert_eq!(output.lines().count(), 1, "nobody is connected: {output}");
        output.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let smcss = "State UID Inode Local-Address Peer-Address Intf Mode";
    assert_eq!(columns(&["ss"]), format!("{smcss} PID Command"));
    assert_eq!(columns(&["ss", "-a"]), format!("{smcss} PID Command"));
    assert_eq!(columns(&["ss", "sport = :1 and", "state lane"]), format!("{smcss} PID Command"));
    let details = "Shutd Token Sndbuf Rcvbuf Peerbuf rxprod-Cursor rxcons-Cursor rxFlags txprod-Cursor txcons-Cursor \
                   txFlags txprep-Cursor txsent-Cursor txfin-Cursor";
    assert!(columns(&["ss", "-d"]).starts_with(&format!("{smcss} {details}")));
    assert_eq!(columns(&["ss", "-D"]), format!("{smcss} GID Token Peer-GID Peer-Token Linkid PID Command"));
    assert!(columns(&["linkgroup"]).starts_with("LG-ID VLAN #Conns PNET-ID"));
    assert!(
        columns(&["linkgroup", "link-show"]).starts_with("LG-ID LG-Role LG-Type Net-Dev Link-State #Conns")
    );
    let device = shown(&bed, &["device", "list"]);
    let device: Vec<Vec<&str>> = device.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(device[0], ["FID", "Type", "PCI-ID", "PCHID", "InUse", "#LGs", "PNET-ID"]);
    assert_eq!(device[1], ["0000", "0", "loopback-ism", "ffff", "No", "0"]);
    assert!(json::<Connections>(&bed, &["ss"]).connections.is_empty());
    assert!(json::<LinkGroups>(&bed, &["linkgroup"]).link_groups.is_empty());
}

#[test]
fn stats_have_smcd_stats_sections() {
    let bed = bed_with_broker();
    let words = shown(&bed, &["stats"]);
    for section in
        ["Connections Summary", "RX Stats", "TX Stats", ">512KB", "SMC connections", "TCP fallback"]
    {
        assert!(words.contains(section), "{section} in {words}");
    }
    assert!(shown(&bed, &["stats", "-d"]).contains("client"));
    assert_eq!(json::<Stats>(&bed, &["stats"]).connections.handled, 0);
    assert_eq!(shown(&bed, &["stats", "reset", "--all"]), "");
    // Neither HOME nor XDG_STATE_HOME is set here.
    let output = ask(&bed, &["stats", "reset"]);
    assert!(!output.status.success() && errors(&output).contains("--all"), "{}", errors(&output));
    let smcd = shown(&bed, &["stats", "json"]);
    for key in ["\"SMCD\"", "\"SMC_USR_TX_BUF_8K\":0", "\"SMC_USR_RX_BUF_1024K\":0", "\"SMC_RX_BYTES\":0"] {
        assert!(smcd.contains(key), "{key} in {smcd}");
    }
}

/// They ended as a service's broker was started anew.
#[test]
fn events_go_on_with_the_broker_that_comes_again() {
    let bed = bed_with_broker();
    let socket = bed.socket().display().to_string();
    let (shown, said) = (bed.path("shown"), bed.path("said"));
    let create = |path| std::fs::File::create(path).expect("file");
    let mut events = bed.shunpike();
    events.args(["--socket", &socket, "events", "-f"]).stdout(create(&shown)).stderr(create(&said));
    let mut events = events.spawn().expect("shunpike");
    let lines = |path| std::fs::read_to_string(path).expect("text").lines().count();
    bed::until("it shows what there is", || lines(&shown) > 0);
    for times in 1..=2 {
        let broker = bed.broker(&bed.socket()).expect("a broker");
        let broker = rustix::process::Pid::from_raw(broker.cast_signed()).expect("a PID");
        rustix::process::kill_process(broker, rustix::process::Signal::KILL).expect("ours");
        bed::until("it says that the broker is gone", || lines(&said) >= times);
        let options = ["broker", "--private", "--background", "--idle-exit", "60"];
        let started = ask(&bed, &options);
        assert!(started.status.success(), "{}", errors(&started));
        // Time to ask this one a few times.
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(lines(&said), times, "it says so once");
        assert_eq!(events.try_wait().expect("a status"), None);
    }
    let _ = (events.kill(), events.wait());
}

#[test]
fn what_the_broker_refuses_is_status_1_in_one_line_that_says_what_to_do() {
    let bed = bed_with_broker();
    for (arguments, on, hint) in [
        (&["device", "set", "speed", "11"][..], "speed 11", "dmb_copy"),
        (&["ueid", "add", "no_underscore"], "no_underscore", "A-Z"),
        (&["ueid", "del", "NONE"], "NONE", "show"),
        (&["seid", "enable"], "SEID", "UEID"),
        (&["sysctl", "-w", "wmem=3"], "wmem=3", "16384 to 16777216"),
        (&["sysctl", "speed=3"], "speed", "lists"),
        (&["sysctl", "-w", "spin_us"], "spin_us", "NAME=VALUE"),
        (&["sysctl", "net.smc.autocorking_size"], "autocorking_size", "held back"),
        (&["explain", "1"], "1", "shunpike run"),
        (&["linkgroup", "show", "77"], "00000077", "shunpike linkgroup"),
        (&["linkgroup", "link-show", "77"], "00000077", "shunpike linkgroup"),
        (&["revoke", "1:5"], "PID 1, descriptor 5", "shunpike ss"),
    ] {
        let output = ask(&bed, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let message = errors(&output);
        assert_eq!(message.lines().count(), 1, "{arguments:?}: {message}");
        assert!(message.contains(on) && message.contains(hint), "{arguments:?}: {message}");
    }
    let none: Result<Explanations, _> = serde_json::from_str(&text(&ask(&bed, &["explain", "1", "--json"])));
    assert!(none.is_err(), "no explanation of nothing");
}

#[test]
fn a_broker_told_to_end_leaves_no_socket() {
    let bed = bed_with_broker();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let socket = bed.path(&format!("{}/broker.sock", signal.as_raw())).display().to_string();
        let log = bed.path("log");
        let mut broker = bed.shunpike();
        broker.args(["broker", "--private", "--socket", &socket]);
        broker.stderr(std::fs::File::create(&log).expect("log"));
        let mut broker = broker.spawn().expect("broker");
        bed::until("it serves", || bed.broker(socket.as_ref()).is_some());
        let pid = rustix::process::Pid::from_child(&broker);
        rustix::process::kill_process(pid, signal).expect("ours");
        assert!(broker.wait().expect("status").success(), "{signal:?}");
        assert!(!std::path::Path::new(&socket).exists(), "{signal:?}");
        let log = std::fs::read_to_string(&log).expect("log");
        let last = log.lines().last().unwrap_or_default();
        let sender = format!("by_pid={}", std::process::id());
        assert!(last.contains("told to end") && last.contains(&sender), "{signal:?}: {log}");
    }
}

/// A tool whose answer nobody could have had ended with status 0.
#[test]
fn a_closed_standard_output_is_an_error() {
    let bed = bed_with_broker();
    for arguments in ["info", "ss", "completions bash"] {
        let script = format!(
            "exec {} --socket {} {arguments} >&-",
            env!("CARGO_BIN_EXE_shunpike"),
            bed.socket().display()
        );
        let output = bed.command("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", errors(&output));
        assert!(errors(&output).contains("standard output"), "{arguments}: {}", errors(&output));
    }
}

/// The capture had the number of standard error, and what the tap said was in it.
#[test]
fn a_capture_has_nothing_in_it_that_was_meant_for_standard_error() {
    let bed = bed_with_broker();
    let capture = bed.path("capture");
    let script = format!(
        "exec {} --socket {} tap -w {} <&- >&- 2>&-",
        env!("CARGO_BIN_EXE_shunpike"),
        bed.socket().display(),
        capture.display()
    );
    let mut tap = bed.command("sh").args(["-c", &script]).spawn().expect("sh");
    let content = || std::fs::read(&capture).unwrap_or_default();
    bed::until("something is written", || !content().is_empty());
    let pid = rustix::process::Pid::from_child(&tap);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("ours");
    tap.wait().expect("its end");
    let content = content();
    // A section header block of pcapng, and no text of ours but its own.
    assert_eq!(content[..4], [0x0a, 0x0d, 0x0d, 0x0a], "{}", String::from_utf8_lossy(&content));
    assert!(!String::from_utf8_lossy(&content).contains("segments"));
}

#[test]
fn a_capture_that_cannot_be_written_is_named() {
    let bed = bed_with_broker();
    let output = ask(&bed, &["tap", "-w", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1));
    let message = errors(&output);
    assert!(message.contains("cannot write /dev/full: No space left on device"), "{message}");
}

/// It is the limit of whoever ran the first program, for which all of the user's others then have no lanes.
#[test]
fn a_broker_that_runs_out_of_descriptors_says_so() {
    let bed = bed_with_broker();
    assert!(!shown(&bed, &["info"]).contains("Open files"));
    let pid = bed.broker(&bed.socket()).expect("a broker");
    let pid = rustix::process::Pid::from_raw(pid as i32);
    let open = std::fs::read_dir(format!("/proc/{}/fd", pid.expect("a pid"))).expect("ours").count() as u64;
    let limit = rustix::process::Rlimit { current: Some(open + 6), maximum: Some(open + 6) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).expect("ours");
    let words = shown(&bed, &["info"]);
    assert!(words.contains("Open files") && words.contains("LimitNOFILE"), "{words}");
}
