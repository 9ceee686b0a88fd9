"""TCP is silent while lanes carry the bytes: what forwards it must not forget the connection meanwhile (`keepalive.c`)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harness import Accel, fifos
from netns import join, namespace, needs_root
from procs import finish_together, free_port, until

pytestmark = [pytest.mark.namespaces, needs_root]

# Seconds after which conntrack forgets a connection, and exchanges with their pauses for longer than that.
FORGETS, ROUNDS, PAUSE_MS = 2, 35, 100


def inside(netns, command, **options):
    return subprocess.run(["ip", "netns", "exec", netns, *command], check=True, text=True, **options)


def forgets_soon(netns):
    """Connections are tracked there, and what is of none is thrown away."""
    rules = "table inet shunpike { chain in { type filter hook input priority 0; ct state invalid drop; }; }"
    inside(netns, ["nft", "-f", "-"], input=rules)
    for name, value in [("tcp_timeout_established", FORGETS), ("tcp_loose", 0)]:
        inside(netns, ["sh", "-c", f"echo {value} > /proc/sys/net/netfilter/nf_conntrack_{name}"])


class Dialogue:
    """Both ends of the program, the client ready to go on by TCP when it is told."""

    def __init__(self, accel, bed, server_netns, client_netns, address, rounds=ROUNDS, pause_ms=PAUSE_MS):
        world, port = accel.world, free_port()
        env = fifos(world) | {"BED_HOST": address}
        self.accel, self.port, self.netns = accel, port, client_netns
        self.tells = os.open(Path(env["BED_SYNC"]) / "to-client", os.O_RDWR)
        argv = lambda side: [bed / "keepalive", side, port, rounds, pause_ms]
        self.server = accel.server("server", argv("server"), env=env, netns=server_netns).wait_listening(port)
        self.client = accel.client("client", argv("client"), env=env, netns=client_netns)
        accel.warmed()

    def arrives(self, where):
        until(lambda: where in self.client.out.splitlines(), self.client.describe, seconds=20)

    def tell(self):
        os.write(self.tells, b"!")

    def timers(self):
        """What the kernel says of its keepalive timers, of both ends where they are in one namespace."""
        listed = inside(self.netns, ["ss", "-Htno", f"sport = :{self.port} or dport = :{self.port}"], capture_output=True).stdout
        return re.findall(r"timer:\(keepalive,(\w+)", listed)

    def finish(self):
        outputs = finish_together(self.client, self.server, seconds=10)
        os.close(self.tells)
        return outputs


@pytest.mark.parametrize("way, mode", [("loopback", "tcp"), ("loopback", "both"), ("veth", "earned")])
def test_what_tracks_connections_remembers_one_on_its_lane(world, bed, way, mode):
    client_netns = server_netns = namespace(world, "a")
    address = "127.0.0.1"
    if way == "veth":
        server_netns = namespace(world, "b")
        address, _ = join(server_netns, client_netns, "10.207.4")
    forgets_soon(client_netns)
    accel = Accel.eager(world, mode, warms=True)
    dialogue = Dialogue(accel, bed, server_netns, client_netns, address)
    dialogue.arrives("open")
    if mode in ("both", "earned"):
        accel.broker.tool("revoke", str(dialogue.client.pid))
    dialogue.tell()
    dialogue.arrives("over")
    dialogue.tell()
    # The same as on TCP: none of the settings that the lanes need is seen.
    client, server = dialogue.finish()
    default = [int(Path(f"/proc/sys/net/ipv4/tcp_keepalive_{name}").read_text()) for name in ("intvl", "time", "probes")]
    line = "{}: every {} s after {} s, {} times\n".format
    own, other = line(0, *default), line(1, *default)
    ours = (default[0], 4000, 5)
    assert client == own * 3 + line(0, *ours) + line(1, *ours) + "open\n" + line(1, *ours) + "over\ndone\n"
    assert server == other * 2 + line(1, *ours) + line(0, *ours) * 2 + "done\n"
    accel.verify(lane_bytes=30 * 50)


@pytest.mark.parametrize("way", ["loopback", "veth"])
def test_probes_are_sent_where_somebody_may_forget(world, bed, way):
    """Where it is not known who forwards the segments; not on a loopback that tracks nothing, where nobody does."""
    client_netns = server_netns = namespace(world, "a")
    address = "127.0.0.1"
    if way == "veth":
        server_netns = namespace(world, "b")
        address, _ = join(server_netns, client_netns, "10.207.4")
    accel = Accel.eager(world, "both")
    dialogue = Dialogue(accel, bed, server_netns, client_netns, address, rounds=1, pause_ms=2000)
    accel.verify(lane_bytes=50)
    probes = lambda: [time for time in dialogue.timers() if re.fullmatch(r"\d+sec|\d+ms", time)]
    if way == "veth":
        until(lambda: len(probes()) == 1, lambda: f"a probe within 20 s: {dialogue.timers()}", seconds=1.5)
    else:
        assert not probes()
    dialogue.arrives("open")
    dialogue.tell()
    dialogue.arrives("over")
    dialogue.tell()
    dialogue.finish()
