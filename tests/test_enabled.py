"""Switched on once: a service by a drop-in of its unit, a machine by /etc/ld.so.preload and a list. In a system of the test's own:
this machine's files are not touched."""

import json
import os
import shutil
import stat
import subprocess

import pytest

from harness import BINARY, LIBRARY
from netns import needs_root
from procs import free_port, until

pytestmark = pytest.mark.operators

OTHER = 61001
# A system whose /etc, /opt and /run are the test's. What is below /opt only root can write, as where libraries are installed.
SYSTEM = 'mount --bind "$0/opt" /opt && mount --bind "$0/run" /run && mount --bind "$0/etc" /etc && exec "$@"'


class Machine:
    """A system in a mount namespace: entered for each command, with the same directories."""

    def __init__(self, world):
        self.world, self.directory = world, world.directory / "machine"
        for name in ("etc", "opt/bin", "opt/lib", "run/shunpike"):
            (self.directory / name).mkdir(parents=True)
        for name in ("passwd", "group", "ld.so.cache", "nsswitch.conf"):
            shutil.copy(f"/etc/{name}", self.directory / "etc")
        shutil.copy(BINARY, self.directory / "opt/bin/shunpike")
        shutil.copy(LIBRARY, self.directory / "opt/lib/libshunpike.so")
        self.preload, self.list = self.directory / "etc/ld.so.preload", self.directory / "etc/shunpike/enabled"

    def inside(self, *argv, script=SYSTEM):
        return ["unshare", "--mount", "sh", "-c", script, self.directory, *map(str, argv)]

    def env(self):
        return {key: value for key, value in self.world.env.items() if not key.startswith("SHUNPIKE_")}

    def run(self, *argv, script=SYSTEM):
        return subprocess.run(self.inside(*argv, script=script), env=self.env(), capture_output=True, text=True, timeout=60)

    def shunpike(self, *arguments, **options):
        return self.run("/opt/bin/shunpike", *arguments, **options)

    def enable(self, text=None):
        if text is not None:
            self.list.parent.mkdir(exist_ok=True)
            self.list.write_text(text)
        ran = self.shunpike("enable", "--all")
        assert ran.returncode == 0, ran.stderr


@pytest.fixture
def machine(world):
    return Machine(world)


@needs_root
def test_others_lines_stay_and_ours_comes_and_goes(machine, bed):
    own = machine.directory / "opt/lib/own.so"
    shutil.copy(LIBRARY, own)
    others = "# of others\n/opt/lib/own.so\n"
    machine.preload.write_text(others)
    machine.preload.chmod(0o640)
    machine.enable()
    assert machine.preload.read_text() == others + "/opt/lib/libshunpike.so\n"
    machine.enable()
    assert machine.preload.read_text() == others + "/opt/lib/libshunpike.so\n", "once"
    assert machine.preload.stat().st_mode & 0o777 == 0o640
    assert machine.list.read_text().endswith("on program *\n"), "a list is made"
    machine.list.write_text("off program x\n")
    ran = machine.shunpike("disable", "--all")
    assert ran.returncode == 0 and "/etc/shunpike/enabled stays" in ran.stdout
    assert machine.preload.read_text() == others and machine.list.read_text() == "off program x\n"
    assert "no library" in machine.shunpike("disable", "--all").stdout
    machine.preload.unlink()
    machine.enable()
    assert machine.shunpike("disable", "--all").returncode == 0 and not machine.preload.exists(), "as it was"


def broker(machine):
    """The system-wide broker of that system."""
    world = machine.world
    proc = world.start("broker", machine.inside("/opt/bin/shunpike", "broker"), env={"SHUNPIKE_SOCKET": ""})
    until((machine.directory / "run/shunpike/broker.sock").exists, proc.describe)
    return proc


def watched(machine):
    """How many connection ends programs have had under Shunpike, and how many of these on lanes."""
    ends = json.loads(machine.shunpike("stats", "--json", "--absolute").stdout)["connections"]
    return ends["handled"], ends["smc"], {entry["key"] for entry in ends["reasons"]}


def talk(machine, program, port, *prefix):
    env = {"BED_WARM_MS": "200"}
    proc = machine.world.start("dialogue", machine.inside(*prefix, program, "both", port, 1, 2000), env=env)
    proc.finish(seconds=60)


@needs_root
def test_the_list_says_who_is_on(machine, bed):
    """Programs that are told nothing, by the environment or else."""
    pingpong = machine.directory / "opt/bin/pingpong"
    shutil.copy(bed / "pingpong", pingpong)
    proc, port = broker(machine), free_port()
    counts = [0]

    def adds(text, *prefix):
        machine.enable(text)
        talk(machine, "/opt/bin/pingpong", port, *prefix)
        before, counts[:] = counts[0], [until(lambda: watched(machine), "stats")[0]]
        return counts[0] - before

    assert adds("on program pingpong") == 2
    until(lambda: watched(machine)[1] == 2, lambda: f"a lane: {watched(machine)}")
    assert adds("on program /opt/bin/pingpong\noff user 1") == 2
    assert adds("off program pingpong") == 0
    assert adds("on program *\noff user 0") == 0
    assert adds("on program *\non user 1") == 0
    assert adds("on program *", "env", "SHUNPIKE_SOCKET=") == 0, "an empty path is a word against the list"
    lanes = watched(machine)[1]
    assert adds(f"off port {port}") == 2
    until(lambda: "port_off" in watched(machine)[2], lambda: f"a reason: {watched(machine)}")
    assert watched(machine)[1] == lanes, "and no lane"
    machine.shunpike("disable", "--all")
    talk(machine, "/opt/bin/pingpong", port)
    assert watched(machine)[0] == counts[0]
    proc.stop()


@needs_root
def test_setuid_programs_and_the_first_process_are_never_on(machine, bed):
    """Nor is there anything of ours in them but the library."""
    pingpong = machine.directory / "opt/bin/pingpong"
    shutil.copy(bed / "pingpong", pingpong)
    proc, port = broker(machine), free_port()
    machine.enable("on program *")
    as_other = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
    talk(machine, "/opt/bin/pingpong", port, *as_other)
    assert watched(machine)[0] == 2, "without more rights it is"
    pingpong.chmod(0o4755)
    talk(machine, "/opt/bin/pingpong", port, *as_other)
    assert watched(machine)[0] == 2
    pingpong.chmod(0o755)
    talk(machine, "/opt/bin/pingpong", port, "unshare", "--pid", "--fork")
    assert watched(machine)[0] == 2
    proc.stop()


BROKEN = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_text(""),
    "nonsense": lambda path: path.write_bytes(os.urandom(5000)),
    "cut off": lambda path: path.write_text("on program *\noff prog"),
    "too long": lambda path: path.write_text("on program *\n" + "#" * (1 << 20)),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
}


@needs_root
@pytest.mark.parametrize("how", BROKEN)
def test_with_a_broken_list_programs_start_and_stay_on_tcp(machine, bed, how):
    shutil.copy(bed / "pingpong", machine.directory / "opt/bin/pingpong")
    proc = broker(machine)
    machine.enable()
    BROKEN[how](machine.list)
    ran = machine.run("sh", "-c", "cat /etc/ld.so.preload; exec 2>&1; ls /opt")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "/opt/lib/libshunpike.so\nbin\nlib\n", "")
    talk(machine, "/opt/bin/pingpong", free_port())
    assert watched(machine)[0] == 0
    if how != "missing":
        before = machine.preload.read_text()
        ran = machine.shunpike("enable", "--all")
        assert ran.returncode == 1 and "/etc/shunpike/enabled" in ran.stderr and machine.preload.read_text() == before, ran.stderr
    proc.stop()


@needs_root
@pytest.mark.parametrize("library", ["missing", "empty", "nonsense"])
def test_without_a_whole_library_programs_start(machine, library):
    """The loader says that it ignores it, and that is all."""
    machine.enable()
    path = machine.directory / "opt/lib/libshunpike.so"
    content = {"missing": None, "empty": b"", "nonsense": b"nonsense" * 1000}[library]
    path.unlink() if content is None else path.write_bytes(content)
    ran = machine.run("sh", "-c", "ls /opt")
    assert (ran.returncode, ran.stdout) == (0, "bin\nlib\n")
    assert "ignored" in ran.stderr
    ran = machine.shunpike("enable", "--all")
    assert ran.returncode != 0 and machine.preload.read_text() == "/opt/lib/libshunpike.so\n"
    ran = machine.shunpike("disable", "--all")
    assert ran.returncode == 0 and not machine.preload.exists(), "it can be taken away by what it was put there"


@needs_root
def test_a_full_disk_changes_nothing(machine):
    """/etc on a disk of its own, on which nothing is left."""
    script = """
        mount --bind "$0/opt" /opt && mount -t tmpfs -o size=64k none "$0/run" && cp -a "$0/etc/." "$0/run" && mount --bind "$0/run" /etc
        echo "# of others" >/etc/ld.so.preload
        mkdir /etc/shunpike && echo "on program *" >/etc/shunpike/enabled
        head -c 65536 /dev/zero >/etc/filler 2>/dev/null
        "$@"; status=$?
        cat /etc/ld.so.preload; ls -A /etc | grep -c new
        exit $status"""
    for name in ("ld.so.cache", "group", "nsswitch.conf"):
        (machine.directory / "etc" / name).unlink()
    ran = machine.shunpike("enable", "--all", script=script)
    assert ran.returncode == 1 and "No space left" in ran.stderr and "/etc/ld.so.preload" in ran.stderr, ran.stderr
    assert ran.stdout == "# of others\n0\n"


@needs_root
def test_what_others_could_write_is_in_no_program(machine):
    for path, change in [("opt/lib", lambda at: at.chmod(0o777)), ("opt/lib/libshunpike.so", lambda at: os.chown(at, OTHER, 0))]:
        at = machine.directory / path
        before = at.stat()
        change(at)
        ran = machine.shunpike("enable", "--all")
        assert ran.returncode == 1 and f"/{path}" in ran.stderr and "only root writes" in ran.stderr, ran.stderr
        at.chmod(before.st_mode & 0o7777)
        os.chown(at, 0, 0)
        assert not machine.preload.exists()
    (machine.directory / "opt/lib/libshunpike.so").write_bytes(b"nonsense")
    ran = machine.shunpike("enable", "--all")
    assert ran.returncode == 1 and "does not start well" in ran.stderr and "nothing was changed" in ran.stderr
    assert not machine.preload.exists() and not machine.list.exists()


@needs_root
@pytest.mark.parametrize("name, mode, right", [("opt/lib", 0o700, "x"), ("opt/lib/libshunpike.so", 0o640, "r"), ("etc/shunpike", 0o750, "x"), ("etc/shunpike/enabled", 0o600, "r")])
def test_what_some_users_could_not_read_is_in_no_program(machine, name, mode, right):
    """All was said to be well, and each program of another user's had a word of the loader's on its standard error."""
    machine.enable("on program *")
    machine.preload.unlink()
    (machine.directory / name).chmod(mode)
    ran = machine.shunpike("enable", "--all")
    assert ran.returncode == 1 and f"'chmod o+{right} /{name}'" in ran.stderr, ran.stderr
    assert not machine.preload.exists()


@needs_root
def test_a_system_of_musl_is_told_that_its_loader_does_not_look(world, system):
    (system / "bin").mkdir()
    shell = ["cc", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1", "-x", "c", "-", "-o", system / "bin/sh"]
    subprocess.run(shell, input=b"int main(void) { return 0; }", check=True)
    ran = asked(world, system, "enable", "--all")
    assert ran.returncode == 1 and "musl" in ran.stderr and "shunpike run" in ran.stderr, ran.stderr
    assert not (system / "etc/ld.so.preload").exists()


@needs_root
def test_a_link_to_the_library_is_as_safe_as_where_it_lies(machine):
    """What the line in /etc/ld.so.preload names is read as each program starts."""
    machine.directory.chmod(0o755)
    (machine.directory / "opt/open").mkdir()
    (machine.directory / "opt/open").chmod(0o777)
    for name in ("open/libshunpike.so", "fine.so"):
        (machine.directory / "opt" / name).symlink_to("/opt/lib/libshunpike.so")
    by = lambda name: machine.run("env", f"SHUNPIKE_LIB=/opt/{name}", "/opt/bin/shunpike", "enable", "--all")
    ran = by("open/libshunpike.so")
    assert ran.returncode == 1 and "/opt/open" in ran.stderr and "only root writes" in ran.stderr, ran.stderr
    assert not machine.preload.exists()
    assert by("fine.so").returncode == 0 and machine.preload.read_text() == "/opt/fine.so\n"


@needs_root
@pytest.mark.parametrize("name", ["a#b", "$LIB", 'a"b'])
def test_a_name_that_the_loader_reads_otherwise_is_refused(machine, name):
    (machine.directory / "opt" / name).mkdir()
    shutil.copy(LIBRARY, machine.directory / "opt" / name)
    ran = machine.run("env", f"SHUNPIKE_LIB=/opt/{name}/libshunpike.so", "/opt/bin/shunpike", "enable", "--all")
    assert ran.returncode == 125 and "cannot preload" in ran.stderr and not machine.preload.exists(), ran


@needs_root
def test_a_program_that_is_off_pays_one_look_up(machine):
    """Beside one that the environment has off, which makes no call at all for it."""
    machine.enable("off program true")

    def calls(*prefix):
        ran = machine.run(*prefix, "strace", "-o", "/run/calls", "/bin/true")
        assert ran.returncode == 0, ran.stderr
        return [line.split("(")[0] for line in (machine.directory / "run/calls").read_text().splitlines()]

    without, by_list = calls("env", "SHUNPIKE_SOCKET="), calls()
    more = list(by_list)
    for call in without:
        more.remove(call)
    assert sorted(more) == sorted(["getpid", "openat", "fstat", "read", "read", "close", "readlinkat", "geteuid"])
    machine.list.unlink()
    assert sorted(calls()) == sorted([*without, "getpid", "openat"])


UNIT = "[Service]\nExecStart=/bin/true\n"


@pytest.fixture
def system(world):
    """What is below a root of units, and the command with its library there."""
    root = world.directory / "system"
    for name in ("usr/lib/systemd/system", "etc/systemd/system"):
        (root / name).mkdir(parents=True)
    library = root / str(LIBRARY)[1:]
    library.parent.mkdir(parents=True)
    shutil.copy(LIBRARY, library)
    return root


def asked(world, system, word, *units):
    return subprocess.run([BINARY, word, "--root", system, *units], env=world.env, capture_output=True, text=True, timeout=60)


def write(system, name, text, place="usr/lib/systemd/system"):
    path = system / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def verified(system, unit):
    """What systemd has to say of a unit and its drop-ins, beside this machine's units."""
    places = ":".join(str(system / place) for place in ("etc/systemd/system", "usr/lib/systemd/system"))
    argv = ["systemd-analyze", "verify", "--man=no", unit]
    return subprocess.run(argv, env=os.environ | {"SYSTEMD_UNIT_PATH": f"{places}:"}, capture_output=True, text=True, timeout=60).stderr


def test_a_unit_is_enabled_and_disabled(world, system):
    write(system, "cache.service", UNIT + 'Environment=A=1 "LD_PRELOAD=/a.so"\n')
    write(system, "many@.service", UNIT)
    write(system, "web-front.service", UNIT)
    write(system, "web-.service.d/10-web.conf", "[Service]\nEnvironment=LD_PRELOAD=/web.so\n", place="etc/systemd/system")
    ran = asked(world, system, "enable", "cache", "many@1.service", "web-front")
    assert ran.returncode == 0 and "systemctl restart cache.service" in ran.stdout, ran.stderr
    drop_in = system / "etc/systemd/system/cache.service.d/90-shunpike.conf"
    assert f'Environment="LD_PRELOAD={LIBRARY}:/a.so"\n' in drop_in.read_text(), "what the unit preloads stays"
    assert (system / "etc/systemd/system/many@1.service.d/90-shunpike.conf").exists()
    text = (system / "etc/systemd/system/web-front.service.d/90-shunpike.conf").read_text()
    assert f'Environment="LD_PRELOAD={LIBRARY}:/web.so"\n' in text, "what all units of that beginning preload stays, too"
    before = drop_in.read_text()
    assert asked(world, system, "enable", "cache").returncode == 0 and drop_in.read_text() == before, "its own is no unit's"
    assert not verified(system, "cache.service")
    assert asked(world, system, "disable", "cache", "many@1", "web-front").returncode == 0
    left = sorted(path.name for path in (system / "etc/systemd/system").iterdir())
    assert left == ["web-.service.d"], "nothing of ours is left"
    ran = asked(world, system, "disable", "cache")
    assert ran.returncode == 0 and "is not enabled" in ran.stdout


def test_a_broken_drop_in_would_be_seen(world, system):
    """That `systemd-analyze verify` looks at drop-ins at all."""
    write(system, "cache.service", UNIT)
    write(system, "cache.service.d/90-shunpike.conf", "[Service]\nEnvironmnt=A\n", place="etc/systemd/system")
    assert "90-shunpike.conf" in verified(system, "cache.service")


def test_what_cannot_be_enabled_changes_nothing_and_says_what_to_do(world, system):
    write(system, "cache.service", UNIT)
    (system / "etc/systemd/system/masked.service").symlink_to("/dev/null")
    for units, words in [(["cache", "nothing"], "list-unit-files"), (["cache", "a.socket"], "no service"), (["masked"], "unmask"), (["../x"], "no service")]:
        ran = asked(world, system, "enable", *units)
        assert ran.returncode == 1 and words in ran.stderr, (units, ran.stderr)
    assert not list((system / "etc/systemd/system").glob("*.d"))


def test_what_may_keep_a_unit_from_lanes_is_said(world, system):
    write(system, "a.service", UNIT + "RestrictAddressFamilies=AF_INET AF_INET6\n")
    write(system, "b.service", UNIT + "RestrictAddressFamilies=AF_INET AF_UNIX\n")
    write(system, "c.service", UNIT + "RootDirectory=/srv\n")
    write(system, "d.service", UNIT + "EnvironmentFile=-/etc/default/d\n")
    write(system, "d", "LD_PRELOAD=/a.so\n", place="etc/default")
    write(system, "e.service", UNIT)
    write(system, "e.service.d/x.conf", "[Service]\nRootImage=/x\n", place="etc/systemd/system")
    for unit, words in [("a", "AF_UNIX"), ("b", None), ("c", "BindReadOnlyPaths"), ("d", "/etc/default/d"), ("e", "RootImage")]:
        ran = asked(world, system, "enable", unit)
        assert ran.returncode == 0 and (words in ran.stderr if words else not ran.stderr), (unit, ran.stderr)


def test_links_lead_nowhere_out_of_the_root(world, system):
    """Those of a system that is no friend's, or only somebody else's: each means what it means to that system."""
    outside = world.directory / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("of the host\n")
    write(system, "cache.service", UNIT)
    (system / "etc/systemd/system/cache.service.d").symlink_to(outside)
    (system / "etc/ld.so.preload").symlink_to(outside / "passwd")
    assert asked(world, system, "enable", "cache").returncode == 0
    asked(world, system, "enable", "--all")
    asked(world, system, "disable", "--all")
    assert [path.name for path in outside.iterdir()] == ["passwd"] and (outside / "passwd").read_text() == "of the host\n"
    assert (system / str(outside)[1:] / "90-shunpike.conf").exists()


@needs_root
def test_a_link_to_the_null_device_leaves_the_device_as_it_is(world, system):
    """Such a link masks a drop-in, or keeps a file empty. The device became a file, of mode 0666, which each program's loader read."""
    device = system / "dev/null"
    device.parent.mkdir()
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    write(system, "cache.service", UNIT)
    link = system / "etc/systemd/system/cache.service.d/90-shunpike.conf"
    link.parent.mkdir(parents=True)
    link.symlink_to("/dev/null")
    (system / "etc/ld.so.preload").symlink_to("/dev/null")
    ran = asked(world, system, "enable", "cache")
    assert ran.returncode == 1 and "is masked" in ran.stderr and "disable cache" in ran.stderr, ran.stderr
    ran = asked(world, system, "enable", "--all")
    assert ran.returncode == 1 and "/dev/null: it is no ordinary file" in ran.stderr, ran.stderr
    assert not (system / "etc/shunpike").exists(), "nothing was changed"
    asked(world, system, "disable", "--all")
    assert link.is_symlink() and stat.S_ISCHR(device.stat().st_mode)
    ran = asked(world, system, "disable", "cache")
    assert ran.returncode == 0 and not link.is_symlink() and stat.S_ISCHR(device.stat().st_mode), ran.stderr
    assert asked(world, system, "enable", "cache").returncode == 0 and link.is_file()


@needs_root
def test_nothing_of_another_system_is_executed(world, system):
    """Its library is code of whoever made it."""
    source = world.directory / "evil.c"
    source.write_text(f'#include <fcntl.h>\n__attribute__((constructor)) static void start(void) {{ creat("{world.directory}/ran", 0644); }}\n')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", system / str(LIBRARY)[1:], source], check=True)
    ran = asked(world, system, "enable", "--all")
    assert ran.returncode == 1 and "is not the same as" in ran.stderr and "chroot" in ran.stderr, ran.stderr
    assert not (world.directory / "ran").exists() and not (system / "etc/ld.so.preload").exists()
    shutil.copy(LIBRARY, system / str(LIBRARY)[1:])
    ran = asked(world, system, "enable", "--all")
    assert ran.returncode == 0 and (system / "etc/ld.so.preload").read_text() == f"{LIBRARY}\n", ran.stderr


def test_everything_is_taken_away_before_the_library_is(world, system):
    """And nothing of others': a drop-in of that name which somebody has written stays."""
    for name in ("cache", "web"):
        write(system, f"{name}.service", UNIT)
    assert asked(world, system, "enable", "cache", "web").returncode == 0
    (system / "usr/lib/systemd/system/web.service").unlink()
    write(system, "ld.so.preload", f"/a.so\n{LIBRARY}\n", place="etc")
    own = write(system, "other.service.d/90-shunpike.conf", "[Service]\nEnvironment=A=1\n", place="etc/systemd/system")
    ran = asked(world, system, "disable", "--everything")
    assert ran.returncode == 0 and "cache.service" in ran.stdout and "web.service" in ran.stdout, ran
    assert (system / "etc/ld.so.preload").read_text() == "/a.so\n"
    assert [path for path in (system / "etc/systemd/system").rglob("*") if path.is_file()] == [own]
    assert asked(world, system, "disable", "--everything").returncode == 0


def test_several_at_once_take_turns(world, system):
    """Each reads what is there and replaces it; a drop-in's directory is made by one and removed by another."""
    write(system, "cache.service", UNIT)
    preload = write(system, "ld.so.preload", "/a.so\n", place="etc")
    # One that is slow: without turns, its directory is removed before it has a file in it.
    slowly = ["strace", "-o", "/dev/null", "-e", "trace=openat", "-e", "inject=openat:delay_enter=20000"]
    start = lambda *argv: subprocess.Popen([*argv, "--root", system], env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for _ in range(5):
        slow = start(*slowly, BINARY, "enable", "cache")
        while slow.poll() is None:
            for proc in [start(BINARY, word, what) for what in ("cache", "--all") for word in ("enable", "disable")]:
                _, said = proc.communicate(timeout=60)
                assert proc.returncode == 0, said
            assert preload.read_text() in ("/a.so\n", f"/a.so\n{LIBRARY}\n")
        assert slow.returncode == 0, slow.stderr.read()
    assert asked(world, system, "disable", "--everything").returncode == 0
    assert preload.read_text() == "/a.so\n"
    left = sorted(path.name for path in (system / "etc").rglob("*") if path.is_file())
    assert left == ["enabled", "ld.so.preload"]
