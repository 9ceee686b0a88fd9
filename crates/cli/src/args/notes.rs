//! The longer texts beneath the help of a command.

pub(super) const OVERVIEW: &str = "\
Carries TCP connections between two programs of one host through shared memory.

The programs are not changed, not recompiled and need no root. Every connection starts as ordinary TCP; \
once both ends run under Shunpike and the kernel confirms that they are two ends of one connection, their \
bytes move to a lane in shared memory. What cannot move stays on TCP, with a numbered reason.";

/// The exit status of a command that says nothing else of it.
macro_rules! exit_status {
    () => {
        "0 done, 1 it failed (the message says what to do), 2 wrong usage."
    };
}

/// The exit status, for a command's man page.
pub const EXIT_STATUS: &str = exit_status!();

pub(super) const EXAMPLES: &str = concat!(
    "\
Examples:
  shunpike run redis-server            a server, and in another terminal
  shunpike run redis-benchmark -q      its client: both ends must run under Shunpike
  shunpike ss                          which connections are on lanes, and why others are not
  shunpike explain 4711                the same in words, for one process
  shunpike device set active off       everything back to TCP, without a restart

Exit status: ",
    exit_status!()
);

pub(super) const RUN_NOTES: &str = "\
Runs CMD with libshunpike.so preloaded. Signals and exit status are CMD's own: shunpike replaces itself by it. \
If no broker answers, a private one for your user is started in the background; it leaves when nobody has \
needed it for a while. If that fails too, CMD runs all the same, on plain TCP.

Both ends of a connection must run under Shunpike. A program that is statically linked, setuid or built for \
another architecture ignores preloading: you are warned, and it stays on TCP. With --entry=syscall a static program, or one \
of Go without cgo, has its system calls patched as it is executed, and lanes then; where that cannot be, you are told why, and it \
runs on TCP. For that a helper traces it until its first instruction, as a debugger does.

Exit status: CMD's own; 125 Shunpike itself failed or was called wrongly, 126 CMD cannot be executed, 127 CMD was not found.

Examples:
  shunpike run redis-server --port 7000
  shunpike run -- python3 -m http.server
  shunpike run --eager -- pytest tests/    short connections get a lane too";

pub(super) const SS_NOTES: &str = "\
Mode tells where a connection's bytes run:
  SMCD               on a lane in shared memory
  TCP 0xOWN          on TCP; the number is this end's reason
  TCP 0xOWN/0xPEER   on TCP; this end's reason, then the one that the peer gave
`shunpike explain PID` says it in words; `shunpike explain --codes` lists all numbers.

Without -a or -l, connected sockets are shown. Only programs started by `shunpike run` appear. Cursors \
(-d) are written as wraps:offset, in hexadecimal, as smcss does.

Examples:
  shunpike ss 'sport = :6379 and state lane'
  shunpike ss -d 'pid = 4711'
  shunpike ss --json | jq '.connections[].mode'";

pub(super) const BROKER_NOTES: &str = "\
The broker is the emulated ISM device: it proves that two sockets are one connection, passes the handshake on \
and answers the tools. It is never on the data path: stop it and open lanes go on, new connections stay TCP; \
start it again and programs find it without a restart.

`shunpike run` starts a private one when it needs one. Start it yourself, as root, to serve all users and \
containers through one socket, /run/shunpike/broker.sock. It joins processes of one user, unless its policy \
(--config, docs/policy.md) says otherwise; `shunpike info` shows what holds.

Examples:
  shunpike broker --ueid MY-CLUSTER
  shunpike broker --config ./broker.toml --socket /run/test/broker.sock";

pub(super) const EVENTS_NOTES: &str = "\
Event tells what became of a connection, and After how long that took:
  opened      both ends have each other's memory; since the broker matched them
  revoked     it goes on on TCP; since it was opened
  fell back   it got no lane; since it was matched, nothing where it was not
  closed      it ended on its lanes; since it was opened
Why has the number and text of the reason, and who gave it: client, server, or the broker.

The broker keeps the last thousand of each user, of root and the 63 users that were heard of last, as long as it runs. You see those of \
which 'shunpike ss' shows you an end, and of an end that is not yours the address only. Connections that \
never asked for a lane are not in it: 'shunpike ss' and 'shunpike stats' show those.

Examples:
  shunpike events -n 20
  shunpike events -f 'dport = :6379'
  shunpike events --json | jq 'select(.event == \"revoked\") | .reason.key'";

pub(super) const POLICY_NOTES: &str = "\
Reload (also by 'systemctl reload shunpike-broker', or SIGHUP to the broker) takes peers, socket, limits and settings from the file, as a \
whole or not at all. Lanes between users that it does not join any more go back to TCP at once, without a byte lost; connections \
that it joins now get lanes as they go. What is over a lowered limit stays, and nothing more is given. [metrics] waits for a restart. \
Settings that the environment, the command line or 'sysctl -w' has set stay.

Who may reload: root and the broker's own user, where the broker runs.

Exit status: 0 done, 1 the file has a mistake (file, line and what is allowed are named), 2 wrong usage.

Examples:
  shunpike policy
  shunpike policy check ./broker.toml
  shunpike policy reload";

pub(super) const CHK_NOTES: &str = "\
Looks at what decides, from where it is called: is HOST this host, who listens at PORT, is that process under Shunpike, \
does it use the broker that you use, is the device active, does policy join the two users. A question mark stands \
before what cannot be seen from here (another user's process, without root).

As root it finds servers in other network namespaces of this host as well. With --connect it makes a connection, sends nothing, and closes \
it: so it finds who has the other end of a published port, or that nobody lets it through.

Exit status: 0 a lane, 1 TCP, or not known.

Examples:
  shunpike chk 127.0.0.1:6379
  shunpike chk --connect 10.88.0.7:80
  shunpike chk --json '[::1]:5432'";

pub(super) const TOP_NOTES: &str = "\
Columns:
  CONN, LANE     watched connections of the process, and those on lanes
  TX/s, RX/s     bytes in a second: of a process on lanes, of a connection whichever way they go
  CALL/s         calls that moved them
  SPIN/s         waits that ended while spinning: no wake-up was needed
  SLEEP/s        waits that ended in a sleep: each costs the peer a wake-up
  FALL           connections that stayed on TCP so far
Processes that share their connections with the one that forked them are counted there.

Keys: c or Tab processes/connections, s next order, r reverse, p or space pause, / filter, arrows scroll, h help, q leave.

Examples:
  shunpike top -s tx
  shunpike top --once --connections
  shunpike top -b 10 -i 5 >log";

pub(super) const TAP_NOTES: &str = "\
Shows what processes under Shunpike send on lanes, from their next call on; programs that start later are seen from their \
first byte. Without -w each segment is a line of text; with it, a capture in pcapng for Wireshark and tshark, in which each process \
is an interface. Addresses and ports are the connection's own; sequence numbers count its bytes from 1. Bytes that went by TCP, \
before a lane or after it, are not in it: that is said in comments.

FILTER: port N, host ADDRESS (either with src or dst before it), pid N, tcp, ip, ip6, joined by and, or, not, parentheses.

Nobody waits for a tap: what finds no room in the ring of its process (--buffer) is lost, and counted in the capture and at the end.

All rings of --buffer bytes together take at most 512 MiB. Those of further processes have 256 KiB, and there are at most 512 rings: both is said when it comes to it.

Whose processes: your own, and for root all. One that is not dumpable (prctl(2)) is root's only.

Examples:
  shunpike tap port 6379
  shunpike tap -w lanes.pcapng
  shunpike tap -w - | wireshark -k -i -
  shunpike tap -w - pid 4711 | tshark -r - -Y http

In Wireshark's own list of interfaces: WIRESHARK_EXTCAP_DIR=PREFIX/lib/shunpike/extcap, or a link to shunpike-extcap there \
(docs/seeing.md).";

pub(super) const DBG_NOTES: &str = "\
In it: versions, kernel, CPUs and memory; the broker's settings, policy, statistics, connections, link groups; for each \
process with a connection its limits and where the library is mapped. Not in it: bytes of connections, command lines, \
environments (but for SHUNPIKE_* and LD_PRELOAD). Tokens are replaced by numbers. Only you can read the file.

Examples:
  shunpike dbg
  shunpike dbg --output /tmp/report.tar.gz";

pub(super) const SYSCTL_NOTES: &str = "\
A setting is the broker's, for all programs that it serves. It takes effect at once, without a restart of any \
program; connections take it up as they go. Names and ranges are SMC's (net.smc.*) where the kernel has them too; \
'sysctl NAME' of one that only SMC has says why it is not here. Numbers may end in K or M.

[program.NAME] in the file has values for programs of that name alone; -a lists them.

Where a value comes from, each over those before it:
  default        built in
  file           [sysctl] in /etc/shunpike/broker.toml, or for a private broker in ~/.config/shunpike/broker.toml
  environment    SHUNPIKE_<NAME> of the broker, as SHUNPIKE_SPIN_US=0
  command line   shunpike broker --set NAME=VALUE
  run time       shunpike sysctl -w NAME=VALUE; lost when the broker ends

Examples:
  shunpike sysctl -a
  shunpike sysctl rmem
  shunpike sysctl -w rmem=256K spin_us=0";

pub(super) const DEVICE_NOTES: &str = "\
Keys, as loopback-ism's in sysfs:
  active      on|off    off: no new lanes, open ones go back to TCP, at once and without a restart
  dmb_copy    on|off    on: new lanes are written through a send buffer, as hardware ISM is
  dmb_type    virtual   DMBs are virtual memory of processes; there is no other type
  rmem        BYTES     ring size of new DMBs; the same as 'sysctl -w rmem=BYTES'
  xfer_bytes            bytes moved on lanes since the broker began; to read
  dmbs_cnt              DMBs registered; to read
  gid, fabric_id        the identity as dibs (Linux 6.18) writes it in /sys/class/dibs/lo; to read. 'lo' is the device's name, too

Examples:
  shunpike device set active off
  shunpike device set loopback-ism dmb_copy on
  shunpike device get xfer_bytes";

pub(super) const BENCH_NOTES: &str = "\
Runs each workload on kernel TCP, on UNIX stream sockets where its programs know them, and on lanes in copy and \
no-copy mode, in turn, and shows medians side by side, with the ratio that the kernel's own SMC-D had in its \
published tables and what Shunpike is to reach. A row says so where lanes did not carry its bytes. A program that is \
missing is named with the package that brings it. Each measurement has a broker of its own; yours is left alone.

Both ends want a CPU each, and nobody else on the machine: look at the load averages beneath the heading.

Examples:
  shunpike bench --quick                  a first look, under a minute
  shunpike bench redis nginx-100          some workloads, by the beginnings of their names
  shunpike bench --chart speed.svg        a quarter of an hour, and a picture of it";
