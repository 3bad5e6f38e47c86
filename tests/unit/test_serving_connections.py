"""Who asks nothing, or does not read, takes no place from others: attacks on the live page, by real sockets."""

import contextlib
import http.client
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is missing")

from dp_transforms.views.serving.connections import Limits, server_of

LIMITS = Limits(turn_seconds=0.4, connections=20)
PATIENCE_SECONDS = 30.0
BIG = b"x" * (8 << 20)
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def application(scope, receive, send):
    """Says yes; or, for listeners, one word and then nothing; or much."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = {"/listen": b"begun", "/big": BIG}.get(scope["path"], b"yes")
    await send({"type": "http.response.body", "body": body, "more_body": scope["path"] == "/listen"})
    while scope["path"] == "/listen" and (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture(scope="module")
def port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = server_of(application, LIMITS)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def connected(port, *, receives=0):
    with contextlib.closing(socket.socket()) as made:
        if receives:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        made.settimeout(PATIENCE_SECONDS)
        made.connect(("127.0.0.1", port))
        yield made


def status(port, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def is_closed(connection):
    """Reads all that comes, to the end."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def drip(connection, port):
    """A byte at a time: that is no reason to wait for longer."""
    with contextlib.suppress(OSError):
        for byte in HEAD * 1000:
            connection.send(bytes([byte]))
            time.sleep(LIMITS.turn_seconds / 20)


ATTACKS = {
    "nothing": lambda connection, _: None,
    "half a head": lambda connection, _: connection.send(HEAD),
    "a head byte by byte": drip,
    "no body": lambda connection, _: connection.send(HEAD + b"Content-Length: 1000000\r\n\r\n"),
    "one request, then half of one": lambda connection, _: connection.send(HEAD + b"\r\n" + HEAD),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_half_open_is_closed(port, attack):
    with connected(port) as connection:
        begin = time.monotonic()
        ATTACKS[attack](connection, port)
        assert is_closed(connection)
        assert time.monotonic() - begin >= LIMITS.turn_seconds * 0.9


def test_who_asks_and_never_reads_is_cut_off(port):
    """Many requests at once: their answers would be kept for ever."""
    with connected(port, receives=4096) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
            time.sleep(3 * LIMITS.turn_seconds)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                received += len(data)
        assert received < len(BIG)


def test_who_closes_and_never_reads_is_cut_off(port):
    """An answer that is the last one is sent by a server that has closed the connection already."""
    with contextlib.ExitStack() as left:
        for _ in range(LIMITS.connections):
            silent = left.enter_context(connected(port, receives=4096))
            silent.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(8 * LIMITS.turn_seconds)
        assert status(port) == 200


def test_who_reads_slowly_gets_all(port):
    with connected(port, receives=1 << 16) as connection:
        connection.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = bytearray()
        while data := connection.recv(1 << 19):
            received += data
            time.sleep(LIMITS.turn_seconds / 8)
        assert received.count(b"x") == len(BIG)


@pytest.mark.parametrize("attack", ["nothing", "half a head"])
def test_many_that_are_half_open_take_no_place_from_others(port, attack):
    """Three times as many as there are places."""
    with contextlib.ExitStack() as left:
        for _ in range(3 * LIMITS.connections):
            ATTACKS[attack](left.enter_context(connected(port)), port)
            assert status(port) == 200


def test_where_all_are_listeners_one_more_is_told_to_come_later(port):
    """Each that goes makes room; listeners stay, however little there is to tell."""
    with contextlib.ExitStack() as left:
        listeners = [left.enter_context(connected(port)) for _ in range(LIMITS.connections - 1)]
        for listener in listeners:
            listener.send(HEAD.replace(b"/ ", b"/listen ", 1) + b"\r\n")
            assert listener.recv(1 << 16).startswith(b"HTTP/1.1 200")
        time.sleep(2 * LIMITS.turn_seconds)
        assert status(port) == 503
        listeners[0].close()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while status(port) != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for listener in listeners[1:]:
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                list(iter(lambda: listener.recv(1 << 16), b""))  # noqa: B023
