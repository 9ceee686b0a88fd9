"""asyncio at both ends: streams, many connections, random chunks, a subprocess while they run.

usage: asyncio_echo.py server PORT CONNECTIONS | client PORT CONNECTIONS
"""

import asyncio
import hashlib
import random
import sys

ROUNDS = 150


async def serve(port, expected):
    done = asyncio.Semaphore(0)

    async def echo(reader, writer):
        while data := await reader.read(40000):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        done.release()

    server = await asyncio.start_server(echo, "127.0.0.1", port)
    for _ in range(expected):
        await done.acquire()
    server.close()
    await server.wait_closed()


async def talk(port, index):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    source, total = random.Random(index), hashlib.sha256()
    for _ in range(ROUNDS):
        message = source.randbytes(source.choice((1, 30, 500, 20000)) + source.randrange(500))
        writer.write(message)
        back = await reader.readexactly(len(message))
        assert back == message, f"connection {index}: the echo is not what was sent"
        total.update(back)
    writer.write_eof()
    assert await reader.read() == b"", f"connection {index}: bytes after the end"
    writer.close()
    await writer.wait_closed()
    return total.hexdigest()


async def ask(port, connections):
    talks = [asyncio.create_task(talk(port, index)) for index in range(connections)]
    await asyncio.sleep(0)
    # vfork and close_range in the middle of it all
    for _ in range(3):
        child = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
        assert (await child.communicate())[0] == b"hello\n"
    print("\n".join(await asyncio.gather(*talks)))


role, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
asyncio.run((serve if role == "server" else ask)(port, connections))
