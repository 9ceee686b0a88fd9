"""Container engines as Debian has them, each in namespaces of its own: the machine's configuration, containers and images are not
touched, and nothing is left."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from harness import BINARY, LIBRARY, unique
from procs import PATIENCE, descendants, until

# The engine's own directories, and where CDI specifications are, are new for each container; so its locks (/dev/shm) are, too.
# A machine with both versions of control groups is refused by crun: it is shown version 2, and makes no group for the container.
PODMAN = """
set -e
mount -t tmpfs none /run
mount -t tmpfs -o mode=1777 none /dev/shm
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
[ ! -d /var/lib/cni ] || mount -t tmpfs none /var/lib/cni
STORE=/run/store
mkdir -p /run/cdi /run/user/$ENGINE_UID $STORE
[ -z "$SPECIFICATION" ] || cp "$SPECIFICATION" "/run/cdi/$(basename "$SPECIFICATION")"
if [ "$ENGINE_UID" != 0 ]; then
    name=$(id -nu $ENGINE_UID)
    echo "$name:200000:65536" >/run/ids
    mount --bind /run/ids /etc/subuid
    mount --bind /run/ids /etc/subgid
fi
chown $ENGINE_UID:$ENGINE_UID "$STORE" /run/user/$ENGINE_UID
cd /
"""
# How podman is called in there: beneath the same directories each time.
OPTIONS = ["--root=/run/store/storage", "--runroot=/run/user/0/run", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]
SETUP = PODMAN + """
export STORE
exec setpriv --reuid=$ENGINE_UID --regid=$ENGINE_UID --clear-groups env HOME="$STORE" TMPDIR="$STORE" XDG_RUNTIME_DIR=/run/user/$ENGINE_UID sh -ec '
    engine="podman --root $STORE/storage --runroot $XDG_RUNTIME_DIR/run --storage-driver vfs --cgroup-manager cgroupfs --events-backend none"
    if [ -n "$CHANGE" ]; then $engine import --change "$CHANGE" "$IMAGE" shunpike-test >/dev/null 2>&1
    else $engine load --quiet --input "$IMAGE" >/dev/null; fi
    exec $engine run --rm --cgroups=disabled --network=host "$@"' sh "$@"
"""

# Docker's daemon likewise. Besides its own directories it makes some in /etc and /opt, which go with an overlay. Its containers' groups are
# in one of the test's own ($GROUP), which is taken away; the daemon's would stay.
DOCKERD = """
set -e
mount -t tmpfs none /run
umount -R /sys/fs/cgroup 2>/dev/null || true
if [ "$CONTROLLERS" ]; then
    mount -t tmpfs none /sys/fs/cgroup
    for one in $CONTROLLERS; do
        mkdir /sys/fs/cgroup/$one
        mount -t cgroup -o $one none /sys/fs/cgroup/$one
    done
else mount -t cgroup2 none /sys/fs/cgroup
fi
for place in etc opt; do
    mkdir -p /run/over/$place /run/work/$place
    mount -t overlay -o lowerdir=/$place,upperdir=/run/over/$place,workdir=/run/work/$place none /$place
done
mkdir /run/store
cd /
export HOME=/run/store TMPDIR=/run/store DOCKER_HOST=unix:///run/docker.sock
[ "$NETWORK" = bridge ] || set -- "$@" --bridge=none --iptables=false --ip6tables=false
dockerd --data-root /run/store/data --exec-root /run/store/exec --pidfile /run/store/pid --host "$DOCKER_HOST" --storage-driver vfs \
    --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent="/$GROUP" "$@" >/run/store/log 2>&1 &
until /usr/bin/docker version >/dev/null 2>&1; do
    kill -0 $! || { tail -n 20 /run/store/log >&2; exit 77; }
    sleep 0.1
done
"""
DOCKER = f"start() {{ {DOCKERD} }}\nstart\n" + """
if [ -n "$CHANGE" ]; then /usr/bin/docker import --change "$CHANGE" "$IMAGE" shunpike-test >/dev/null
else /usr/bin/docker load --quiet --input "$IMAGE" >/dev/null; fi
exec /usr/bin/docker run --rm --network=host "$@"
"""
# The status of a setup that this machine cannot have.
CANNOT = 77
# What keeps an engine there, for several containers.
STAYS = "\necho ready\nexec sleep infinity\n"

APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]

# Who is not root; on every Debian.
ROOTLESS = 1


def needs(*programs):
    return pytest.mark.skipif(any(shutil.which(program) is None for program in programs), reason=f"needs {', '.join(programs)}")


needs_podman = needs("podman", "crun", "newuidmap")
# Debian's client with Debian's daemon: a newer one may not speak to it.
needs_docker = needs("dockerd", "/usr/bin/docker", "runc")


def needed(file):
    """What a program or a library of this machine asks for: its loader, and libraries. Nothing, if it is static."""
    headers = subprocess.run(["readelf", "-lW", file], capture_output=True, text=True, check=True).stdout
    loader = re.search(r"interpreter: (\S+)\]", headers)
    if loader and "/ld-musl" in loader[1]:
        return [loader[1]]
    linked = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
    return [word for word in linked.split() if word.startswith("/")]


def image(world, *programs, base=None, name="image", users="root:x:0:0::/:\n"):
    """An archive with these programs, their loader and libraries, what our library and command need of an image, and nothing else: no shell, as
    distroless images have none. `base`: the root of another system, which has all that the programs need."""
    root = world.directory / name
    if base:
        shutil.copytree(base, root, symlinks=True)
    for directory in ("bin", "etc", "tmp", "run"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text(users)
    for program in programs:
        shutil.copy(program, root / "bin")
    for file in () if base else (*programs, LIBRARY, BINARY):
        for word in needed(file):
            if not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    archive = world.directory / f"{name}.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    return archive


def podman(world, name, image, specification, *arguments, change="CMD []", uid=0, netns=None):
    """Starts a container of an image with this change, on the network of `netns`. Without a change, the archive is an image by its own word and
    has its own name."""
    more = {"ENGINE_UID": str(uid), "SPECIFICATION": str(specification or "")}
    return start(world, name, SETUP, image, change, arguments, netns, more)


def docker(world, name, image, *arguments, change="CMD []", netns=None):
    """The same by Docker, root's."""
    return start(world, name, DOCKER, image, change, arguments, netns, own_group(world))


def own_group(world):
    """A name for the control group of a daemon's containers, which is removed with the test."""
    group = unique("shunpike-test-")
    world.cleanups.append(lambda: remove_groups(group))
    return {"GROUP": group}


def remove_groups(group):
    """Removes a control group and those in it, in each hierarchy."""
    for root, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
        if f"/{group}" in root:
            with contextlib.suppress(OSError):
                os.rmdir(root)


def need_dockerd():
    """Skips where Docker's daemon does not start in namespaces of its own."""
    tried = subprocess.run([*APART, "sh", "-c", DOCKERD], env=os.environ | {"GROUP": "none", "NETWORK": "", "CONTROLLERS": ""}, capture_output=True, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"dockerd does not start here: {tried.stderr[-500:]}")


class Staying:
    """An engine of root's that stays for several containers, with the networks that it makes itself: bridges in the network namespace `netns`."""

    def __init__(self, world, setup, netns, env):
        self.world = world
        # Killed with all that is in its namespaces: the first process there hears no other signal.
        self.proc = world.start("engine", [*APART, "sh", "-c", setup + STAYS], netns=netns, env=env, stop_signal=signal.SIGKILL)
        status = lambda: self.proc.popen.poll()
        until(lambda: status() is not None or "ready" in self.proc.out, self.proc.describe, seconds=60)
        if status() == CANNOT:
            pytest.skip(f"not possible here: {self.proc.err[-500:]}")
        assert status() is None, self.proc.describe()
        (self.first,) = Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split()

    def inside(self, *argv):
        """A command in the engine's namespaces."""
        return ["nsenter", "--target", self.first, "--mount", "--pid", "--net", "--wd=/", "--", *map(str, argv)]

    def ran(self, *argv, status=0):
        """What a command there prints."""
        env = self.world.env | {"HOME": "/run/store", "TMPDIR": "/run/store", "XDG_RUNTIME_DIR": "/run/user/0", "DOCKER_HOST": "unix:///run/docker.sock"}
        done = subprocess.run(self.inside(*argv), env=env, capture_output=True, text=True, timeout=120 * PATIENCE)
        assert done.returncode == status, f"{' '.join(map(str, argv))}: {done.returncode}: {done.stdout}{done.stderr}{self.proc.describe()}"
        return done.stdout


class Podman(Staying):
    def __init__(self, world, image, specification, netns=None):
        super().__init__(world, PODMAN, netns, {"ENGINE_UID": "0", "SPECIFICATION": str(specification or "")})
        self("import", "--change=CMD []", image, "shunpike-test")

    def __call__(self, *arguments):
        return self.ran("podman", *OPTIONS, *arguments)


class Docker(Staying):
    """`controllers`: of control groups of version 1, in the place of version 2."""

    def __init__(self, world, images, netns=None, controllers=()):
        super().__init__(world, DOCKERD, netns, {"NETWORK": "bridge", "CONTROLLERS": " ".join(controllers)} | own_group(world))
        for name, archive in images.items():
            self("import", "--change=CMD []", archive, name)

    def __call__(self, *arguments):
        return self.ran("/usr/bin/docker", *arguments)


def contained(command):
    """The process outside of its container, by how its command line begins."""
    found = lambda: [pid for pid, line in descendants().items() if line.startswith(command)]
    return until(found, lambda: f"a process {command}: {descendants()}", seconds=60)[0]


def start(world, name, setup, image, change, arguments, netns, more=()):
    environment = {"IMAGE": str(image), "CHANGE": change or "", "NETWORK": "", "CONTROLLERS": "", **dict(more)}
    argv = [*APART, "sh", "-c", setup, "sh", *arguments]
    # What a test leaves running is killed with its namespaces: the first process there may hear no other signal.
    return world.start(name, argv, netns=netns, env=environment, stop_signal=signal.SIGKILL)
