"""`shunpike bench`: what it prints, writes and draws holds together, and each side is what it says."""

import json
import os
import re
import signal
import xml.etree.ElementTree as ElementTree

import pytest

from harness import BINARY
from netns import needs_root
from procs import until

pytestmark = [pytest.mark.cost, pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ends want a CPU")]

PINGPONG = {"tcp", "unix", "copy", "nocopy"}


def bench(world, *arguments, prefix=(), **options):
    return world.start("bench", [*prefix, BINARY, "bench", *arguments], **options)


def test_a_quick_run(world):
    """Table, JSON and picture of a few cheap rows."""
    report, picture = world.directory / "report.json", world.directory / "picture.svg"
    out = bench(world, "--quick", "line", "pingpong", "connect", "calls", "--json", report, "--chart", picture).finish(120)

    rows = {row["name"]: row for row in json.loads(report.read_text())["rows"]}
    assert set(rows) == {"line", "pingpong", "connect", "calls"}
    assert 0 < rows["line"]["sides"]["machine"]["median"] < 0.1, "seconds of a cache line's hand-over"
    sides = rows["pingpong"]["sides"]
    assert set(sides) == PINGPONG, rows["pingpong"]["notes"]
    for name, side in sides.items():
        assert side["min"] <= side["median"] <= side["max"] and side["values"] and side["median"] > 100, (name, side)
    for name in ("tcp", "unix"):
        assert sides[name]["lanes"] == sides[name]["lane_bytes"] == 0, f"{name} on lanes: {sides[name]}"
    for name in ("copy", "nocopy"):
        assert sides[name]["lanes"] == 1, sides[name]
        assert sides[name]["lane_bytes"] >= sides[name]["sent_bytes"] / 2, sides[name]
    ratio = sides["nocopy"]["median"] / sides["tcp"]["median"]
    assert rows["pingpong"]["ratio"] == pytest.approx(ratio)
    assert rows["pingpong"]["goals"][0]["reached"] is (ratio >= 20)
    assert all(side["lanes"] == 0 for side in rows["connect"]["sides"].values()), "short connections get none"
    assert rows["calls"]["sides"]["tcp"]["median"] > 1.9, "TCP makes two for each message"

    heading = next(line for line in out.splitlines() if line.startswith("Workload"))
    assert heading.split()[:5] == ["Workload", "TCP", "UNIX", "copy", "no-copy"], heading
    line = next(line for line in out.splitlines() if line.startswith("ping-pong"))
    assert len(re.findall(r"[\d.]+ [kM]?/s", line)) == 4, f"a rate for each side: {line}"

    root = ElementTree.parse(picture).getroot()
    namespace = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{namespace}svg" and root.get("viewBox")
    bars = [title.text for title in root.iter(f"{namespace}title")]
    assert len(bars) == 6, f"UNIX, copy and no-copy of two rows of speed: {bars}"
    assert any("".join(text.itertext()).strip().startswith("ping-pong") for text in root.iter(f"{namespace}text"))


def test_its_tcp_rows_are_tcp_also_under_shunpike(world):
    """Run by `shunpike run` it would pass the library on to the programs of its TCP side."""
    broker, report = world.broker(), world.directory / "report.json"
    prefix = [BINARY, "run", "--"]
    env = {"SHUNPIKE_SOCKET": str(broker.socket), "SHUNPIKE_EAGER": "1"}
    bench(world, "--quick", "pingpong", "--json", report, prefix=prefix, env=env).finish(60)
    row = json.loads(report.read_text())["rows"][0]
    assert set(row["sides"]) == PINGPONG, row["notes"]
    assert broker.stats().lanes == 0, "its lanes are at brokers of its own"
    assert row["sides"]["tcp"]["lanes"] == 0 and row["sides"]["nocopy"]["lanes"] == 1, row


def test_a_row_says_so_where_lanes_did_not_carry_it(world):
    """A setting from the environment is the bench's brokers': here no connection is ever nominated."""
    report = world.directory / "report.json"
    env = {"SHUNPIKE_ACTIVE": "0"}
    out = bench(world, "--quick", "pingpong", "--json", report, env=env).finish(60)
    for row in json.loads(report.read_text())["rows"]:
        assert row["sides"]["nocopy"]["lanes"] == 0
        assert "no-copy: lanes carried 0 % of the bytes (0 connections)" in row["notes"], row
    assert "* pingpong: copy: lanes carried 0 %" in out


def test_a_broker_that_cannot_start_is_told_of(world):
    out = bench(world, "--quick", "pingpong", env={"SHUNPIKE_SPIN_US": "many"}).finish(60)
    assert re.search(r"\* pingpong: copy: its broker ended: .*SHUNPIKE_SPIN_US", out), out


def test_a_missing_program_is_named_with_its_package(world):
    env = {"PATH": "/nonexistent"}
    out = bench(world, "sockperf-pp", "short", env=env).finish(30)
    assert "skipped sockperf-pp: no sockperf here; the package sockperf brings it" in out
    assert "skipped short: no wrk here; the package wrk brings it" in out


@needs_root
@pytest.mark.parametrize("load,busy", [("0.01 0.00 0.00 1/100 4711", False), ("64.00 60.00 50.00 70/100 4711", True)], ids=["quiet", "loaded"])
def test_figures_that_a_loaded_machine_made_say_so(world, load, busy):
    """As /proc/loadavg has it, which is the test's own here: above the table, in the heading, and in the JSON."""
    file, report = world.directory / "loadavg", world.directory / "report.json"
    file.write_text(f"{load}\n")
    shown = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/loadavg && exec "$@"', file]
    out = bench(world, "--quick", "line", "--json", report, prefix=shown).finish(60)
    assert ("Others were using this machine: read the ratios" in out) == busy, out
    average = load.split()[0]
    assert f"load average {average} at begin, {average} at end" in out, out
    assert json.loads(report.read_text())["machine"]["load_begin"] == float(average)


def test_it_lists_and_refuses(world):
    listed = bench(world, "--list").finish(10)
    names = [line.split()[0] for line in listed.splitlines()[1:]]
    assert len(names) >= 26 and len(set(names)) == len(names), names
    for seeds in ("pingpong", "sockperf-pp", "sockperf-tp", "iperf3", "nginx-1000", "file-100", "redis-c200"):
        assert seeds in names
    refused = bench(world, "nothing")
    assert refused.popen.wait(10) == 1 and "'nothing'" in refused.err and "--list" in refused.err


def test_told_to_end_it_shows_what_it_has_and_leaves_nothing(world):
    """The world fails the test where a process or file is left."""
    running = bench(world, "pingpong", "--runs", "50")
    until(lambda: "on no-copy" in running.err, "it gets to lanes")
    running.popen.send_signal(signal.SIGINT)
    assert running.popen.wait(20) == 0, running.describe()
    assert "interrupted: the rounds are not complete" in running.out, running.describe()


def zerocopy_rows(world, name):
    """What is left with MSG_ZEROCOPY on TCP and by lane, percent: the sender's CPU time, that of both ends, the speed."""
    report = world.directory / f"{name}-{len(list(world.directory.iterdir()))}.json"
    bench(world, "--quick", name, "--json", report).finish(120)
    rows = {row["name"]: row["sides"] for row in json.loads(report.read_text())["rows"]}
    assert set(rows) == {f"{name} {of}" for of in ("sender", "both", "speed")}
    assert all(0 < side["median"] < 1000 for sides in rows.values() for side in sides.values()), rows
    assert rows[f"{name} sender"]["nocopy"]["lanes"] >= 1, rows
    return [[rows[f"{name} {of}"][side]["median"] for of in ("sender", "both", "speed")] for side in ("tcp", "nocopy")]


def until_one(measure, is_good):
    """Copying comes in two speeds here (docs/profiles.md), and a run of a quarter of a second in one of them: some more, if need be."""
    seen = []
    while len(seen) < 6 and not any(map(is_good, seen)):
        seen.append(measure())
    assert any(map(is_good, seen)), seen


def test_lending_saves_the_sender_its_copies(world):
    """Where all is lent, whatever it costs the receiver; TCP copies all the same."""

    def senders():
        tcp, lane = (rows[0] for rows in zerocopy_rows(world, "lent-1m"))
        assert lane < tcp
        return lane

    until_one(senders, lambda sender: sender < 70)


def test_zerocopy_is_no_slower_than_copying(world):
    """Where the machine decides: which of the two is quicker is measured, and the quicker way taken."""
    until_one(lambda: zerocopy_rows(world, "zerocopy-64k")[1][2], lambda speed: speed > 80)


def test_load(world):
    """Shares of TCP's highest rate: rows, picture, and a lane that costs no more than TCP where threads wait most of the time."""
    report, picture = world.directory / "load.json", world.directory / "load.svg"

    def measured(turn):
        out = world.start(f"load{turn}", [BINARY, "bench", "load", "nginx", "--quick", "--json", report, "--chart", picture]).finish(120)
        points = json.loads(report.read_text())["points"]
        assert [(point["share"], point["side"]) for point in points] == [(share, side) for share in (1, 10, 50, 90, 100) for side in ("tcp", "nocopy")]
        assert sum(line.startswith("nginx ") for line in out.splitlines()) == len(points), out
        assert all(0 < point["latencies"][0] <= point["latencies"][2] for point in points), points
        cost = {(point["share"], point["side"]): point["both"] for point in points}
        return {share: cost[share, "nocopy"] / cost[share, "tcp"] for share in (10, 50)}

    # Others have the machine, too: the better of two turns counts. Spins of 30 us made it 1.2 to 1.35.
    turns = [measured(0)]
    if max(turns[0].values()) > 1.1:
        turns.append(measured(1))
    lines = list(ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}polyline"))
    assert sum(bool(line.get("points")) for line in lines) == 4, "TCP and lanes, CPU time and p99"
    assert all(min(turn[share] for turn in turns) <= 1.1 for share in (10, 50)), turns


def test_load_of_nobody_is_refused(world):
    refused = bench(world, "load", "nginx", "apache")
    assert refused.popen.wait(20) == 1 and "no load 'apache'; there are echo, redis, nginx" in refused.err, refused.err
