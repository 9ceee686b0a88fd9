//! Messages of ours, as an independent implementation reads them: written into a capture as TCP
//! payload and given to Wireshark's SMC dissector.

mod capture;

use std::io::Write;
use std::process::{Command, Stdio};

use capture::{Capture, From};
use shunpike_wire::clc::handshake::{Client, Input, LocalDevice, NamedDmb, Next, Server};
use shunpike_wire::clc::{
    AcceptConfirm, AcceptVersion, Decline, GidChid, Ipv6Prefix, List, MAX_LEN, Message, OS_LINUX, Paths,
    Prefix, Proposal, SmcdArea, Version,
};
use shunpike_wire::{Chid, DmbSize, DmbToken, Eid, Gid, PeerId, Reason, Seid};

const MISSING: &str = "cannot run tshark, which reads our messages in this test; \
                       install it (Debian, Ubuntu: apt-get install tshark)";

/// Runs tshark over a capture. Errors of its own, as of a cut capture, fail the test.
fn tshark(capture: &Capture, args: &[&str]) -> String {
    let mut child = Command::new("tshark")
        .args(["-n", "-r", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{MISSING}: {e}"));
    child.stdin.take().unwrap().write_all(capture.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// One line per frame that tshark takes for SMC: the values of the fields, separated by tabs.
fn fields(capture: &Capture, names: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["-Y", "smc", "-T", "fields", "-E", "occurrence=a"];
    names.iter().for_each(|name| args.extend(["-e", name]));
    tshark(capture, &args).lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Every frame in `sent` is SMC to tshark, and it complains of none.
fn assert_sound(capture: &Capture, sent: &[u32]) {
    let smc = fields(capture, &["frame.number"]);
    let expected: Vec<_> = sent.iter().map(|n| vec![n.to_string()]).collect();
    assert_eq!(smc, expected, "frames that tshark reads as SMC");
    let bad = tshark(capture, &["-Y", "_ws.malformed || _ws.expert.severity >= warning", "-V"]);
    assert_eq!(bad, "", "tshark complains");
}

struct Recorder {
    capture: Capture,
    sent: Vec<u32>,
}

impl Recorder {
    fn new() -> Self {
        Recorder { capture: Capture::new(), sent: Vec::new() }
    }

    fn send(&mut self, from: From, bytes: &[u8]) {
        self.capture.send(from, bytes);
        self.sent.push(self.capture.packets());
    }

    /// Begins a connection with a message that may stand alone.
    fn alone(&mut self, from: From, message: Message) {
        let mut bytes = [0; MAX_LEN];
        let len = message.encode(&mut bytes).unwrap();
        self.capture.connect();
        self.send(from, &bytes[..len]);
    }
}

fn host() -> LocalDevice {
    let mut ueids = List::new();
    assert!(ueids.push(Eid::ueid("SHUNPIKE-TEST").unwrap()));
    assert!(ueids.push(Eid::ueid("SECOND.ONE").unwrap()));
    LocalDevice {
        gid: Gid::new(0x1122334455667788, 0x99aabbccddeeff00),
        chid: Chid::LOOPBACK,
        peer_id: PeerId([1, 2, 3, 4, 5, 6, 7, 8]),
        seid: None,
        ueids,
        hostname: *b"shunpike                        ",
    }
}

const CLIENTS: NamedDmb = NamedDmb { token: DmbToken(0xc1c2c3c4c5c6c7c8), size: DmbSize::KERNEL_MAX };
const SERVERS: NamedDmb = NamedDmb { token: DmbToken(0x5152535455565758), size: DmbSize::MIN };

/// A whole handshake of the two state machines.
fn handshake(recorder: &mut Recorder, first_contact: bool) {
    let host = host();
    let mut out = [0; MAX_LEN];
    recorder.capture.connect();
    let (mut client, step) = Client::start(&host, first_contact, 0x00010000, &mut out);
    let proposal = step.send.unwrap().to_vec();
    recorder.send(From::Client, &proposal);

    let mut server = Server::new(first_contact, 0x00020000);
    let step = server.step(&host, Input::Clc(&proposal), &mut out);
    assert_eq!(step.next, Next::Register);
    let accept = server.step(&host, Input::Registered(SERVERS), &mut out).send.unwrap().to_vec();
    recorder.send(From::Server, &accept);

    let step = client.step(&host, Input::Clc(&accept), &mut out);
    assert_eq!(step.next, Next::Attach(SERVERS));
    client.step(&host, Input::Attached(SERVERS), &mut out);
    let confirm = client.step(&host, Input::Registered(CLIENTS), &mut out).send.unwrap().to_vec();
    recorder.send(From::Client, &confirm);
}

#[test]
fn wireshark_reads_our_handshake() {
    let mut recorder = Recorder::new();
    handshake(&mut recorder, true);
    handshake(&mut recorder, false);
    assert_sound(&recorder.capture, &recorder.sent);

    let proposals = fields(
        &recorder.capture,
        &["smc.clc_msg", "smc.length", "smc.proposal.eid", "smc.proposal.ism.gid", "smc.proposal.smc.chid"],
    );
    assert_eq!(proposals.len(), 6);
    assert_eq!(proposals[0][..2], ["1", "256"]);
    let eids: Vec<_> = proposals[0][2].split(',').map(str::trim_end).collect();
    assert_eq!(eids, ["SHUNPIKE-TEST", "SECOND.ONE"]);
    assert_eq!(proposals[0][3], "0x0000000000000000,0x1122334455667788,0x99aabbccddeeff00");
    assert_eq!(proposals[0][4], "0x0000,0xffff,0xffff");

    let accepts = fields(
        &recorder.capture,
        &[
            "smc.length",
            "smc.accept.first.contact",
            "smc.accept.sender.server.ism.gid",
            "smc.accept.dmb.token",
            "smc.accept.dmbe.buffer.size",
            "smc.accept.server.linkid",
            "smc.accept.smc.chid",
            "smc.accept.eid",
            "smc.accept.peer.host.name",
            "smc.accept.smc.version.relnum",
        ],
    );
    let text = |row: &[String]| row.iter().map(|v| v.trim_end().to_owned()).collect::<Vec<_>>();
    let fixed = ["0x1122334455667788", "0x5152535455565758", "0", "0x00020000", "0xffff", "SHUNPIKE-TEST"];
    assert_eq!(text(&accepts[1])[0], "130");
    assert!(truth(&accepts[1][1]));
    assert_eq!(text(&accepts[1])[2..], [&fixed[..], &["shunpike", "1"]].concat());
    assert_eq!(text(&accepts[4])[0], "78");
    assert!(!truth(&accepts[4][1]));
    assert_eq!(text(&accepts[4])[2..8], fixed);

    let confirms = fields(
        &recorder.capture,
        &["smc.confirm.dmb.token", "smc.confirm.dmbe.buffer.size", "smc.confirm.client.linkid"],
    );
    assert_eq!(confirms[2], ["0xc1c2c3c4c5c6c7c8", "6", "0x00010000"]);
    assert_eq!(confirms[5], ["0xc1c2c3c4c5c6c7c8", "6", "0x00010000"]);
}

/// Versions of tshark write booleans as 1 and 0 or as True and False.
fn truth(value: &str) -> bool {
    match value {
        "1" | "True" => true,
        "0" | "False" => false,
        other => panic!("not a boolean: {other:?}"),
    }
}

#[test]
fn wireshark_reads_our_declines() {
    let mut recorder = Recorder::new();
    for reason in Reason::ALL {
        recorder.alone(From::Server, Message::Decline(Decline::new(PeerId([9; 8]), *reason)));
    }
    let v1 = Decline { version: Version::V1, ..Decline::new(PeerId([9; 8]), Reason::NoUeid) };
    recorder.alone(From::Client, Message::Decline(v1));
    assert_sound(&recorder.capture, &recorder.sent);

    let names = ["smc.length", "smc.decline.osync", "smc.sender.peer.id", "smc.decline.os.type"];
    let rows = fields(&recorder.capture, &[&names[..], &["smc.peer.diag.info"]].concat());
    for (row, reason) in rows.iter().zip(Reason::ALL) {
        assert_eq!(row[0], "44");
        assert_eq!(truth(&row[1]), *reason == Reason::Sync);
        assert_eq!(row[2], "0x0909090909090909");
        assert_eq!(row[3], OS_LINUX.to_string());
        assert!(row[4].starts_with(&format!("0x{:08x},", reason.code())), "{row:?}");
    }
    assert_eq!(rows[Reason::COUNT][0], "28");
}

/// What we would not send, but understand: both versions offered at once, version 1 alone. Release 0
/// is left out: this dissector looks for a part of the first-contact extension that only later ones have.
#[test]
fn wireshark_reads_what_we_write_of_other_kinds() {
    let mut recorder = Recorder::new();
    let host = host();
    let mut out = [0; MAX_LEN];
    let (_, step) = Client::start(&host, true, 1, &mut out);
    let Ok(Message::Proposal(own)) = Message::decode(step.send.unwrap()) else { panic!("no proposal") };

    let mut ipv6 = List::new();
    for n in 0..3 {
        assert!(ipv6.push(Ipv6Prefix { prefix: [0x20 + n; 16], length: 64 }));
    }
    let prefix = Prefix { subnet: [10, 0, 0, 0], length: 8, ipv6 };
    let both = Proposal { v1: Paths::Both, v2: Paths::Both, prefix: Some(prefix), ..own };
    recorder.alone(From::Client, Message::Proposal(both));

    let mut enabled = own;
    let v2 = enabled.smcd.as_mut().unwrap().v2.as_mut().unwrap();
    v2.seid_enabled = true;
    v2.smcd.as_mut().unwrap().seid = Seid(Eid(*b"IBM-SYSZ-ISMSEID0000000012345678"));
    assert!(v2.smcd.as_mut().unwrap().offer(Gid::new(5, 0), Chid(7)));
    recorder.alone(From::Client, Message::Proposal(enabled));

    let ism = GidChid { gid: 6, chid: Chid(0) };
    let v1 = Proposal {
        version: Version::V1,
        v1: Paths::SmcD,
        v2: Paths::None,
        prefix: Some(Prefix { ipv6: List::new(), ..prefix }),
        smcd: Some(SmcdArea { ism, vendor: [0; 8], v2: None }),
        ..own
    };
    recorder.alone(From::Client, Message::Proposal(v1));

    let answer = AcceptConfirm {
        gid: Gid::new(6, 0),
        token: SERVERS.token,
        size: SERVERS.size,
        link_id: 3,
        version: AcceptVersion::V1 { first_contact: true },
    };
    recorder.alone(From::Server, Message::Accept(answer));
    assert_sound(&recorder.capture, &recorder.sent);

    let names = ["smc.length", "smc.proposal.ipv6.prefix.count", "smc.proposal.system.eid"];
    let rows = fields(&recorder.capture, &names);
    let lengths: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(lengths, ["315", "266", "92", "48"]);
    assert_eq!(rows[0][1], "3");
    assert_eq!(rows[1][2].trim_end(), "IBM-SYSZ-ISMSEID0000000012345678");
}

/// The tests above could not fail if tshark never complained.
#[test]
fn wireshark_does_complain_of_a_bad_message() {
    let mut bytes = capture::clc_messages(&capture::vectors().join("two-ueids.pcap"))[0].clone();
    // Nine UEIDs are more than there is room for.
    bytes[80] = 9;
    let mut capture = Capture::new();
    capture.connect();
    capture.send(From::Client, &bytes);
    assert_ne!(tshark(&capture, &["-Y", "_ws.malformed || _ws.expert.severity >= warning"]), "");
}
