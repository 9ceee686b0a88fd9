"""Connections of two processes one after another: again.py server PORT, again.py client PORT ROUNDS [fork].

Each says, for each connection that it had, in which DMBs (inodes of memfds) its bytes were; the client waits for a line of
its input before the last one. `fork`: a child, made during the first connection once that is on a lane, has all that was mapped
then, and stays."""

import os
import random
import socket
import sys
import time


def dmbs(pid="self"):
    with open(f"/proc/{pid}/maps") as maps:
        return {line.split()[4] for line in maps if "shunpike-dmb" in line}


def exactly(conn, length):
    data = bytearray()
    while len(data) < length:
        piece = conn.recv(length - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def message(number):
    """Of any length, and no other's."""
    dice = random.Random(number)
    return dice.randbytes(dice.choice([1, 700, 16384, 70000]))


def served(listener):
    conn, _ = listener.accept()
    with conn:
        while head := exactly(conn, 4):
            data = exactly(conn, int.from_bytes(head, "big"))
            conn.sendall(data)
            last = dmbs()
    return last


def ask(conn, data):
    conn.sendall(len(data).to_bytes(4, "big") + data)
    assert exactly(conn, len(data)) == data


def asked(port, number, meanwhile):
    with socket.create_connection(("127.0.0.1", port)) as conn:
        for part in range(3):
            ask(conn, message(f"{number} {part}"))
            used = dmbs()
            if part == 1:
                used |= meanwhile(conn)
        conn.shutdown(socket.SHUT_WR)
        assert conn.recv(1) == b""
    return used


CHILDREN = []  # each has a pipe whose end tells it of ours


def child_of(conn):
    """A child that has what is mapped now, but for the connection, for as long as we live. Returns the DMBs of the connection."""
    begin = time.monotonic()
    while len(mapped := dmbs()) < 2 and time.monotonic() < begin + 30:
        ask(conn, b"on TCP for a while")
    ready, told = os.pipe()
    over, alive = os.pipe()
    if child := os.fork():
        os.close(told)
        os.read(ready, 1)
        print("child", *dmbs(child), flush=True)
        CHILDREN.append(alive)
        return mapped
    os.close(alive)
    conn.close()
    os.write(told, b"x")
    os.read(over, 1)
    os._exit(0)


def main(role, port, rounds=0, how=""):
    port, rounds = int(port), int(rounds)
    if role == "server":
        listener = socket.create_server(("127.0.0.1", port), backlog=16)
        while True:
            print("used", *served(listener), flush=True)
    for number in range(rounds):
        if number == rounds - 1:
            print("waits", flush=True)
            sys.stdin.readline()
        print("used", *asked(port, number, child_of if how == "fork" and number == 0 else lambda conn: set()), flush=True)


main(*sys.argv[1:])
