"""Programs of other systems: each starts with the library as without it, whatever libc it has, and says the same."""

import ctypes
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import roots
from harness import BINARY, LIBRARY, Accel
from procs import finish_together, free_port

# In a mount namespace of its own: the test's directory, the programs, and the root's own /proc.
INSIDE = """root=$1 world=$2 programs=$3; shift 3
mount --bind "$world" "$root/mnt" && mount --bind "$programs" "$root/t" && mount -t proc proc "$root/proc" || exit 99
[ ! -e "$root/lib/ld-musl-x86_64.so.1" ] || mount --bind "$programs/ld-musl" "$root/lib/ld-musl-x86_64.so.1" || exit 99
exec chroot "$root" /t/static env "$@"
"""
GLIBC, MUSL, STATIC = ("glibc", "threads"), ("musl", "musl-threads"), ("static", "musl-static")
DEBIANS = list(roots.SUITES)
# What runs where: a root of musl has no glibc, and one with nothing in it has what needs nothing.
RUNS = {**{name: (*GLIBC, *MUSL, *STATIC) for name in DEBIANS}, "musl": (*MUSL, *STATIC), "nothing": STATIC}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    with ThreadPoolExecutor() as threads:
        list(threads.map(roots.debian, DEBIANS))
    target = tmp_path_factory.mktemp("kinds")
    roots.compile_kinds(target)
    return target


@pytest.fixture(params=RUNS)
def name(request):
    return request.param


@pytest.fixture
def inside(world, compiled, name):
    """The command that runs another one in the root, with variables of its own."""
    root = roots.debian(name) if name in DEBIANS else roots.bare(name)
    if "musl" in RUNS[name]:
        (root / "lib/ld-musl-x86_64.so.1").touch()
    (world.directory / "libshunpike.so").write_bytes(LIBRARY.read_bytes())
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSIDE, "sh", root, world.directory, compiled]
    return lambda env, *argv: [*unshare, *(f"{key}={value}" for key, value in env.items()), *argv]


UNDER = {"LD_PRELOAD": "/mnt/libshunpike.so", "SHUNPIKE_SOCKET": "/mnt/broker.sock", "SHUNPIKE_EAGER": "1"}


# Its oldest version refuses to allocate. Only the standard library asks, for a backtrace.
OLDER = {"realpath"}


def said(world, argv):
    result = subprocess.run([str(word) for word in argv], env=world.env, capture_output=True, text=True, timeout=60)
    assert result.returncode != 99, result.stderr
    return result.returncode, result.stdout, result.stderr


def read(*options):
    return subprocess.run(["readelf", "-W", *options], capture_output=True, text=True, check=True).stdout


def test_a_name_without_a_version_is_the_newest_function():
    """The loader binds it to the oldest version. That one is the newest's code for all but those named here: glibc's oldest memcpy is
    slower than what it chooses for this CPU."""
    libc = ctypes.CDLL(None)
    libc.dlsym.restype = libc.dlvsym.restype = ctypes.c_void_p
    path = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so.6" in line)
    versions = {}
    for line in read("--dyn-syms", path).splitlines():
        if match := re.search(r" (\w+)@@?(GLIBC_[\d.]+)$", line):
            versions.setdefault(match[1], []).append(match[2])
    oldest = lambda name: min(versions[name], key=lambda version: [int(part) for part in version[6:].split(".")])
    wanted = {line.split()[-1] for line in read("--dyn-syms", LIBRARY).splitlines() if re.search(r" WEAK .* UND \S", line)}
    # A name that only programs of old had has no newest version.
    newest = {name: libc.dlsym(None, name.encode()) for name in wanted & set(versions)}
    bound = {name: libc.dlvsym(None, name.encode(), oldest(name).encode()) == at for name, at in newest.items() if at}
    assert len(bound) > 20 and bound["memmove"] and "memcpy" not in bound
    assert {name for name, same in bound.items() if not same} <= OLDER, bound


def test_needs_no_library_no_version_and_no_name():
    """A loader refuses what it cannot resolve: only weak references are left unresolved by all of them."""
    dynamic, symbols = read("-d", LIBRARY), read("--dyn-syms", LIBRARY)
    assert "STATIC_TLS" in dynamic, "the thread's own words are reached by initial-exec"
    for unknown in ("NEEDED", "VERNEED", "VERDEF", "RELR", "TEXTREL"):
        assert unknown not in dynamic
    undefined = [line.split() for line in symbols.splitlines() if re.search(r" UND \S", line)]
    assert len(undefined) > 20
    assert {(binding, name.count("@")) for *_, binding, _, _, name in undefined} == {("WEAK", 0)}
    # Each of its own loads by itself, and an old loader knows the kinds of all relocations.
    kinds = set(re.findall(r"R_X86_64_\w+", read("-r", LIBRARY)))
    assert kinds <= {"R_X86_64_RELATIVE", "R_X86_64_GLOB_DAT", "R_X86_64_JUMP_SLOT", "R_X86_64_64", "R_X86_64_DTPMOD64", "R_X86_64_TPOFF64"}


def test_programs_start_and_say_the_same(world, inside, name):
    """Each kind alone, and as each other's child in each way; the shell, with children of all kinds, and `true` where there are any."""
    Accel(world, "both")
    kinds = RUNS[name]
    plain = [kind for kind in kinds if "threads" not in kind]
    lines = [(f"/t/{kind}", "hello") for kind in kinds]
    lines += [(f"/t/{parent}", "run", f"/t/{child}", "hello") for parent in plain for child in plain]
    if name in DEBIANS:
        of_all = "; ".join(f"/t/{kind} hello; echo $?; (exec /t/{kind} hello) | cat" for kind in kinds)
        lines += [("/bin/true",), ("/bin/sh", "-c", f"/bin/true && {of_all}; exit 5"), ("/bin/cat", "/none")]
    for line in lines:
        without, under = (said(world, inside(env, *line)) for env in ({}, UNDER))
        assert line[-1] != "hello" or "hello\n" in without[1], f"{line} runs without: {without}"
        assert under == without, f"{line} in {name}"


def test_the_command_runs_in_each(world, inside, name):
    """Which needs nothing of a root: it starts programs, and the tools ask the broker."""
    needs = read("-l", BINARY)
    assert "INTERP" not in needs and "NEEDED" not in needs
    Accel(world, "both")
    for file in (BINARY, LIBRARY.with_name("libshunpike-entry.so")):
        shutil.copy(file, world.directory)
    env = {"SHUNPIKE_SOCKET": UNDER["SHUNPIKE_SOCKET"], "SHUNPIKE_LIB": UNDER["LD_PRELOAD"]}
    for kind in RUNS[name]:
        status, out, err = said(world, inside(env, "/mnt/shunpike", "run", f"/t/{kind}", "hello"))
        assert (status, out) == (7, "hello\n"), (kind, err)
    for tool in (("ss",), ("info",), ("stats",), ("device",), ("explain", "--codes")):
        status, out, err = said(world, inside(env, "/mnt/shunpike", *tool))
        assert status == 0 and out, (tool, err)
    status, _, err = said(world, inside(env, "/mnt/shunpike", "bench", "--list"))
    assert status == 1 and "shunpike-load is not at /mnt/shunpike-load" in err


def test_servers(world, inside, name):
    """Each kind as server of its own and of another: lanes where both have a libc that loads libraries, and TCP else."""
    kinds = RUNS[name]
    accel = Accel(world, "both")

    # A reader that gets no CPU for the grace of 100 ms is sent the rest by TCP.
    accel.broker.tool("sysctl", "-w", "grace_ms=1000")

    def dialogue(served, asking):
        """Bytes that went by lanes, and why not all of them."""
        port, before = free_port(), accel.broker.stats()
        server = world.start("server", inside(UNDER, f"/t/{served}", "server", port, 2)).wait_listening(port)
        client = world.start("client", inside(UNDER, f"/t/{asking}", "client", port, 2, 200))
        assert finish_together(client, server, seconds=30) == ["200 rounds on 2 connections\n", "served 2\n"]
        assert not client.err and not server.err
        after = accel.broker.stats()
        return after.tx_bytes - before.tx_bytes, {key for key, n in after.reasons.items() if n > before.reasons.get(key, 0)}

    for pair in {*zip(kinds, kinds, strict=True), *zip(kinds, kinds[1:] + kinds[:1], strict=True)}:
        if not set(pair) & set(STATIC):
            # Each of the two connections carries 1 MiB each way. One has none where an end gets no CPU while the other waits for it.
            tries = [dialogue(*pair)]
            while tries[-1][0] <= 2 << 20:
                assert tries[-1][1] and tries[-1][1] <= {"peer_declined", "awaiting_peer"} and len(tries) < 10, f"{pair}: {tries}"
                tries.append(dialogue(*pair))
        else:
            assert dialogue(*pair)[0] == 0, f"{pair}: lanes without a library"
