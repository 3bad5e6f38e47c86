"""The ledger on a real PostgreSQL server: `make test-postgres`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pytest
import sqlalchemy as sa

from dp_transforms.runs.ledger import Caps, Ledger, LedgerBusyError, LedgerError, LedgerUncertainError, VerdictKind
from dp_transforms.stores.databases import postgres_engine
from tests.helpers import postgres_server
from tests.helpers.killed_nights import in_a_process
from tests.helpers.ledger_crowd import crowd, spend_all
from tests.helpers.ledger_runs import CAPS, cost, part

# A connection to a PostgreSQL server that is lost: what a client sends is passed on, and the answer to a commit is
# not.


_SOCKET = ".s.PGSQL.5432"


class Proxy:
    """url: of the same database, through it. loses: of how many commits the answer is still to be lost. is_away: it
    takes no connection, from the first lost answer on."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        (server,) = parse_qs(urlsplit(url).query)["host"]
        self._server = os.path.join(server, _SOCKET)
        self.url = urlunsplit(urlsplit(url)._replace(query=f"host={folder}"))
        self.loses, self.goes_away, self.is_away = 0, False, False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            if self.is_away:
                return
            server.connect(self._server)
            commits = False
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    content = ready.recv(1 << 16)
                    if not content or (ready is server and commits):
                        return
                    if ready is client and b"COMMIT\0" in content and self.loses:
                        self.loses, self.is_away, commits = self.loses - 1, self.goes_away, True
                    (server if ready is client else client).sendall(content)


@contextlib.contextmanager
def proxy_of(url: str, folder: pathlib.Path) -> Iterator[Proxy]:
    """folder: with a short path."""
    proxy = Proxy(url, folder)
    threading.Thread(target=proxy.run, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()


pytestmark = [
    pytest.mark.skipif(bool(postgres_server.skip_reason()), reason=postgres_server.skip_reason() or "it is there")
]


def test_what_is_reserved_is_on_the_disk_whatever_the_default_is(url: str) -> None:
    connect = postgres_engine(sa.make_url(url), 60.0)
    with connect.begin() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {urlsplit(url).path.lstrip('/')} SET synchronous_commit = off")
    with connect.begin() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_eight_processes_never_overspend_on_a_server_of_another_default(url: str) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        name = urlsplit(url).path.lstrip("/")
        connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
    engine.dispose()
    assert sum(map(int, crowd(8, spend_all(url, CAPS)))) == 8


def test_a_process_that_dies_at_any_moment_leaves_whole_entries(url: str) -> None:
    Ledger.open(url)
    for number in range(12):

        def work(number: int = number) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0.002 + number * 0.008)
            ledger = Ledger.open(url)
            verdict = ledger.reserve(part(run_id=f"run {number}"), Caps(50, "1e-6"))
            ledger.start(verdict)
            signal.setitimer(signal.ITIMER_REAL, 0)

        in_a_process(work)
    ledger = Ledger.open(url)
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    entries, charged = ledger.journal(), {run.run_id for run, _ in ledger.runs()}
    assert {entry["run_id"] for entry in entries if entry["action"] == "reserve"} == charged
    assert [entry["counter"] for entry in entries] == list(range(1, len(entries) + 1))


def test_a_process_waits_for_another_one_and_says_when_that_takes_too_long_on_a_server(url: str) -> None:
    ledger = Ledger.open(url)
    ledger.reserve(part(run_id="run"), CAPS)
    with postgres_engine(sa.make_url(url), 60).begin() as other:
        other.exec_driver_sql("LOCK TABLE shh_entries")
        began = time.monotonic()
        with pytest.raises(LedgerBusyError, match="Try again"):
            Ledger.open(url, wait_seconds=0.2).reserve(part(run_id="run 2"))
        assert time.monotonic() - began < 10


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder, proxy_of(url, pathlib.Path(folder)) as proxy:
        yield proxy


def test_a_run_whose_reservation_was_answered_into_the_void_is_charged_once(url: str, proxy: Proxy) -> None:
    """The server is asked again, so its process does not even notice."""
    ledger = Ledger.open(proxy.url)
    proxy.loses = 1
    verdict = ledger.reserve(part(run_id="run"), CAPS)
    proxy.loses = 1
    ledger.start(verdict)
    assert [entry["action"] for entry in Ledger.open(url).journal()] == ["reserve", "start"]


def test_a_run_that_may_have_been_reserved_is_found_by_the_same_command(url: str, proxy: Proxy) -> None:
    ledger = Ledger.open(proxy.url, wait_seconds=0.1)
    proxy.loses, proxy.goes_away = 1, True
    with pytest.raises(LedgerUncertainError, match=r"may have recorded this: reserve of run \w+\.") as error:
        ledger.reserve(part(), CAPS)
    assert "nothing was changed" not in str(error.value)
    run_id = str(error.value).partition("--run-id ")[2].split()[0]
    proxy.is_away = False
    verdict = ledger.reserve(part(run_id=run_id, key_fingerprint="d" * 64))
    assert verdict.kind == VerdictKind.RESUMES
    assert ledger.balances()[0].total.epsilon == cost().epsilon


def test_a_server_that_is_not_there_is_one_line_without_a_password() -> None:
    with pytest.raises(LedgerError, match="cannot be used") as error:
        Ledger.open("postgresql://somebody:secret@localhost:1/nothing")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)
