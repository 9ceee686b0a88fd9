"""The library as an object: what it exports is what its lists of hooks say, and both ways to move bytes work."""

import re
import shutil
import subprocess

import pytest

from harness import LIBRARY, ROOT, Accel, fifos
from packages import by_cargo
from procs import finish_together, free_port

# Names that libc users bind to and that must stay hooked, whatever else is added.
MUST = """read __read __read_chk write __write readv writev preadv2 pwritev2 recv __recv_chk recvfrom recvmsg recvmmsg send sendto
sendmsg sendmmsg sendfile sendfile64 splice socket connect listen accept accept4 shutdown close close_range closefrom dup dup2 dup3 fcntl
fcntl64 ioctl setsockopt poll __poll_chk ppoll select pselect epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
epoll_pwait2 vfork _Fork execve execvp posix_spawn fdopen dprintf sigaction signal siginterrupt syscall setuid
seteuid setreuid setresuid""".split()


def listed():
    """The names in the hooks! and stubs! blocks of the library's source."""
    names = set()
    for path in (ROOT / "crates/preload/src").glob("*.rs"):
        text = path.read_text()
        for block in re.findall(r"^hooks! \{\n(.*?)^\}", text, re.S | re.M):
            names |= set(re.findall(r"^    fn (\w+)", block, re.M))
        for block in re.findall(r"^stubs! \{ \w+:\n(.*?)^\}", text, re.S | re.M):
            names |= set(re.findall(r"\w+", block))
    return names


def test_exports_are_the_listed_hooks_and_nothing_else():
    out = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[2] for line in out.splitlines()}
    assert exported == listed()
    assert set(MUST) <= exported


@pytest.mark.parity
@pytest.mark.parametrize("copy", ["off", "on"])
def test_both_ways_to_move_bytes(world, bed, copy):
    """No-copy (the send buffer is the peer's DMB), and a send buffer of one's own that move_data empties."""
    accel, port = Accel.eager(world, "both"), free_port()
    accel.broker.tool("device", "set", "dmb_copy", copy)
    server = accel.server("server", [bed / "pingpong", "server", port, 8, 400]).wait_listening(port)
    out, served = finish_together(accel.client("client", [bed / "pingpong", "client", port, 8, 400]), server)
    assert len(set(out.splitlines())) == 9 and served == "done\n"
    accel.verify(lanes=8, lane_bytes=1 << 20)


@pytest.mark.parity
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_what_syscall_hands_on(world, bed, mode):
    """Every number, six arguments, results and errors: the kernel gets what the program gives, and the program what the kernel gives."""
    accel, port, env = Accel.eager(world, mode), free_port(), fifos(world)
    server = accel.server("server", [bed / "syscalls", "server", "traced", port], env=env).wait_listening(port)
    out, _ = finish_together(accel.client("client", [bed / "syscalls", "client", "traced", port], env=env), server)
    assert out == f"{512 * 3} calls\ndone\n"
    accel.verify()


WAYS = ["execve", "execvpe", "execveat", "fexecve", "execv", "execvp", "execl", "execlp", "system", "popen", "posix_spawn", "posix_spawnp", "vfork"]


@pytest.mark.parametrize("way", WAYS)
def test_who_is_executed_after_the_library_was_removed_is_not_told_to_load_it(world, bed, way):
    """The loader would complain in each child of a program that runs when the package is purged. What others preload stays."""
    ours, others = world.directory / "libshunpike.so", world.directory / "others.so"
    shutil.copy(LIBRARY, others)

    def run(way, *preloads, file=None):
        shutil.copy(LIBRARY, ours)
        env = world.env | {"LD_PRELOAD": ":".join(map(str, preloads))}
        ran = subprocess.run([bed / "executes", file or ours, way], env=env, capture_output=True, text=True, timeout=20)
        assert ran.returncode == 0 and not ran.stderr, ran
        return ran.stdout.strip()

    assert run(way, ours) == "" and run(way, others, ours) == f"{others}:" + ":" * len(str(ours))
    spare = world.directory / "spare"
    spare.touch()
    assert run(way, ours, file=spare) == str(ours), "while it is there, it is loaded"


@pytest.mark.parametrize("way, is_told", [("bad", "/x/libshunpike.so"), ("filtered", None)])
def test_an_environment_that_cannot_be_changed_stays(world, bed, way, is_told):
    """A bad pointer is the kernel's to refuse; a string that nobody writes to, and a filter of system calls that ends who makes one too many."""
    library = shutil.copy(LIBRARY, world.directory)
    env = world.env | {"LD_PRELOAD": library}
    ran = subprocess.run([bed / "executes", library, way], env=env, capture_output=True, text=True, timeout=20)
    assert ran.returncode == 0 and ran.stdout.strip() == (is_told or library), ran


def test_core_needs_no_libc():
    """All of core and shm, called or not, in a static program that is linked with no libc at all, and starts and watches connections."""
    program = by_cargo("bare", "shunpike-bare", "-C link-dead-code")
    assert subprocess.run([program], timeout=20).returncode == 0
    assert "interpreter" not in subprocess.run(["file", program], capture_output=True, text=True, check=True).stdout
