"""Containers of real engines, which get all that they need by a CDI device (`shunpike cdi generate`), or where the engine knows none by mounts."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import engines
import roots
from harness import BINARY, LIBRARY, ROOT, Accel, compile_for_musl, programs
from netns import join, namespace, needs_root
from operators import asked
from packages import go_program
from procs import finish_together, free_port, until
from test_users import ANY, SAME

pytestmark = [pytest.mark.namespaces, needs_root]

DEVICE, MUSL = "--device=shunpike.dev/lane=all", "--device=shunpike.dev/lane=musl"
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
    shutil.copy(BINARY.with_name("libshunpike-entry.so"), prefix / "lib/shunpike")
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


@pytest.fixture
def specification(world, installed):
    """What `cdi generate` writes for a broker of the test's own, and which sides of the test have it: both."""
    accel = Accel(world, "both")
    file = world.directory / "shunpike.json"
    made = generate(world, installed, "--output", file, socket=accel.broker.socket)
    assert made.returncode == 0 and not made.stdout, made.stderr
    return file, accel


def dialogue(world, image, specification, command, *options, rounds=3000, change="CMD []", uid=0):
    """Two containers of an image, each on a network of its own, which talk with one another: server and client, when the server listens."""
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.8")

    def container(role, netns):
        given = [f"--env=BED_HOST={address}", "--env=BED_WARM_MS=300", *options]
        argv = [*command, role, port, *([1] if command[-1].endswith("pingpong") else []), rounds]
        return engines.podman(world, role, image, specification, *given, "shunpike-test", *argv, change=change, uid=uid, netns=netns)

    server = container("server", left).wait_listening(port, seconds=60)
    return server, container("client", right)


@engines.needs_podman
@pytest.mark.parametrize("uid,options,yaml", [(0, [], True), (0, RESTRICTED, False), (engines.ROOTLESS, [], False), (engines.ROOTLESS, RESTRICTED, False)],
                         ids=["root", "root-restricted", "rootless", "rootless-restricted"])  # fmt: skip
def test_lanes_between_two_containers_by_a_device(world, specification, image, uid, options, yaml):
    """Their images preload a library of their own, which stays. seccomp is the engine's default."""
    file, accel = specification
    file = file.rename(file.with_suffix(".yaml")) if yaml else file
    pair = dialogue(world, image, file, ["/bin/pingpong"], DEVICE, *options, change="ENV LD_PRELOAD=/bin/own.so", uid=uid)
    finish_together(*pair, seconds=60)
    accel.verify(lanes=1, lane_bytes=100_000)
    assert all("the image's own" in proc.err for proc in pair)


def debian_image(world, bed, _):
    """Debian's libc, its shell and coreutils; a shell executes the program."""
    return engines.image(world, bed / "pingpong", base=roots.debian("debian12")), ["/bin/sh", "-c", 'exec "$@"', "sh", "/bin/pingpong"]


def musl_image(world, _, tmp_path):
    compile_for_musl(tmp_path, ["pingpong"])
    return engines.image(world, tmp_path / "pingpong"), ["/bin/pingpong"]


def scratch_image(world, _, tmp_path):
    """One static program of Go's, and nothing else."""
    go_program(tmp_path / "contained", programs() / "contained.go")
    return engines.image(world, tmp_path / "contained"), ["/bin/contained"]


RUN = ["shunpike", "run", "--entry=syscall", "--"]
# An image, the device for it, what stands before its own command, and how often that asks: until there is a lane.
IMAGES = {
    "debian": (debian_image, DEVICE, [], 3000),
    "musl": (musl_image, MUSL, [], 3000),
    "go-from-scratch": (scratch_image, DEVICE, RUN, 60_000),
}


@engines.needs_podman
@pytest.mark.parametrize("uid,options", [(0, []), (engines.ROOTLESS, RESTRICTED)], ids=["root", "rootless-restricted"])
@pytest.mark.parametrize("kind", IMAGES)
def test_lanes_between_two_containers_of_each_kind_of_image(world, bed, specification, tmp_path, kind, uid, options):
    file, accel = specification
    make, device, before, rounds = IMAGES[kind]
    archive, command = make(world, bed, tmp_path)
    finish_together(*dialogue(world, archive, file, [*before, *command], device, *options, rounds=rounds, uid=uid), seconds=60)
    accel.verify(lanes=1, lane_bytes=100_000)


@engines.needs_podman
@pytest.mark.parametrize("device", [DEVICE, MUSL], ids=["all", "musl"])
def test_a_static_program_stays_on_tcp_and_the_tools_say_why(world, specification, tmp_path, device):
    """It is reached by no file and no variable. The tools say what to do; the test above does it."""
    file, accel = specification
    archive, command = scratch_image(world, None, tmp_path)
    pair = dialogue(world, archive, file, command, device, rounds=10**7)
    server = engines.contained("/bin/contained server")
    env = world.env | {"SHUNPIKE_SOCKET": str(accel.broker.socket)}
    said = subprocess.run([BINARY, "explain", str(server)], env=env, capture_output=True, text=True, timeout=60).stderr
    port = Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")[2].decode()
    inside = ["nsenter", "--target", str(server), "--net", BINARY, "chk", f"127.0.0.1:{port}"]
    checked = subprocess.run(inside, env=env, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 1, checked
    for text in (said, checked.stdout):
        assert "is a Go program" in text and "shunpike run --entry=syscall" in text, text
        assert "a container's device does not reach static programs" in text, text
    assert accel.broker.stats().handled == 0
    for proc in pair:
        proc.kill()


@engines.needs_podman
def test_a_musl_program_with_the_device_for_glibc_is_told_which_one_it_wants(world, specification, tmp_path):
    file, accel = specification
    archive, command = musl_image(world, None, tmp_path)
    pair = dialogue(world, archive, file, command, DEVICE, rounds=10**7)
    said = asked(accel.broker, "explain", str(engines.contained("/bin/pingpong server")))
    assert said[0] == 1 and "which is of musl" in said[1] and "shunpike.dev/lane=musl" in said[1], said
    for proc in pair:
        proc.kill()


@engines.needs_podman
def test_two_user_namespaces_with_ranges_of_their_own_are_two_users(world, installed, image):
    """Each container's root is another user of the host: on TCP by the built-in policy, which `explain` names; on a lane by one that joins any."""
    policy = world.directory / "broker.toml"
    policy.write_text(SAME)
    accel = Accel(world, "both", broker_options=("--config", policy))
    file = world.directory / "shunpike.json"
    assert generate(world, installed, "--output", file, socket=accel.broker.socket).returncode == 0
    left, right, port = namespace(world, "a"), namespace(world, "b"), free_port()
    address, _ = join(left, right, "10.207.8")

    def container(role, netns, first):
        given = [f"--uidmap=0:{first}:1000", f"--gidmap=0:{first}:1000", f"--env=BED_HOST={address}", DEVICE]
        return engines.podman(world, role, image, file, *given, "shunpike-test", "/bin/pingpong", role, port, 1, 10**7, netns=netns)

    server = container("server", left, 300_000).wait_listening(port, seconds=60)
    client = container("client", right, 400_000)
    refused = lambda: accel.broker.stats().reasons.get("not_permitted", 0) >= 2
    until(refused, lambda: f"both ends refused; have {accel.broker.stats()}", seconds=60)
    pid = engines.contained("/bin/pingpong server")
    told = lambda: json.loads(accel.broker.tool("explain", str(pid), "--json"))["explanations"]
    # An end that is refused asks again, and waits for the other one's next question meanwhile.
    until(lambda: any(f"policy is same-user ({policy}, line 2)" in one["advice"] for one in told()), told, seconds=60)
    assert {end["uid"] for end in accel.broker.connections()} == {300_000, 400_000}
    assert accel.broker.stats().smc == 0
    policy.write_text(ANY)
    accel.broker.tool("policy", "reload")
    accel.verify(lanes=1, lane_bytes=100_000)
    for proc in (client, server):
        proc.kill()


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
def test_a_container_with_the_device_reaches_the_broker_and_says_so(world, specification, image):
    info = engines.podman(world, "info", image, specification[0], DEVICE, "shunpike-test", "/usr/local/bin/shunpike", "info", "--json")
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
