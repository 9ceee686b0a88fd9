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
    assert_eq!(columns(&["ss"]), smcss);
    assert_eq!(columns(&["ss", "-a"]), smcss);
    assert!(columns(&["ss", "-d"]).contains("rxprod-Cursor rxcons-Cursor"));
    assert_eq!(columns(&["ss", "-D"]), format!("{smcss} GID Token Peer-Token Linkid"));
    assert!(columns(&["linkgroup"]).starts_with("LG-ID #Conns"));
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
    assert_eq!(shown(&bed, &["stats", "reset"]), "");
}

#[test]
fn what_the_broker_refuses_is_status_1_in_one_line_that_says_what_to_do() {
    let bed = bed_with_broker();
    for (arguments, on, hint) in [
        (&["device", "set", "speed", "11"][..], "speed 11", "dmb_copy"),
        (&["ueid", "add", "no_underscore"], "no_underscore", "A-Z"),
        (&["ueid", "del", "NONE"], "NONE", "show"),
        (&["seid", "enable"], "SEID", "UEID"),
        (&["sysctl", "wmem=3"], "wmem", "lists"),
        (&["explain", "1"], "1", "shunpike run"),
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
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
    {
        let socket = bed.path(&format!("{}/broker.sock", signal.as_raw())).display().to_string();
        let mut broker = bed.shunpike();
        broker.args(["broker", "--private", "--socket", &socket]).stderr(std::process::Stdio::null());
        let mut broker = broker.spawn().expect("broker");
        bed::until("it serves", || bed.broker(socket.as_ref()).is_some());
        let pid = rustix::process::Pid::from_child(&broker);
        rustix::process::kill_process(pid, signal).expect("ours");
        assert!(broker.wait().expect("status").success(), "{signal:?}");
        assert!(!std::path::Path::new(&socket).exists(), "{signal:?}");
    }
}
