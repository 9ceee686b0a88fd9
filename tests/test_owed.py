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


def rest_of(world, bed, mode, sender, count, how):
    """What both ends print: the reader's, then the sender's."""
    accel = Accel.eager(world, mode)

    def dialogue():
        port = free_port()
        ends = [accel.server("server", [bed / "rests", "server", port, sender, count, how]).wait_listening(port)]
        ends.append(accel.client("client", [bed / "rests", "client", port, sender, count, how]))
        outs = finish_together(*ends)
        return outs[::-1] if sender == "server" else outs

    outs = dialogue()
    accel.verify(more=dialogue)
    return outs


@pytest.mark.parametrize("how", ["r", "r+"])
@pytest.mark.parametrize("sender,count", [("server", 18), ("server", 50000), ("server", 200000), ("client", 18), ("client", 200000)])
@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
def test_a_stream_reads_what_its_ended_sender_left_in_the_ring(world, bed, mode, sender, count, how):
    read, sent = rest_of(world, bed, mode, sender, count, how)
    assert read == f"{count} bytes, end 1, error 0\nclosed: 0\n"
    assert sent == f"answered by {2 if how == 'r+' else 0}\n"


@pytest.mark.parametrize("count", [18, 50000])
@pytest.mark.parametrize("mode", ["tcp", "both", "earned"])
def test_the_next_program_reads_what_an_ended_client_sent(world, bed, mode, count):
    """It takes back what TCP takes at once: a server may accept connections for others."""
    assert rest_of(world, bed, mode, "client", count, "exec")[0] == f"{count - 10}\nit ended\n"


@pytest.mark.parametrize("count", [18, 50000, 200000])
def test_the_next_program_meets_an_error_where_bytes_are_lost(world, bed, count):
    assert rest_of(world, bed, "both", "server", count, "exec")[0] in (f"{count - 10}\nit ended\n", "0\nit failed\n")
