"""Containers on the networks that engines make themselves, bridges with published ports; and tools that are executed in a container that runs."""

from pathlib import Path

import pytest

import engines
from harness import BINARY, Accel
from netns import join, namespace, needs_root
from procs import free_port, listens, until
from test_chk import findings_of
from test_engines import DEVICE, generate, image, installed, specification  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.namespaces, needs_root]

NEVER = 10**7  # rounds: until it is ended
# Debian's CNI plugins make the bridge, and forward ports by iptables.
needs_bridge = pytest.mark.skipif(not Path("/usr/lib/cni/portmap").exists(), reason="needs containernetworking-plugins")


def bed(role, host, port):
    return [f"--env=BED_HOST={host}", "--env=BED_WARM_MS=300"], ["/bin/pingpong", role, port, 1, NEVER]


def by_mounts(accel, installed):  # noqa: F811
    """What Debian's Docker, which knows no CDI device, is told."""
    places = {accel.world.directory: "/run/shunpike", installed.parent.parent: "/opt/shunpike"}
    volumes = [f"--volume={host}:{inside}:ro" for host, inside in places.items()]
    return [*volumes, f"--env=SHUNPIKE_SOCKET=/run/shunpike/{accel.broker.socket.name}"]


def listening(port):
    """Waits for the server at a port of its own namespace."""
    server = engines.contained(f"/bin/pingpong server {port} ")
    until(lambda: listens(server, port), f"PID {server} listens on {port}")


def outside(world, accel, address, port, netns):
    """A client of the host's, without a container, at a published port."""
    env = {"SHUNPIKE_SOCKET": str(accel.broker.socket), "BED_HOST": address, "BED_WARM_MS": "300"}
    program = world.directory / "image/bin/pingpong"
    return world.start("outside", [BINARY, "run", "--", program, "client", port, 1, NEVER], netns=netns, env=env)


@needs_bridge
@engines.needs_podman
def test_podman_with_a_bridge_and_a_published_port(world, specification, image):  # noqa: F811
    """Another container on the bridge and a program beyond it, at the port that is published, both have lanes. `ss` in a running container
    shows its end."""
    file, accel = specification
    host, beyond = namespace(world, "a"), namespace(world, "b")
    address, _ = join(host, beyond, "10.207.12")
    engine, port, other, published = engines.Podman(world, image, file, netns=host), free_port(), free_port(), free_port()
    start = ["run", "--detach", "--cgroups=disabled", "--network=bridge", DEVICE]
    for name, at, more in (("near", port, []), ("far", other, [f"--publish={published}:{other}"])):
        options, command = bed("server", "0.0.0.0", at)
        engine(*start, *options, *more, f"--name={name}", "shunpike-test", *command)
        listening(at)
    near = engine("inspect", "--format={{.NetworkSettings.IPAddress}}", "near").strip()
    options, command = bed("client", near, port)
    engine(*start, *options, "shunpike-test", *command)
    client = outside(world, accel, address, published, beyond)
    accel.verify(lanes=2, lane_bytes=200_000)
    (row,) = (line.split() for line in engine("exec", "near", "/usr/local/bin/shunpike", "ss", "--no-header").splitlines())
    assert row[3] == f"{near}:{port}" and row[-3:] == ["SMCD", "1", "pingpong"], row
    client.kill()


@engines.needs_docker
def test_docker_with_its_bridge_and_its_proxy(world, installed, image):  # noqa: F811
    """A program beyond the bridge has a lane, by iptables' translation. One of the host itself, at the published port, gets to Docker's proxy,
    which makes another connection: on TCP, and `chk` names the reason."""
    accel = Accel(world, "both")
    host, beyond = namespace(world, "a"), namespace(world, "b")
    address, _ = join(host, beyond, "10.207.13")
    engine, port, published = engines.Docker(world, {"shunpike-test": image}, netns=host), free_port(), free_port()
    mounts = by_mounts(accel, installed)
    options, command = bed("server", "0.0.0.0", port)
    engine("run", "--detach", *mounts, *options, f"--publish={published}:{port}", "shunpike-test", "/opt/shunpike/bin/shunpike", "run", *command)
    listening(port)
    lane, found = findings_of(accel.broker, f"127.0.0.1:{published}", netns=host)
    assert not lane and "docker-proxy" in found["proxy"]["text"] and "userland-proxy" in found["proxy"]["advice"], found
    client = outside(world, accel, address, published, beyond)
    accel.verify(lanes=1, lane_bytes=100_000)
    # One connection more than the server takes: it stays in the listener's queue.
    lane, found = findings_of(accel.broker, "--connect", f"{address}:{published}", netns=beyond)
    assert lane and "pingpong" in found["listener"]["text"], found
    client.kill()


def controllers(version):
    """Of the control groups that limit memory here; none, if those of this version do not."""
    if version == 2:
        given = Path("/sys/fs/cgroup/cgroup.subtree_control")
        return given.read_text().split() if given.exists() else []
    mounts = (line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    mounted = [sources.split()[2].split(",") for _, sources in mounts if sources.startswith("cgroup ")]
    known = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids"}
    return [",".join(sorted(known & set(words))) for words in mounted if known & set(words)]


@engines.needs_docker
@pytest.mark.parametrize("version", [1, 2])
def test_a_container_with_a_memory_limit(world, installed, image, version):  # noqa: F811
    """The rings that its processes fill count for it. They fit, and the connections stay on lanes."""
    here = controllers(version)
    if "memory" not in ",".join(here).split(","):
        pytest.skip(f"control groups of version {version} limit no memory here: the machine has the other one")
    accel = Accel(world, "both")
    host, beyond = namespace(world, "a"), namespace(world, "b")
    address, _ = join(host, beyond, "10.207.14")
    engine = engines.Docker(world, {"shunpike-test": image}, netns=host, controllers=here if version == 1 else ())
    port, published = free_port(), free_port()
    options, command = bed("server", "0.0.0.0", port)
    limited = ["--memory=64m", f"--publish={published}:{port}", "--name=limited"]
    engine("run", "--detach", *limited, *by_mounts(accel, installed), *options, "shunpike-test", "/opt/shunpike/bin/shunpike", "run", *command)
    listening(port)
    client = outside(world, accel, address, published, beyond)
    accel.verify(lanes=1, lane_bytes=1_000_000)
    pid = engine("inspect", "--format={{.State.Pid}}", "limited").strip()
    groups = [line.split(":", 2)[1:] for line in engine.ran("cat", f"/proc/{pid}/cgroup").splitlines()]
    if version == 1:
        (group,) = [group for names, group in groups if "memory" in names.split(",")]
        (place,) = [one for one in here if "memory" in one.split(",")]
        files = [f"{place}{group}/{name}" for name in ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")]
    else:
        (group,) = [group for names, group in groups if not names]
        files = [f"{group[1:]}/{name}" for name in ("memory.max", "memory.current", "memory.events")]
    limit, used, events = (engine.ran("cat", f"/sys/fs/cgroup/{file}") for file in files)
    assert int(limit) == 64 << 20 and "oom_kill 0" in events, (limit, events)
    assert 1 << 20 < int(used) < 64 << 20, f"a ring and the program: {used}"
    client.kill()
