"""What docs/containers.md says that one types first, typed: from the package to a lane between two containers of podman. The machine is one of the
test's own, an overlay of this one; systemd, which does not run there, is stood in for by what starts a unit's program with its user and its rights."""

import re

import pytest

import engines
from harness import ROOT, Stats
from netns import namespace, needs_root
from packages import by_make
from procs import PATIENCE, until
from test_compose import redis_image
from test_engine_networks import needs_bridge

pytestmark = [pytest.mark.namespaces, needs_root, engines.needs_podman, needs_bridge,
              engines.needs("apt", "dpkg-deb", "systemd-sysusers", "systemd-tmpfiles", "redis-server", "redis-benchmark")]  # fmt: skip

MACHINE = """
set -e
mount -t tmpfs none /run
mount -t tmpfs -o mode=1777 none /dev/shm
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
for place in etc usr var opt; do
    mkdir -p /run/over/$place /run/work/$place
    mount -t overlay -o lowerdir=/$place,upperdir=/run/over/$place,workdir=/run/work/$place none /$place || exit 77
done
mount -t tmpfs none /var/lib/cni
mkdir -p /run/store /etc/containers /usr/local/sbin
rm -rf /etc/cdi
printf '[containers]\\ncgroups = "disabled"\\n[engine]\\ncgroup_manager = "cgroupfs"\\nevents_logger = "none"\\n' >/etc/containers/containers.conf
printf '[storage]\\ndriver = "vfs"\\nrunroot = "/run/containers"\\ngraphroot = "/run/store/containers"\\n' >/etc/containers/storage.conf
cp "$SYSTEMCTL" /usr/local/sbin/systemctl
[ -x /usr/bin/sudo ] || printf '#!/bin/sh\\nexec "$@"\\n' >/usr/local/sbin/sudo
chmod 755 /usr/local/sbin/*
cp "$PACKAGE" /run/store
podman import --change "CMD []" "$IMAGE" shunpike-test >/dev/null 2>&1
"""
SYSTEMCTL = """#!/bin/sh
# Of systemd, what the commands and the package's scripts want here: `enable --now UNIT`.
[ "$1 $2" = "enable --now" ] || exit 0
unit=/usr/lib/systemd/system/$3.service
said() { sed -n "s/^$1=//p" $unit; }
user=$(said User)
all=$(said AmbientCapabilities | tr ' A-Z' ',a-z' | sed 's/cap_/+/g')
exec setsid setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --inh-caps="-all,$all" --ambient-caps="-all,$all" \\
    --bounding-set="-all,$all" $(said ExecStart) >/run/store/broker 2>&1 </dev/null &
"""


def typed():
    """The commands, without what stands behind them."""
    text = (ROOT / "docs/containers.md").read_text()
    block = re.search(r"\n\nFrom nothing to a lane.*?:\n\n((?:    .*\n)+)", text)[1]
    return [line.split(" #")[0].strip().replace("IMAGE", "shunpike-test") for line in block.splitlines()]


def test_the_five_commands_of_the_documentation(world, tmp_path):
    commands = typed()
    assert len(commands) == 5 and [line.split()[0] for line in commands] == ["sudo"] * 3 + ["podman"] * 2, commands
    stand_in = tmp_path / "systemctl"
    stand_in.write_text(SYSTEMCTL)
    env = {"SYSTEMCTL": str(stand_in), "PACKAGE": str(by_make("deb", tmp_path)), "IMAGE": str(redis_image(world))}
    machine = engines.Staying(world, MACHINE, namespace(world, "a"), env)
    clean = ["env", "-u", "SHUNPIKE_LIB", "DEBIAN_FRONTEND=noninteractive"]
    shell = lambda line: machine.ran(*clean, "sh", "-ec", f"PATH=/usr/local/sbin:$PATH\ncd /run/store\n{line}")
    shell(commands[0])
    shell(commands[1])
    # A unit is started when its program runs; systemd's caller is not told when that serves.
    until(lambda: shell("[ ! -S /run/shunpike/broker.sock ] || echo there"), lambda: shell("cat /run/store/broker"))
    for command in commands[2:4]:
        shell(command)
    benchmark = world.start("benchmark", machine.inside("env", "HOME=/run/store", "sh", "-ec", commands[4]))
    stats = lambda: Stats.parse(shell("shunpike stats --json"))
    until(lambda: stats().lanes >= 10, lambda: f"lanes: {stats()} {benchmark.describe()}", seconds=60 * PATIENCE, pause=0.2)
    until(lambda: "requests per second" in benchmark.out, benchmark.describe, seconds=60 * PATIENCE)
    assert "shunpike" in shell("ps -o user= -C shunpike"), "the broker is not root"
    benchmark.kill()
