"""A sender ends its stream with much unread in the ring, which its reader wants by TCP: no byte is lost without an error."""

import pytest

from harness import Accel
from procs import finish_together, free_port

pytestmark = pytest.mark.fallback


def read_by(world, bed, mode, sender, reader):
    """What the reader has of it."""
    accel = Accel(world, mode)

    def dialogue():
        port = free_port()
        server = accel.server("server", [bed / "owed", "server", port, *sender]).wait_listening(port)
        client = accel.client("client", [bed / "owed", "client", port, *reader])
        return finish_together(client, server, seconds=60)[0]

    out = dialogue()
    accel.verify(more=dialogue)
    return out


@pytest.mark.parametrize("reads", ["system", "stdio"])
@pytest.mark.parametrize("ends", ["close", "shutdown", "exit", "exec"])
@pytest.mark.parametrize("mode", ["tcp", "both"])
def test_a_reader_that_comes_late_gets_all(world, bed, mode, ends, reads):
    """Where the sender's last send would have waited for it on TCP."""
    assert read_by(world, bed, mode, [ends, 1], [reads, 1000]) == "all, then the end\n"


@pytest.mark.parametrize("ends", ["close", "shutdown", "exit", "exec"])
def test_what_tcp_never_takes_is_in_the_ring(world, bed, ends):
    """Its sender does not wait; the reader has lent its descriptor, and reads on itself."""
    assert read_by(world, bed, "both", [ends, 0], ["system", 1500]) == "all, then the end\n"


@pytest.mark.parametrize("ends", ["close", "shutdown", "exit", "exec"])
def test_what_is_lost_is_an_error(world, bed, ends):
    """Its sender does not wait, and the reader knows of no ring."""
    told = read_by(world, bed, "both", [ends, 0], ["stdio", 1500])
    assert told in ("all, then the end\n", "less, then an error\n")
