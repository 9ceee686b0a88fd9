"""Container engines as Debian has them, each in namespaces of its own: the machine's configuration, containers and images are not
touched, and nothing is left."""

import shutil
import subprocess

import pytest

from harness import BINARY, LIBRARY

# The engine's own directories, and where CDI specifications are, are new for each container; so its locks (/dev/shm) are, too.
# A machine with both versions of control groups is refused by crun: it is shown version 2, and makes no group for the container.
SETUP = """
set -e
mount -t tmpfs none /run
mount -t tmpfs -o mode=1777 none /dev/shm
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
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
export STORE
exec setpriv --reuid=$ENGINE_UID --regid=$ENGINE_UID --clear-groups env HOME="$STORE" TMPDIR="$STORE" XDG_RUNTIME_DIR=/run/user/$ENGINE_UID sh -ec '
    engine="podman --root $STORE/storage --runroot $XDG_RUNTIME_DIR/run --storage-driver vfs --cgroup-manager cgroupfs --events-backend none"
    if [ -n "$CHANGE" ]; then $engine import --change "$CHANGE" "$IMAGE" shunpike-test >/dev/null 2>&1
    else $engine load --quiet --input "$IMAGE" >/dev/null; fi
    exec $engine run --rm --cgroups=disabled --network=host "$@"' sh "$@"
"""

# Docker's daemon likewise, for one container. Besides its own directories it makes some in /etc and /opt, which go with an overlay.
DOCKERD = """
set -e
mount -t tmpfs none /run
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
for place in etc opt; do
    mkdir -p /run/over/$place /run/work/$place
    mount -t overlay -o lowerdir=/$place,upperdir=/run/over/$place,workdir=/run/work/$place none /$place
done
mkdir /run/store
cd /
export HOME=/run/store TMPDIR=/run/store DOCKER_HOST=unix:///run/docker.sock
dockerd --data-root /run/store/data --exec-root /run/store/exec --pidfile /run/store/pid --host "$DOCKER_HOST" --storage-driver vfs \
    --bridge=none --iptables=false --ip6tables=false --exec-opt native.cgroupdriver=cgroupfs >/run/store/log 2>&1 &
until /usr/bin/docker version >/dev/null 2>&1; do
    kill -0 $! || { tail -n 20 /run/store/log >&2; exit 125; }
    sleep 0.1
done
"""
DOCKER = DOCKERD + """
if [ -n "$CHANGE" ]; then /usr/bin/docker import --change "$CHANGE" "$IMAGE" shunpike-test >/dev/null
else /usr/bin/docker load --quiet --input "$IMAGE" >/dev/null; fi
# A group of the container's own, which is taken away; the daemon's would stay.
group=shunpike-test-$(cat /proc/sys/kernel/random/uuid)
status=0
/usr/bin/docker run --rm --network=host --cgroup-parent=/$group "$@" || status=$?
rmdir /sys/fs/cgroup/$group
exit $status
"""

APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]

# Who is not root; on every Debian.
ROOTLESS = 1


def needs(*programs):
    return pytest.mark.skipif(any(shutil.which(program) is None for program in programs), reason=f"needs {', '.join(programs)}")


needs_podman = needs("podman", "crun", "newuidmap")
# Debian's client with Debian's daemon: a newer one may not speak to it.
needs_docker = needs("dockerd", "/usr/bin/docker", "runc")


def image(world, *programs):
    """An archive with these programs, their loader and libraries, what our library and command need of an image, and nothing else: no shell, as
    distroless images have none."""
    root = world.directory / "image"
    for name in ("bin", "etc", "tmp", "run"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:\n")
    for file in (*programs, LIBRARY, BINARY):
        if file in programs:
            shutil.copy(file, root / "bin")
        linked = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        for word in linked.split():
            if word.startswith("/") and not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    archive = world.directory / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    return archive


def podman(world, name, image, specification, *arguments, change="CMD []", uid=0, netns=None):
    """Starts a container of an image with this change, on the network of `netns`. Without a change, the archive is an image by its own word and
    has its own name."""
    more = {"ENGINE_UID": str(uid), "SPECIFICATION": str(specification or "")}
    return start(world, name, SETUP, image, change, arguments, netns, more)


def docker(world, name, image, *arguments, change="CMD []", netns=None):
    """The same by Docker, root's."""
    return start(world, name, DOCKER, image, change, arguments, netns)


def need_dockerd():
    """Skips where Docker's daemon does not start in namespaces of its own."""
    tried = subprocess.run([*APART, "sh", "-c", DOCKERD], capture_output=True, text=True, timeout=60)
    if tried.returncode:
        pytest.skip(f"dockerd does not start here: {tried.stderr[-500:]}")


def start(world, name, setup, image, change, arguments, netns, more=()):
    environment = {"IMAGE": str(image), "CHANGE": change or "", **dict(more)}
    argv = [*APART, "sh", "-c", setup, "sh", *arguments]
    return world.start(name, argv, netns=netns, env=environment)
