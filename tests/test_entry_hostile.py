"""Files that are cut off, contradict themselves or hide calls, executed under `shunpike run --entry=syscall`: what happens is what happens without."""

import os
import random
import signal
import struct
import subprocess

import pytest

from harness import ROOT, Accel, compile_program
from packages import entry_library
from procs import PATIENCE
from test_go import line

pytestmark = pytest.mark.programs
SOURCES = ROOT / "tests" / "entry"
# Seconds after which a program with changed headers is one that does not end by itself.
ENDLESS = 2


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    target = tmp_path_factory.mktemp("hostile")
    small = target / "small.c"
    small.write_text('#include <unistd.h>\nint main(void) { return write(1, "here\\n", 5) == 5 ? 7 : 8; }\n')
    compile_program(small, target / "static", "-static", "-s")
    compile_program(small, target / "static-pie", "-static-pie", "-s")
    compile_program(small, target / "musl", "-static", compiler="musl-gcc")
    for compiler, name in (("cc", "jit"), ("musl-gcc", "jit-musl")):
        compile_program(SOURCES / "jit.c", target / name, "-static", compiler=compiler)
    compile_program(SOURCES / "jit.c", target / "words", "-static", "-DWORDS")
    return target


@pytest.fixture(autouse=True)
def by_number(world):
    world.env |= {"SHUNPIKE_ENTRY": str(entry_library())}
    world.run_options = ["--entry=syscall"]


def outcomes(world, accel, program):
    """What becomes of it: without, under it as the command, and as a child of a shell that is under it."""
    under = [world.binary, "run", *world.run_options, "--"]
    # A shell, as a command that the kernel refuses is a script to it, and an error of its own to `run`.
    plain, child = ["sh", "-c", '"$1"; exit $?', "sh", program], [*under, "sh", "-c", '"$1"; exit $?', "sh", program]
    seconds = ENDLESS
    for argv in (plain, child, [*under, program]):
        env = world.env | ({"SHUNPIKE_SOCKET": str(accel.broker.socket)} if argv != plain else {})
        done = subprocess.Popen([str(one) for one in argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=world.directory,
                                start_new_session=True)  # fmt: skip
        try:
            out, _ = done.communicate(timeout=seconds * PATIENCE)
            # 126, 127: it was not executed; how that is said is the shell's and `run`'s own.
            yield (-1 if done.returncode in (125, 126, 127) else abs(done.returncode) % 128), out
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            yield "goes on and on", done.communicate()[0]
        # What ends by itself has more time under it.
        seconds = ENDLESS if done.returncode == -signal.SIGKILL else 10 * ENDLESS


def same(world, accel, program):
    plain, child, command = outcomes(world, accel, program)
    assert child == plain and command[1] == plain[1], (plain, child, command)
    # A file that the kernel takes for no program is a script for the shell.
    assert command[0] == plain[0] or command[0] == -1, (plain, command)


def headers(elf):
    """Where its program headers stand."""
    (at,), (count,) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<H", elf, 56)
    return range(at, at + 56 * count, 56)


def changed(elf, what):
    """A program, with one thing of it made wrong."""
    elf, loads = bytearray(elf), [at for at in headers(elf) if elf[at] == 1 and not elf[at + 1]]
    text = next(at for at in loads if elf[at + 4] & 1)
    other = next(at for at in headers(elf) if elf[at : at + 4] != b"\x01\0\0\0")
    word = lambda at: struct.unpack_from("<Q", elf, at)[0]
    put = lambda at, value: struct.pack_into("<Q", elf, at, value & (1 << 64) - 1)
    match what:
        case "overlapping":
            elf[other : other + 56] = elf[text : text + 56]
        case "overlapping by a page":
            elf[other : other + 56] = elf[text : text + 56]
            put(other + 16, word(text + 16) + 4096), put(other + 8, word(text + 8) + 4096), put(other + 32, 4096), put(other + 40, 4096)
        case "longer than the file":
            put(text + 32, len(elf) * 2), put(text + 40, len(elf) * 2)
        case "a huge segment":
            put(loads[-1] + 40, 1 << 46)
        case "an offset behind the file":
            put(text + 8, (len(elf) + 0x100000) & ~0xFFF | word(text + 16) & 0xFFF)
        case "headers behind the file":
            put(32, len(elf) + 4096)
        case "sections behind the file":
            put(40, len(elf) + 4096)
        case "65535 sections":
            struct.pack_into("<HHH", elf, 58, 64, 65535, 65534)
        case "65535 headers":
            struct.pack_into("<H", elf, 56, 65535)
        case "no entry":
            put(24, 0)
        case "an entry in data":
            put(24, word(loads[-1] + 16))
        case "an interpreter":
            struct.pack_into("<I", elf, other, 3)
        case "writable text":
            elf[text + 4] |= 2
        case "no text":
            elf[text + 4] &= ~1
    return bytes(elf)


CHANGES = ["overlapping", "overlapping by a page", "longer than the file", "a huge segment", "an offset behind the file", "headers behind the file",
           "sections behind the file", "65535 sections", "65535 headers", "no entry", "an entry in data", "an interpreter", "writable text",
           "no text"]  # fmt: skip


@pytest.mark.parametrize("kind", ["static", "static-pie", "musl"])
def test_wrong_files(world, made, kind):
    accel, whole, program = Accel(world, "both"), made.joinpath(kind).read_bytes(), world.directory / "program"
    for what in ["nothing", *CHANGES]:
        program.unlink(missing_ok=True)
        program.write_bytes(changed(whole, what))
        program.chmod(0o755)
        try:
            same(world, accel, program)
        except AssertionError as differs:
            raise AssertionError(f"{what}: {differs}") from None


@pytest.mark.parametrize("kind", ["static", "musl"])
def test_files_cut_off(world, made, kind):
    accel, whole, program = Accel(world, "both"), made.joinpath(kind).read_bytes(), world.directory / "program"
    for length in (0, 1, 4, 17, 63, 64, 100, 120, 176, 1000, 4096, 5000, 0x10000, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        program.unlink(missing_ok=True)
        program.write_bytes(whole[:length])
        program.chmod(0o755)
        try:
            same(world, accel, program)
        except AssertionError as differs:
            raise AssertionError(f"{length} of {len(whole)} bytes: {differs}") from None


def test_headers_at_random(world, made):
    """Some bytes of the headers are any. SHUNPIKE_SEED repeats a run."""
    seed = int(os.environ.get("SHUNPIKE_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    chance, accel, whole, program = random.Random(seed), Accel(world, "both"), made.joinpath("static").read_bytes(), world.directory / "program"
    end = headers(whole).stop
    for _ in range(25):
        elf = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            elf[chance.randrange(16, end)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        program.unlink(missing_ok=True)
        program.write_bytes(elf)
        program.chmod(0o755)
        same(world, accel, program)


@pytest.mark.parametrize("place", ["warm", "made", "early"])
@pytest.mark.parametrize("server,client", [("jit", "jit-musl"), ("jit-musl", "jit")])
def test_code_made_at_run_time(world, made, server, client, place):
    """It reads and writes a connection by calls that nobody sees, also on a lane: the bytes are right."""
    accel = Accel(world, "both")
    serving = accel.server("server", [made / server, "serve", "warm"])
    dialling = accel.client("client", [made / client, "dial", line(serving), place])
    assert dialling.finish(60) == "done\n"
    assert serving.finish().endswith("done\n")
    if place == "warm":
        accel.verify()


def test_data_in_the_text(world, made):
    """Which look like a call: the program is left alone, and that is said."""
    accel = Accel(world, "both")
    serving = accel.server("server", [made / "words", "serve", "warm"])
    assert accel.client("client", [made / "jit", "dial", line(serving), "warm"]).finish(60) == "done\n"
    assert serving.finish().endswith("done\n")
    assert "stays on TCP: injector's reason 21" in serving.err and accel.broker.stats().smc == 0
