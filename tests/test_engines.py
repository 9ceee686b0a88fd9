"""Containers of real engines, which get all that they need by a CDI device (`shunpike cdi generate`), or where the engine knows none by mounts."""

import json
import shutil
import subprocess

import pytest

import engines
from harness import BINARY, LIBRARY, ROOT, Accel
from netns import join, namespace, needs_root
from procs import finish_together, free_port

pytestmark = [pytest.mark.namespaces, needs_root]

DEVICE = "--device=shunpike.dev/lane=all"
RESTRICTED = ["--user=65534", "--cap-drop=all", "--read-only", "--security-opt=no-new-privileges"]
# What an image preloads itself.
OWN = """
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { if (write(2, "the image's own\\n", 16) < 0) _exit(1); }
"""


@pytest.fixture
def installed(world):
    """Command, library and list as they are installed, and where any user may read them."""
    prefix = world.directory / "prefix"
    (prefix / "lib/shunpike").mkdir(parents=True)
    (prefix / "bin").mkdir()
    shutil.copy(BINARY, prefix / "bin")
    shutil.copy(LIBRARY, prefix / "lib/libshunpike.so")
    shutil.copy(ROOT / "dist/cdi/container.preload", prefix / "lib/shunpike")
    return prefix / "bin/shunpike"


def generate(world, installed, *arguments, socket=None):
    """`shunpike cdi generate`, as it finds its library itself."""
    env = {key: value for key, value in world.env.items() if key != "SHUNPIKE_LIB"}
    named = ["--socket", socket] if socket else []
    return subprocess.run([installed, *named, "cdi", "generate", *arguments], env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def image(world, bed):
    source, own = world.directory / "own.c", world.directory / "own.so"
    source.write_text(OWN)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", own, source], check=True)
    return engines.image(world, bed / "pingpong", own)


@engines.needs_podman
@pytest.mark.parametrize("uid,options,name", [(0, [], "shunpike.yaml"), (0, RESTRICTED, "shunpike.json"),
                                              (engines.ROOTLESS, [], "shunpike.json"), (engines.ROOTLESS, RESTRICTED, "shunpike.json")],
                         ids=["root", "root-restricted", "rootless", "rootless-restricted"])  # fmt: skip
def test_lanes_between_two_containers_by_a_device(world, installed, image, uid, options, name):
    """Their images preload a library of their own, which stays. seccomp is the engine's default."""
    accel = Accel(world, "both")
    specification = world.directory / name
    made = generate(world, installed, "--output", specification, socket=accel.broker.socket)
    assert made.returncode == 0 and not made.stdout, made.stderr
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.8")

    def container(role, netns):
        given = [f"--env=BED_HOST={address}", "--env=BED_WARM_MS=300", DEVICE, *options]
        return engines.podman(world, role, image, specification, *given, "shunpike-test", "/bin/pingpong", role, port, 1, 3000,
                              change="ENV LD_PRELOAD=/bin/own.so", uid=uid, netns=netns)  # fmt: skip

    server = container("server", left).wait_listening(port, seconds=60)
    client = container("client", right)
    finish_together(server, client, seconds=60)
    accel.verify(lanes=1, lane_bytes=100_000)
    assert "the image's own" in server.err and "the image's own" in client.err


@engines.needs_docker
@pytest.mark.parametrize("options", [[], RESTRICTED], ids=["root", "restricted"])
def test_lanes_between_two_containers_by_mounts(world, installed, image, options):
    """Debian's Docker, which knows no CDI device. seccomp is its default."""
    engines.need_dockerd()
    accel = Accel(world, "both")
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.10")
    prefix = installed.parent.parent
    mounted = {world.directory: "/run/shunpike", prefix / "bin": "/opt/shunpike/bin", prefix / "lib": "/opt/shunpike/lib"}
    mounts = [f"--volume={host}:{inside}:ro" for host, inside in mounted.items()]
    given = [*mounts, f"--env=BED_HOST={address}", "--env=BED_WARM_MS=300", f"--env=SHUNPIKE_SOCKET=/run/shunpike/{accel.broker.socket.name}"]

    def container(role, netns):
        run = ["/opt/shunpike/bin/shunpike", "run", "/bin/pingpong", role, port, 1, 3000]
        return engines.docker(world, role, image, *given, *options, "shunpike-test", *run, netns=netns)

    server = container("server", left).wait_listening(port, seconds=60)
    finish_together(server, container("client", right), seconds=60)
    accel.verify(lanes=1, lane_bytes=100_000)


@engines.needs_podman
def test_a_container_with_the_device_reaches_the_broker_and_says_so(world, installed, image):
    broker = world.broker()
    specification = world.directory / "shunpike.json"
    assert generate(world, installed, "-o", specification, socket=broker.socket).returncode == 0
    info = engines.podman(world, "info", image, specification, DEVICE, "shunpike-test", "/usr/local/bin/shunpike", "info", "--json")
    assert json.loads(info.finish(seconds=60))["privileged"]


def test_a_specification_is_written_whole_or_not_at_all(world, installed):
    specification = world.directory / "cdi/shunpike.json"
    assert generate(world, installed, "--output", specification).returncode == 0, "the directory is made"
    assert specification.stat().st_mode & 0o777 == 0o644
    printed = generate(world, installed)
    assert printed.stdout == specification.read_text() and json.loads(printed.stdout)["kind"] == "shunpike.dev/lane"
    full, old = world.directory / "full", world.directory / "old"
    full.mkdir()
    old.write_text("x" * 4096)
    script = 'mount -t tmpfs -o size=4k none "$0"; cp "$1" "$0/shunpike.json"; "$2" cdi generate -o "$0/shunpike.json"; status=$?; ls -A "$0"; cmp "$0/shunpike.json" "$1"; exit $status'
    env = {key: value for key, value in world.env.items() if key != "SHUNPIKE_LIB"}
    argv = ["unshare", "--mount", "sh", "-c", script, full, old, installed]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "cannot write" in ran.stderr and "No space left" in ran.stderr, (ran.stdout, ran.stderr)
    assert ran.stdout == "shunpike.json\n", "nothing but what was there, as it was"


def test_what_cannot_be_generated_says_what_to_do(world, installed):
    ran = generate(world, installed, "--output", world.directory / "shunpike.conf")
    assert ran.returncode == 1 and ".json or .yaml" in ran.stderr
    assert not (world.directory / "shunpike.conf").exists()
    (installed.parent.parent / "lib/shunpike/container.preload").unlink()
    ran = generate(world, installed)
    assert ran.returncode == 1 and "container.preload" in ran.stderr and "make install" in ran.stderr
