"""iperf3 and sockperf: both directions, streams side by side, and their own accounts of what arrived."""

import json
import re

import pytest

from procs import free_port

pytestmark = pytest.mark.programs


@pytest.fixture
def iperf3(accel):
    port = free_port()
    accel.server("iperf3-server", ["iperf3", "-s", "-p", port, "-B", "127.0.0.1"]).wait_listening(port)
    return port


@pytest.mark.parametrize("options", [[], ["-R"], ["-P", "4"], ["-P", "4", "-R"], ["--bidir"]], ids="-".join)
def test_iperf3(accel, iperf3, options):
    argv = ["iperf3", "-c", "127.0.0.1", "-p", iperf3, "-t", "1", "--json", *options]
    report = json.loads(accel.client("iperf3", argv).finish(40))
    assert "error" not in report, report
    end = report["end"]
    streams = 4 if "-P" in options else 1
    directions = [""] + (["_bidir_reverse"] if "--bidir" in options else [])
    for direction in directions:
        sent, received = end[f"sum_sent{direction}"]["bytes"], end[f"sum_received{direction}"]["bytes"]
        assert min(sent, received) > 10_000_000, end
        # Whoever sends stops at the end of its second; what is then on its way is the difference: in a ring of 8 MiB for each
        # stream and in TCP's buffers, on a busy machine more than a fifth of all.
        on_its_way = max(0.2 * sent, streams * 12 * 2**20)
        assert sent - on_its_way <= received <= sent, f"{direction or 'forward'}: {sent} sent, {received} received"
    accel.verify(lanes=streams, lane_bytes=10_000_000)


@pytest.fixture
def sockperf(accel):
    port = free_port()
    accel.server("sockperf-server", ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port]).wait_listening(port)
    return port


def test_sockperf_ping_pong(accel, sockperf):
    argv = ["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", sockperf, "-m", "14", "-t", "1",
            "--mps=400000"]  # unbounded, a lane overruns sockperf's own table of messages
    out = accel.client("sockperf", argv).finish()
    dropped = re.search(r"# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)", out)
    assert dropped and dropped.groups() == ("0", "0", "0"), out
    assert int(re.search(r"ReceivedMessages=(\d+)", out).group(1)) > 1000, out
    accel.verify(lane_bytes=14_000)


def test_sockperf_throughput(accel, sockperf):
    argv = ["sockperf", "throughput", "--tcp", "-i", "127.0.0.1", "-p", sockperf, "-m", "64000", "-t", "1"]
    out = accel.client("sockperf", argv).finish()
    assert float(re.search(r"BandWidth is ([0-9.]+) MBps", out).group(1)) > 10, out
    accel.verify(lane_bytes=10_000_000)
