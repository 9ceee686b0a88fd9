"""`shunpike top` in a real terminal of 80 and of 132 columns (tmux), and as text for scripts."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from operators import Pair, asked
from procs import until

pytestmark = pytest.mark.operators


class Terminal:
    """A terminal of 24 lines that runs a command."""

    def __init__(self, world, env, argv, columns=80):
        self.env, self.socket = world.env | env | {"TERM": "xterm"}, str(world.directory / "tmux")
        self.world = world
        world.cleanups.append(self.end)
        # A shell around it, so that what is on the screen after the command has left can be seen.
        line = " ".join(map(str, argv)) + "; echo status $?; stty -a; cat"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "24", "sh", "-c", line)

    def tmux(self, *arguments):
        result = subprocess.run(["tmux", "-S", self.socket, *arguments], env=self.env, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def lines(self):
        return self.tmux("capture-pane", "-p").splitlines()

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def shows(self, *patterns):
        """Waits until each pattern is on the screen; the screen."""
        found = lambda: all(re.search(pattern, "\n".join(self.lines()), re.M) for pattern in patterns)
        until(found, lambda: f"{patterns} on\n" + "\n".join(self.lines()), seconds=20)
        return self.lines()

    def end(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], env=self.env, capture_output=True, timeout=60)


def test_the_screen_at_80_columns(world):
    pair = Pair(world)
    pair.has("SMCD", connections=2)
    socket = {"SHUNPIKE_SOCKET": str(pair.broker.socket)}
    terminal = Terminal(world, socket, [world.binary, "top", "-i", "0.2"])
    lines = terminal.shows(r"2 processes, 4 ends: 4 on lanes, 0 on TCP", rf"^ *{pair.client.pid} ", rf"^ *{pair.server.pid} ")
    heading = next(line for line in lines if "COMMAND" in line)
    assert heading.split() == ["PID", "COMMAND", "CONN", "LANE", "TX/s", "RX/s", "CALL/s", "SPIN/s", "SLEEP/s", "WAKE", "FALL"]
    row = next(line.split() for line in lines if line.split()[:1] == [str(pair.client.pid)])
    assert row[2:4] == ["2", "2"]

    # Rates while there is traffic.
    def busy():
        pair.talk(connections=2, size=10000, times=20)
        row = next((line.split() for line in terminal.lines() if line.split()[:1] == [str(pair.client.pid)]), None)
        return row and row[4] not in ("0", "0.0") and row[6] not in ("0", "0.0")

    until(busy, lambda: "\n".join(terminal.lines()), seconds=20)

    terminal.press("c")
    lines = terminal.shows("PID:FD +COMMAND +PEER +MODE", "SMCD")
    assert sum(" SMCD " in line for line in lines) == 4
    assert any(f"127.0.0.1:{pair.port}" in line for line in lines)
    terminal.press("s")
    terminal.shows("s sort: tx")
    terminal.press("r")
    terminal.shows("s sort: tx, reversed")
    terminal.press("p")
    terminal.shows("PAUSED")
    terminal.press("p")
    terminal.press("h")
    terminal.shows(r"^Keys$", r"^Any key: back")
    terminal.press("x")
    terminal.shows("PID:FD +COMMAND")
    terminal.press("/", *str(pair.client.pid))
    terminal.shows(rf"filter: {pair.client.pid}_")
    terminal.press("Enter")
    lines = terminal.shows(rf"^only: {pair.client.pid}", "h help")
    assert sum(" SMCD " in line for line in lines) == 2, lines
    terminal.press("/", "Escape")
    until(lambda: sum(" SMCD " in line for line in terminal.lines()) == 4, lambda: "\n".join(terminal.lines()))
    pair.broker.tool("device", "set", "active", "off")
    pair.has("TCP 0x0a010002", connections=2)
    terminal.shows("0 on lanes, 4 on TCP, device off", r"TCP 0x0a010002", r"4 fallbacks \(most: inactive\)")

    # The terminal is as it was.
    terminal.press("q")
    lines = terminal.shows("^status 0", "icanon")
    screen = "\n".join(lines)
    assert " echo " in screen and "-icanon" not in screen and "COMMAND" not in screen, screen
    pair.close()


def test_the_screen_at_132_columns(world):
    """Both tables reach the edge and not beyond it, and so does help."""
    pair = Pair(world)
    pair.has("SMCD")
    terminal = Terminal(world, {"SHUNPIKE_SOCKET": str(pair.broker.socket)}, [world.binary, "top", "-i", "0.2"], columns=132)
    for heading, row in (("^ *PID +COMMAND", rf"^ *{pair.client.pid} +python3 "), ("^PID:FD +COMMAND", rf" 127.0.0.1:{pair.port} +SMCD ")):
        lines = terminal.shows(heading, row)
        assert len(next(line for line in lines if re.match(heading.lstrip("^"), line)).rstrip()) == 132, lines
        terminal.press("c")
    terminal.press("h")
    assert max(map(len, terminal.shows("^Keys$", "^Any key: back"))) <= 132
    terminal.press("x")
    terminal.press("q")
    terminal.shows("^status 0")
    pair.close()


def test_a_broker_that_goes_away_is_told_and_waited_for(world):
    pair = Pair(world)
    pair.has("SMCD")
    terminal = Terminal(world, {"SHUNPIKE_SOCKET": str(pair.broker.socket)}, [world.binary, "top", "-i", "0.2"])
    terminal.shows("1 processes|2 processes")
    pair.broker.kill()
    terminal.shows("no broker answers at")
    terminal.shows(rf"^ *{pair.client.pid} ")  # what was last known stays
    pair.broker.restart()

    def back():
        pair.talk()
        return "no broker answers" not in "\n".join(terminal.lines())

    until(back, lambda: "\n".join(terminal.lines()), seconds=20)
    terminal.press("C-c")
    terminal.shows("^status 0")
    pair.close()


def test_text_for_scripts(world):
    pair = Pair(world)
    pair.has("SMCD")
    text = pair.broker.tool("top", "--once", "-i", "0.1", "--sort", "pid")
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    pids = [int(row[0]) for row in rows if row and row[0].isdigit()]
    assert pids == sorted([pair.client.pid, pair.server.pid])
    text = pair.broker.tool("top", "-b", "2", "-i", "0.1", "--connections", "--sort", "pid", "--reverse")
    targets = re.findall(r"^(\d+):\d+ .* SMCD ", text, re.M)
    assert [int(pid) for pid in targets] == sorted([pair.client.pid, pair.server.pid], reverse=True) * 2
    status, said = asked(pair.broker, "top")
    assert status == 1 and "--once" in said, "no terminal"
    status, said = asked(pair.broker, "top", "-i", "0")
    assert status == 2 and "0.1 to 3600" in said
    stats = json.loads(pair.broker.tool("stats", "--json"))
    assert f"so far: {stats['connections']['fallback']} fallbacks" in text
    pair.close()


def test_wake_ups_are_timed(world):
    """Dialogues with pauses: each begins with a sleeper that the peer wakes. Counted by whom it wakes, shown by all tools."""
    pair = Pair(world)
    pair.has("SMCD")
    stats = lambda: json.loads(pair.broker.tool("stats", "--json"))
    before = stats()["wakeups"]["classes"]

    def some_more():
        pair.talk(connections=1, size=100, times=1)
        now = stats()
        new = [b - a for a, b in zip(before, now["wakeups"]["classes"], strict=True)]
        return sum(new) >= 10 and (new, now)

    new, now = until(some_more, "ten wake-ups", seconds=20, pause=0.02)
    assert len(new) == 16 and sum(now["wakeups"]["classes"]) <= now["sleeps"]
    assert new[0] == 0, f"nobody wakes in less than a microsecond: {new}"
    details = pair.broker.tool("stats", "-d")
    assert int(re.search(r"Wake-ups by a peer +(\d+)", details).group(1)) >= 10
    half, most = (int(re.search(rf"{name} within \(us\) +(\d+)", details).group(1)) for name in ("half of them", "99 of 100"))
    assert 2 <= half <= most <= 16384 and half & (half - 1) == 0
    text = pair.broker.tool("top", "--once", "-i", "0.1")
    assert re.search(r"sleeps/s; woken p50 \S+ p99 \S+", text) and "WAKE" in text
    pair.close()


def test_top_leaves_the_terminal_as_it_was_when_it_is_told_to_end(world):
    """It left the terminal raw, on the other screen and without a cursor."""
    env = world.env | {"SHUNPIKE_SOCKET": str(world.broker().socket), "TERM": "xterm"}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        pid, terminal = top_in_a_terminal(world, env)
        os.kill(pid, number)
        shown = shown_until(terminal, b"\x1b[?1049l")
        until(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0], f"it ends after {number!r}", seconds=20)
        assert termios.tcgetattr(terminal)[3] & termios.ICANON, number
        assert b"\x1b[?25h" in shown + shown_until(terminal, b"\x1b[?25h", seconds=1), number
        os.close(terminal)


def test_top_ends_when_its_terminal_is_gone(world):
    """Where SIGHUP is ignored, as by nohup, it took a CPU until it had something else to show."""
    env = world.env | {"SHUNPIKE_SOCKET": str(world.broker().socket), "TERM": "xterm"}
    pid, terminal = top_in_a_terminal(world, env, ignoring=signal.SIGHUP)
    os.close(terminal)
    until(lambda: os.waitpid(pid, os.WNOHANG)[0], "it ends", seconds=20)


def top_in_a_terminal(world, env, ignoring=None):
    """`top` with a terminal of its own, once it has drawn; its PID, and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:
        if ignoring:
            signal.signal(ignoring, signal.SIG_IGN)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.execve(world.binary, [str(world.binary), "top", "-i", "60"], env)
    shown_until(terminal, b"COMMAND")
    return pid, terminal


def shown_until(terminal, wanted, seconds=20):
    """What is shown until `wanted` is, or for so long."""
    shown, end = b"", time.monotonic() + seconds
    while wanted not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # nobody has the terminal any more
                break
    return shown
