"""Whose broker it is: programs give descriptors of their connections, and their arena, to nobody but a broker of their own user, of root, or of the
user to whom root has given the socket's directory. Not at the first connect, nor at a later one, and not where their caller chose it."""

import contextlib
import os
import select
import shutil
import socket
import struct
import subprocess
import threading

import pytest

from harness import BINARY, LIBRARY
from netns import needs_root
from procs import descendants, free_port, reap, until

pytestmark = [pytest.mark.users, needs_root]

OTHER, THIRD = 61000, 61001
HELLO = 1


class Listener:
    """Looks like a broker of user `uid` at `path`, says nothing, and keeps what it is told."""

    def __init__(self, path, uid):
        self.told, self.silent, self.sockets = [], 0, []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(str(path))
        path.chmod(0o666)
        # SO_PEERCRED has who called listen(2).
        os.seteuid(uid)
        try:
            self.socket.listen(64)
        finally:
            os.seteuid(0)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        ends = [self.socket]
        while True:
            for end in select.select(ends, [], [])[0]:
                try:
                    if end is self.socket:
                        ends.append(end.accept()[0])
                        continue
                    message = end.recv(1024)
                except OSError:
                    return
                if message:
                    self.told.append(struct.unpack_from("<H", message)[0])
                else:
                    self.silent += 1
                    ends.remove(end)
                    end.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


@pytest.fixture
def listen(world):
    def start(directory, uid):
        listener = Listener(directory / "broker.sock", uid)
        world.cleanups.append(listener.close)
        return listener

    return start


def directory(world, owner, mode=0o755, above=0o755, name="at"):
    """A directory `owner`'s, in one of root's."""
    parent = world.directory / f"above-{name}"
    parent.mkdir()
    parent.chmod(above)
    made = parent / name
    made.mkdir()
    made.chmod(mode)
    os.chown(made, owner, owner)
    return made


def dialogue(world, bed, socket_at, rounds=300, who=()):
    """Both ends of a connection in one program, which names that broker."""
    env = {"LD_PRELOAD": str(LIBRARY), "SHUNPIKE_SOCKET": str(socket_at / "broker.sock")}
    return world.start("dialogue", [*who, bed / "pingpong", "both", free_port(), 1, rounds], env=env)


@pytest.mark.parametrize(
    "owner, mode, above, serves, is_told",
    [
        (0, 0o700, 0o755, 0, True),
        (0, 0o700, 0o755, OTHER, False),  # somebody has come to listen there all the same
        (0, 0o777, 0o755, 0, False),
        (OTHER, 0o755, 0o1777, OTHER, False),  # /tmp/shunpike-0, made by somebody else
        (OTHER, 0o755, 0o1777, 0, False),
        (OTHER, 0o755, 0o755, OTHER, True),  # /run/shunpike of a service that is not root
        (OTHER, 0o755, 0o755, THIRD, False),
    ],
)
def test_only_a_broker_that_may_have_it_is_told(world, bed, listen, owner, mode, above, serves, is_told):
    at = directory(world, owner, mode, above)
    listener = listen(at, serves)
    dialogue(world, bed, at).finish()
    assert listener.told[:1] == ([HELLO] if is_told else []), listener.told


def test_a_link_that_anybody_could_make_leads_to_nobodys_broker(world, bed, listen):
    """/tmp/shunpike-0, gone since: a link of somebody else's to what root has given to that one, as homes are."""
    home, open_to_all = directory(world, OTHER), world.directory / "open"
    listener = listen(home, OTHER)
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    (open_to_all / "shunpike-0").symlink_to(home)
    dialogue(world, bed, open_to_all / "shunpike-0").finish()
    assert listener.told == []
    dialogue(world, bed, home).finish()
    assert listener.told[:1] == [HELLO], "by its own name it is"


def test_a_later_connect_looks_again(world, bed, listen):
    """The broker is gone, and somebody else listens in its place when the program comes again."""
    at = directory(world, 0)
    first = listen(at, 0)
    proc = dialogue(world, bed, at, rounds=10**7)
    until(lambda: first.told, "the first broker is told")
    (at / "broker.sock").unlink()
    other = listen(at, OTHER)
    first.close()
    until(lambda: other.silent, "the program has seen who listens, and gone")
    proc.stop()
    assert other.told == []


def test_a_broker_of_somebody_elses_is_named_by_the_tools(world, bed, listen):
    at = directory(world, OTHER, above=0o1777)
    listen(at, OTHER)
    env = world.env | {"SHUNPIKE_SOCKET": str(at / "broker.sock")}
    result = subprocess.run([BINARY, "run", "true"], env=env, capture_output=True, text=True, timeout=20)
    assert result.returncode == 0 and f"uid {OTHER} serves at {at}/broker.sock" in result.stderr, result


def test_another_users_runtime_directory_is_not_used(world):
    """As after sudo or su: its owner could put another directory in the place of ours."""
    at = directory(world, OTHER, 0o700)
    looks = lambda path: subprocess.run([BINARY, "info"], env=world.env | {"XDG_RUNTIME_DIR": str(path)}, capture_output=True, text=True, timeout=20).stderr  # fmt: skip
    assert f"{at}/shunpike" not in looks(at) and f"{at} is not yours alone, and was left aside" in looks(at)
    assert str(world.runtime) in looks(world.runtime)


def test_run_does_not_use_another_users_runtime_directory(world):
    """It would start its broker where the directory's owner can put another one in its place. /tmp is this test's own here."""
    at = directory(world, OTHER, 0o700)
    own = world.directory / "tmp-of-its-own"
    own.mkdir(mode=0o1777)
    own.chmod(0o1777)
    # What is needed of the real one is open before another one hides it.
    inside = f'exec 9<{at} && mount --bind {own} /tmp && mkdir /tmp/at && mount --bind /proc/self/fd/9 /tmp/at && exec 9<&- && exec "$@"'
    command = [BINARY, "run", "--", "sh", "-c", "echo $SHUNPIKE_SOCKET; ls -A /tmp/at"]
    if str(BINARY).startswith("/tmp/") or str(LIBRARY).startswith("/tmp/"):
        pytest.skip("what is tested lies in /tmp")
    env = world.env | {"XDG_RUNTIME_DIR": "/tmp/at", "TMPDIR": "/tmp"}
    try:
        result = subprocess.run(["unshare", "--mount", "sh", "-c", inside, "sh", *command], env=env, capture_output=True, text=True, timeout=20)
    finally:
        reap([pid for pid, line in descendants().items() if "/tmp/shunpike-0/" in line])
    assert result.stdout == "/tmp/shunpike-0/broker.sock\n", result


@pytest.mark.parametrize("entry", [[], ["--entry=syscall"]], ids=["preload", "syscall"])
def test_run_of_a_fifo_says_at_once_that_it_is_no_program(world, entry):
    """Looking into it would wait for a writer."""
    broker = world.broker()
    os.mkfifo(world.directory / "fifo", 0o755)
    env = world.env | {"SHUNPIKE_SOCKET": str(broker.socket)}
    result = subprocess.run([BINARY, "run", *entry, "--", "./fifo"], cwd=world.directory, env=env, capture_output=True, text=True, timeout=20)
    assert result.returncode == 126 and "Permission denied" in result.stderr, result


def preloaded(world):
    """How to begin a program of another user's, in a mount namespace where /etc/ld.so.preload has the library in all; and the library."""
    library = shutil.copy(LIBRARY, world.directory)
    etc = world.directory / "etc"
    etc.mkdir()
    for name in ("passwd", "group", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", etc)
    (etc / "ld.so.preload").write_text(f"{library}\n")
    inside = f'mount --bind {etc} /etc && exec setpriv --reuid={OTHER} --regid={OTHER} --clear-groups "$@"'
    return ["unshare", "--mount", "sh", "-c", inside, "sh"], library


RIGHTS = {"nothing": None, "setuid": 0o4755, "setgid": 0o2755, "capability": "cap_net_raw+ep"}


@pytest.mark.parametrize("right", RIGHTS)
def test_who_has_more_rights_than_its_caller_lets_it_name_no_broker(world, bed, listen, right):
    """By /etc/ld.so.preload (of a mount namespace of its own) the library is in such programs, too."""
    at, program = directory(world, 0), world.directory / "pingpong"
    enter, library = preloaded(world)
    shutil.copy(bed / "pingpong", program)
    if right == "capability":
        if not shutil.which("setcap"):
            pytest.skip("needs setcap")
        subprocess.run(["setcap", RIGHTS[right], program], check=True)
    elif RIGHTS[right]:
        program.chmod(RIGHTS[right])
    listener = listen(at, 0)
    env = {"SHUNPIKE_SOCKET": str(at / "broker.sock")}
    proc = world.start("dialogue", [*enter, program, "both", free_port(), 1, 10**7], env=env)
    loaded = lambda: library in (world.directory / f"/proc/{proc.pid}/maps").read_text() and b"pingpong" in (world.directory / f"/proc/{proc.pid}/cmdline").read_bytes()  # fmt: skip
    until(loaded, lambda: f"the library is in it: {proc.describe()}")
    if right == "nothing":
        until(lambda: listener.told, "it names its broker")
    # What was done meanwhile takes a program that has a broker a few milliseconds: it is told before its second turn.
    until(lambda: int(open(f"/proc/{proc.pid}/stat").read().rsplit(") ")[1].split()[11]) >= 10, "it has been at work for a while")
    proc.stop()
    assert listener.told[:1] == ([HELLO] if right == "nothing" else [])


def test_what_such_a_program_starts_does_not_hear_its_callers_words_either(world, bed, listen):
    """A setuid program that becomes root wholly: what it starts has no more rights than it, and had its caller's environment."""
    at, program = directory(world, OTHER), world.directory / "becomes_root"
    enter, _ = preloaded(world)
    shutil.copy(bed / "becomes_root", program)
    program.chmod(0o4755)
    listener = listen(at, OTHER)
    names = ("SHUNPIKE_SOCKET", "SHUNPIKE_PREFER", "SHUNPIKE_INJECT")
    env = {name: str(at / "broker.sock") for name in names} | {"SHUNPIKE_EAGER": "1", "KEPT": "1"}
    ran = subprocess.run([*enter, program, "/usr/bin/env"], env=world.env | env, capture_output=True, text=True, timeout=20)
    assert "KEPT=1\n" in ran.stdout and not any(name in ran.stdout for name in names), ran
    world.start("dialogue", [*enter, program, bed / "pingpong", "both", free_port(), 1, 300], env=env).finish()
    assert listener.told == []


def test_a_broker_of_roots_looks_at_no_environment_of_others(world, bed):
    """Where a program's environment is, is its own word: gigabytes, or pages that never come. A private broker looks for programs that name it
    before it leaves: of its own user's there is no such doubt."""
    for name, who in [("theirs", ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]), ("own", [])]:
        proc = world.start(name, [*who, bed / "environs", 16384])
        until(lambda proc=proc: "ready" in proc.out, proc.describe)
    argv = [BINARY, "broker", "--private", "--idle-exit", 1, "--socket", world.directory / "b.sock"]
    broker = world.start("broker", ["prlimit", f"--as={1 << 30}", *argv])
    broker.finish(seconds=20)
    assert "no program is left" in broker.err + broker.out, broker.describe()
