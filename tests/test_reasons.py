"""Each fallback code and each place of the library that sets it: what causes it there, and that the code's words fit that cause.

A place without a row fails. Whoever adds one looks at what `shunpike explain --codes` and `explain` say of its code, and takes
another code where that would be wrong."""

import json
import re
import subprocess
from collections import defaultdict

import pytest

from harness import BINARY, ROOT

pytestmark = pytest.mark.operators

# Code -> file -> (cause, what the code's words must have for it).
CAUSES = {
    "AttachRefused": {"core/upgrade/dmbs.rs": ("the broker gives no DMB, or one of no known size", "refused to attach")},
    "AwaitingPeer": {"core/upgrade/nomination.rs": ("our end is nominated", "the other end has not")},
    "BrokerForeign": {"core/session.rs": ("another user serves there", "neither this user nor root")},
    "BrokerGone": {"core/upgrade.rs": ("the session has ended", "went away")},
    "BypassedHooks": {
        "core/closing.rs": ("bytes on TCP that the sender's hooks did not announce", "go round the hooks"),
        "core/rx/bounded.rs": ("the same, at the switch", "go round the hooks"),
        "core/upgrade/nomination.rs": ("the kernel's counts differ, also by what a child has moved", "another process"),
        "preload/bypass.rs": ("syscall(2) and aio on it", "raw system calls, libc's aio"),
        "preload/indirect.rs": ("Linux AIO on it", "raw system calls"),
    },
    "Confined": {
        "core/life.rs": ("the program installs a filter", "that the program has installed"),
        "core/upgrade/nomination.rs": ("a filter refuses getsockopt or ioctl", "refuses what a proof takes"),
    },
    "EpollSets": {
        "core/sets/ctl.rs": ("the list of registrations is full", "more registrations"),
        "core/sets/refusal.rs": ("the kernel refuses the set an entry", "than the kernel has room for"),
    },
    "GraceExceeded": {
        "core/tx/room.rs": ("a full ring, and a reader that does not move", "took no bytes"),
        "core/tx/unheard.rs": ("bytes for which nobody at the other end waits or asks", "took no bytes"),
    },
    "HandedOver": {
        "core/conn/handover.rs": ("exec, posix_spawn, a dup in a vfork child", "inherited (exec, posix_spawn)"),
        "preload/bypass.rs": ("login_tty: as a child's standard descriptors", "another program has got it"),
        "preload/control.rs": ("SCM_RIGHTS", "sent (SCM_RIGHTS)"),
        "preload/exec.rs": ("posix_spawn's file actions", "inherited (exec, posix_spawn)"),
        "preload/indirect.rs": ("a sockmap has got it", "another program has got it"),
        "preload/lifecycle.rs": ("an ioctl gives it to the kernel's KCM", "another program has got it"),
    },
    "Inactive": {
        "core/upgrade.rs": ("revoked as the device is switched off", "switched off"),
        "core/upgrade/nomination.rs": ("not nominated for that", "switched off"),
    },
    "Internal": {
        "core/conn.rs": ("a code that is none", "internal error"),
        "core/upgrade.rs": ("the same, or a link page of the broker's that is none", "internal error"),
    },
    "IoUring": {
        "core/conn/handover.rs": ("the program has made a ring", "uses io_uring"),
        "core/conn/rings.rs": ("it is about to give one this connection", "only the connections that it named"),
        "core/upgrade/nomination.rs": ("it has one", "UV_USE_IO_URING=0"),
    },
    "Ktls": {"core/surface/options.rs": ("TCP_ULP", "kernel TLS")},
    "LentDenied": {"core/rx/ask_back.rs": ("process_vm_readv is refused", "does not let the receiver read")},
    "LentUnreadable": {
        "core/conn.rs": ("asked, not set", "gone before they were read"),
        "core/rx/ask_back.rs": ("the sender ended with bytes lent", "gone before they were read"),
        "core/zerocopy/lending.rs": ("memory that is not there any more", "gone before they were read"),
    },
    "LinkLimit": {"core/upgrade.rs": ("the table of link groups is full", "as many other processes")},
    "Memory": {"core/upgrade/nomination.rs": ("the arena has no block left", "one more connection of the process")},
    "MemoryRefused": {
        "core/tx.rs": ("no send buffer for the copy mode", "refused memory"),
        "core/upgrade.rs": ("a link page cannot be mapped", "refused memory"),
        "core/upgrade/dmbs.rs": ("a DMB cannot be mapped", "refused memory"),
    },
    "NestedSets": {
        "core/sets/refusal.rs": ("a set in a set", "waited for itself"),
        "core/conn/handover.rs": ("one-shots of a set that a forked child will have", "a forked process has the set"),
        "core/sets/mod.rs": ("the same, of connections on lanes; a set in poll, in AIO, sent by SCM_RIGHTS", "sent to another program"),
        "core/zerocopy.rs": ("asked, not set", "waited for itself"),
    },
    "NoBroker": {"core/session.rs": ("nobody listens there", "no broker reached")},
    "NoDescriptors": {
        "core/session.rs": ("our share of RLIMIT_NOFILE is too small, or used up", "an eighth of it"),
        "core/upgrade.rs": ("no number for the peer's doorbells", "an eighth of it"),
    },
    "NominationLimit": {"core/upgrade.rs": ("handshakes of the process", "one process allows")},
    "NotEstablished": {
        "core/upgrade/nomination.rs": ("by TCP_INFO", "not established"),
    },
    "NotNominated": {
        "core/conn.rs": ("at its beginning", "too few bytes"),
        "core/conn/given.rs": ("it came back, and has its next exchange before it", "too few bytes"),
        "core/upgrade.rs": ("its handshake begins anew", "too few bytes"),
        "core/session.rs": ("the broker was reached, and has not answered yet", "too few bytes"),
    },
    "OptionUnsupported": {
        "core/options.rs": ("an option that is in force, found at the nomination", "socket option"),
        "core/conn.rs": ("an option that is in force, set on a lane", "socket option"),
        "core/surface/options.rs": ("TCP_ZEROCOPY_RECEIVE", "socket option"),
        "preload/data.rs": ("an option among a message's control data", "socket option"),
        "preload/indirect.rs": ("such an option, by syscall(2)", "socket option"),
        "preload/lifecycle.rs": ("O_ASYNC, TCP_ZEROCOPY_RECEIVE", "socket option"),
    },
    "PeerDeclined": {"core/upgrade.rs": ("a Decline", "the peer declined")},
    "PeerVanished": {
        "core/eager.rs": ("asked, not set", "went away"),
        "core/upgrade.rs": ("the broker says so", "went away"),
    },
    "PeerViolation": {
        "core/conn.rs": ("asked, not set", "broke the protocol"),
        "core/rx.rs": ("a word that cannot be", "broke the protocol"),
        "core/tx.rs": ("the same, of the reader's", "broke the protocol"),
    },
    "PortOff": {"core/upgrade/nomination.rs": ("a list has one of its ports off", "one of its ports off")},
    "ReadingShut": {
        "core/upgrade.rs": ("the program has shut down reading since the nomination", "has shut down its reading"),
        "core/upgrade/nomination.rs": ("the same, before it", "has shut down its reading"),
    },
    "OtherNames": {
        "preload/lifecycle.rs": ("connect of a socket that has another name", "another name"),
        "core/conn.rs": ("connect(AF_UNSPEC) of one that has", "another name"),
    },
    "PrivateDescriptors": {
        "preload/indirect.rs": ("unshare(CLONE_FILES) in a thread", "descriptors of their own"),
        "preload/lifecycle.rs": ("close_range(CLOSE_RANGE_UNSHARE) in a thread", "descriptors of their own"),
    },
    "Revoked": {"core/upgrade.rs": ("`shunpike revoke`", "by the operator")},
    "SetUnseen": {"core/sets/ctl.rs": ("/proc/self/fdinfo of a set has it, our list has not", "that no hook sees")},
    "Shared": {
        "core/eager.rs": ("asked, not set", "several processes"),
        "core/sets/ctl.rs": ("a lane of before a fork in a set of the child's", "several processes"),
        "core/upgrade.rs": ("a fork in the midst of a handshake", "several processes"),
        "core/upgrade/nomination.rs": ("a forked child has it, too", "several processes"),
    },
    "SharedInSet": {"core/sets/ctl.rs": ("close() of a registered dup", "closed while it has another one")},
    "Splice": {"preload/data.rs": ("splice, tee", "splice or tee"), "core/tx.rs": ("sendfile", "O_DIRECT")},
    "Stdio": {
        "preload/bypass.rs": ("dprintf and its kin", "stdio"),
        "preload/stdio.rs": ("fdopen, fclose", "stdio"),
        "preload/streams.rs": ("a duplicate at a stream's number", "stdio"),
    },
    "TcpRepair": {"core/surface/options.rs": ("TCP_REPAIR", "TCP_REPAIR")},
    "UrgentData": {
        "core/rx/bounded.rs": ("it has come", "urgent data"),
        "core/tx.rs": ("MSG_OOB", "urgent data"),
    },
    "VersionDiffers": {
        "core/session.rs": ("the Welcome is of another version", "two versions"),
        "core/session/laneless.rs": ("so there are no lanes in this session", "two versions"),
    },
    "WaitsUnseen": {
        "core/upgrade.rs": ("it came into another set since it was nominated", "how the program waits"),
        "core/upgrade/nomination.rs": ("no wait of a hook has covered it", "how the program waits"),
    },
}  # fmt: skip


def places():
    """{code's name in the source: files of the library that name it}"""
    found = defaultdict(set)
    for crate in ("core", "preload"):
        root = ROOT / "crates" / crate / "src"
        for path in root.rglob("*.rs"):
            # Rows for the page and its tests set no code.
            if path.name == "tests.rs" or path.parts[-2:] == ("surface", "calls.rs"):
                continue
            text = "\n".join(line.split("//")[0] for line in re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", path.read_text())[0].splitlines())
            for name in re.findall(r"\bReason::([A-Z]\w+)", text):
                found[name].add(f"{crate}/{path.relative_to(root)}")
    return dict(found)


def test_every_place_has_its_cause():
    assert places() == {name: set(files) for name, files in CAUSES.items()}


def test_the_words_of_a_code_fit_each_cause():
    text = subprocess.run([BINARY, "explain", "--codes", "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    key = lambda name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    words = {entry["name"]: f"{entry['meaning']}. {entry['advice']}" for entry in json.loads(text)}
    for name, files in CAUSES.items():
        for file, (cause, fits) in files.items():
            assert fits in words[key(name)], f"{name} in {file}, because {cause}: {words[key(name)]}"


TCP_ONLY = "does with the connection what only TCP can serve"
# Code -> what `explain PID` advises: words that fit each cause above.
ADVICE = {
    "AttachRefused": "use different brokers", "AwaitingPeer": "start the other end", "BrokerForeign": "let SHUNPIKE_SOCKET name",
    "BrokerGone": "programs find it without a restart", "BypassedHooks": "moved bytes past the library", "Confined": "filter of system calls",
    "EpollSets": "register fewer connections", "GraceExceeded": "stopped or too slow to read", "HandedOver": "SOCK_CLOEXEC",
    "Inactive": "device set active on", "Internal": "look into the broker's log", "IoUring": "switch io_uring off", "Ktls": TCP_ONLY,
    "LentDenied": "became another user's", "LentUnreadable": "unmapped memory before the notice", "LinkLimit": "lanes with other processes have ended",
    "Memory": "limits, or lower rmem", "MemoryRefused": "limits, or lower rmem", "NestedSets": "puts its epoll set into another one",
    "NoBroker": "start a broker", "NoDescriptors": "hard limit of open files", "NominationLimit": "tried again when others are through",
    "NotEstablished": "being opened or closed", "NotNominated": "busy enough", "OptionUnsupported": "a TCP feature that a lane does not have",
    "OtherNames": "before it connected it", "PeerDeclined": "look into the broker's log", "PeerVanished": "did not go through with it",
    "PeerViolation": "wrote nonsense", "PortOff": "/etc/shunpike/enabled", "PrivateDescriptors": TCP_ONLY, "ReadingShut": TCP_ONLY,
    "Revoked": "an operator asked for it", "SetUnseen": "let the program register by epoll_ctl", "Shared": "one process alone has the connection",
    "SharedInSet": "before it closes it", "Splice": TCP_ONLY, "Stdio": TCP_ONLY, "TcpRepair": TCP_ONLY, "UrgentData": TCP_ONLY,
    "VersionDiffers": "runs the older version", "WaitsUnseen": "system calls of its own",
}  # fmt: skip


def test_what_explain_advises_fits_each_code():
    """By the source: most of them no test can bring about."""
    source = (ROOT / "crates" / "broker" / "src" / "explain.rs").read_text()
    arms = source[source.index("fn advice(") : source.index("#[cfg(test)]")]
    said, default = {}, re.search(r'_ => "(.*?)"', arms)[1]
    for names, words in re.findall(r'((?:Reason::\w+[\s|]*)+)=> \{?\s*"((?:[^"\\]|\\.|\\\n)*)"', arms):
        said |= dict.fromkeys(re.findall(r"Reason::(\w+)", names), re.sub(r"\\\n\s*", "", words))
    assert ADVICE.keys() == CAUSES.keys() and len(said) > 40
    wrong = {name: said.get(name, default) for name, words in ADVICE.items() if words not in said.get(name, default)}
    assert not wrong, wrong
