"""Programs in namespaces of their own, as an engine would put them there, with the broker's directory mounted in; and what
the broker can prove with which capabilities."""

import json
import shutil
import sys

import pytest

from harness import BINARY, LIBRARY, Accel, programs
from netns import join, namespace, needs_root
from procs import finish_together, free_port, until

pytestmark = [pytest.mark.namespaces, needs_root]

# The broker's directory appears elsewhere than on the host, and read-only; the host's /tmp does not appear at all.
INSIDE = 'mount --bind "$0" /mnt && mount -o remount,bind,ro /mnt && mount -t tmpfs tmpfs /tmp && exec "$@"'
UNSHARED = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc"]


def contained(world, netns, argv, own_user_namespace=False):
    """A command that runs `argv` with every namespace its own."""
    user = ["--user", "--map-root-user"] if own_user_namespace else []
    return ["ip", "netns", "exec", netns, *UNSHARED, *user, "sh", "-c", INSIDE, world.directory, *argv]


def dialogue(world, name, netns, role, at, port, rounds, source=None, own_user_namespace=False):
    """One end of a ping-pong in a container, under Shunpike."""
    argv = ["/mnt/shunpike", "run", "--eager", "--", "/mnt/pingpong", role, port, 1, rounds]
    env = {"SHUNPIKE_LIB": "/mnt/libshunpike.so", "SHUNPIKE_SOCKET": "/mnt/broker.sock", "BED_HOST": at}
    env |= {"BED_SOURCE": str(source)} if source else {}
    return world.start(name, contained(world, netns, argv, own_user_namespace), env=env)


@pytest.fixture
def image(world, bed):
    """What an image, or a mounted directory, has to hold."""
    for path in (BINARY, LIBRARY, bed / "pingpong"):
        shutil.copy(path, world.directory)


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("own_users", [False, True], ids=["root", "own-user-namespace"])
def test_all_namespaces_apart(world, own_users):
    accel = Accel(world, "both")
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.5")
    server = dialogue(world, "server", left, "server", address, port, 3000, own_user_namespace=own_users)
    server.wait_listening(port)
    client = dialogue(world, "client", right, "client", address, port, 3000, own_user_namespace=own_users)
    finish_together(server, client, seconds=60)
    accel.verify(lanes=1, lane_bytes=100_000)


@pytest.mark.usefixtures("image")
def test_overlapping_ranges_and_equal_tuples_at_once(world):
    """Two pairs of containers with the very same addresses and ports at the same moment: each finds its own peer. The
    dialogues differ, so that crossed lanes could not go unnoticed."""
    accel, port, source = Accel(world, "both"), free_port(), free_port()
    assert json.loads(accel.broker.tool("info", "--json"))["privileged"]
    pairs = []
    for label, rounds in (("a", 3000), ("b", 3500)):
        left, right = namespace(world, label), namespace(world, label)
        address, _ = join(left, right, "10.207.6")
        server = dialogue(world, f"server-{label}", left, "server", address, port, rounds).wait_listening(port)
        pairs.append((label, server, right, address, rounds))
    clients = [dialogue(world, f"client-{label}", right, "client", address, port, rounds, source=source)
               for label, _, right, address, rounds in pairs]  # fmt: skip
    finish_together(*clients, *(server for _, server, *_ in pairs), seconds=60)
    accel.verify(lanes=2, lane_bytes=200_000)


CAPABILITIES = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]
SEES_ALL = [*CAPABILITIES, "--bounding-set=-all,+bpf,+net_admin,+sys_admin"]
SEES_OWN = [*CAPABILITIES, "--bounding-set=-all,+bpf,+net_admin"]
NONE = [*CAPABILITIES, "--bounding-set=-all"]
# As the systemd unit has it.
SERVICE = 61000
AS_SERVICE = ["setpriv", f"--reuid={SERVICE}", f"--regid={SERVICE}", "--clear-groups", "--no-new-privs",
              *("--" + kind + "=-all,+bpf,+net_admin,+sys_admin" for kind in ("inh-caps", "ambient-caps", "bounding-set"))]  # fmt: skip


@pytest.mark.parametrize("who,sees,across", [(SEES_ALL, True, True), (AS_SERVICE, True, True), (SEES_OWN, True, False), (NONE, False, False)],
                         ids=["bpf+net_admin+sys_admin", "not-root-with-these", "bpf+net_admin", "none"])  # fmt: skip
@pytest.mark.timed
def test_what_each_capability_is_for(world, bed, who, sees, across):
    """Without any: lanes within a network namespace. Sequence numbers need CAP_BPF and CAP_NET_ADMIN, and to look into
    another namespace CAP_SYS_ADMIN; without them, ends in two namespaces stay on TCP."""
    name = "broker"
    if who is AS_SERVICE:
        # As /run/shunpike: root has made it, and given it to the service's user.
        (world.directory / "service").mkdir()
        shutil.chown(world.directory / "service", SERVICE)
        name = "service/broker"
    broker = world.broker(name=name, prefix=who)
    assert json.loads(broker.tool("info", "--json"))["privileged"] == sees
    accel = Accel(world, "tcp", ["--eager"])
    left, right = namespace(world, "a"), namespace(world, "b")
    address, _ = join(left, right, "10.207.7")

    def pair(port, at, server_netns, client_netns):
        env = {"BED_HOST": at}
        start = lambda role, netns: accel.start(role, [bed / "pingpong", role, port, 2, 1500], True, env=env, broker=broker, netns=netns)  # fmt: skip
        server = start("server", server_netns).wait_listening(port)
        finish_together(server, start("client", client_netns), seconds=60)

    pair(free_port(), "127.0.0.1", None, None)
    until(lambda: broker.stats().lanes == 2, lambda: f"lanes in the broker's own namespace: {broker.stats()}")
    pair(free_port(), "127.0.0.1", left, left)
    until(lambda: broker.stats().lanes == 4, lambda: f"lanes in another namespace: {broker.stats()}")
    pair(free_port(), address, left, right)
    if across:
        until(lambda: broker.stats().lanes == 6, lambda: f"lanes between namespaces: {broker.stats()}")
    else:
        stats = until(lambda: (now := broker.stats()).fallback >= 4 and now, lambda: f"fallbacks; have {broker.stats()}")
        assert stats.lanes == 4 and stats.reasons.get("awaiting_peer", 0) >= 4, stats


@pytest.mark.timed
def test_an_end_that_sleeps_is_asked_again(world):
    """Two programs in one namespace, a broker without capabilities in another: it cannot ask the kernel whether the earlier nomination
    still holds. It asks that end again, which may be asleep by then, and tells the other one to wait, whose writes do not block."""
    netns, broker = namespace(world, "a"), world.broker(prefix=NONE)
    accel, port = Accel(world, "tcp", ["--eager"]), free_port()
    program = [sys.executable, programs() / "asleep.py"]
    start = lambda *argv: accel.start(argv[0], [*program, *argv], True, broker=broker, netns=netns)
    server = start("server", port).wait_listening(port)
    out = start("client", port, 11).finish()
    server.stop()
    # Before, each write waited in vain, as long as that may take of a process's time: five lanes at most. How the first connection will be
    # waited for nobody knows yet.
    assert broker.stats().lanes >= 6, (broker.stats(), out)
