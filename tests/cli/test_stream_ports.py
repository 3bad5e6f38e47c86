"""`shh stream` refuses to run where others than this machine can reach a port that takes code."""

import contextlib
import os
import pathlib
import re
import socket
import sys

import pytest

from dp_transforms.cli.engine_choice import EngineChoice, check_ports, check_worker_pool
from dp_transforms.cli.stream_job import started_engine
from dp_transforms.engines.prism import ON_LOOPBACK_MARK
from dp_transforms.errors import UserError
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import run_python
from tests.helpers.small_runs import key_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
_PATIENCE_SECONDS = 300
# An engine that listens on all addresses, as Beam's own builds do; nobody talks to it before it is refused.
OPEN_ENGINE = """#!{python}
import pathlib, socket, sys, time
pathlib.Path(sys.argv[0]).with_name("started").touch()
(port,) = (int(word.partition("=")[2]) for word in sys.argv if word.startswith("--job_port="))
server = socket.create_server(("0.0.0.0", port))
while True:
    server.accept()[0].close()
"""
# `shh`, in a process that begins to listen on all addresses once the pipeline runs.
OPENS_LATE = """
import socket, sys, threading, time
import dp_transforms.cli.main
opened = []
def open_late():
    while not any(thread.name == "pipeline" for thread in threading.enumerate()):
        time.sleep(0.05)
    opened.append(socket.create_server(("0.0.0.0", 0)))
threading.Thread(target=open_late, daemon=True).start()
dp_transforms.cli.main.main(sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    os.rename(key_file(tmp_path), tmp_path / "noise.key")
    (tmp_path / "engines").mkdir()
    program = tmp_path / "engines" / "prism"
    program.write_text(OPEN_ENGINE.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "engines" / ON_LOOPBACK_MARK).touch()  # which says that it listens on the loopback address
    return tmp_path


PLAN = ["--start", "2020-01-01", "--end", "2020-02-01", "--window", "1d", "--epsilon", "8", "--delta", "1e-6"]
PLAN += ["--mode", "hits"]
STREAM = ["stream", "--input", "logs", "--noise-key-file", "noise.key", *PLAN]


def stream(folder, *words, **environment):
    return shh(*STREAM, *words, cwd=folder, SHH_ENGINES=str(folder / "engines"), **environment)


@contextlib.contextmanager
def listening(address):
    """The port of a server of this process at this address."""
    with socket.create_server((address, 0)) as server:
        yield int(server.getsockname()[1])


def test_an_engine_that_others_can_reach_is_refused(folder):
    result = stream(folder, "--output", "reports", "--engine", "prism")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert re.search(r"--engine prism listens beyond this machine: \S+ on port \d+ of all addresses", last)
    assert "make prism" in last
    assert "--allow-open-ports" in last
    assert (folder / "engines" / "started").exists()
    assert not (folder / "reports").exists()


@pytest.mark.parametrize("is_in_path", [False, True])
def test_a_prism_of_before_it_listened_on_loopback_is_not_started(folder, is_in_path):
    """Else it would be open until its ports are checked."""
    engines = folder / "engines"
    (engines / ON_LOOPBACK_MARK).rename(engines / ".prism-v2.77.0")  # the mark of the old one
    if is_in_path:
        engines.rename(folder / "bin")
    path = {"PATH": str(folder / "bin")} if is_in_path else {}
    result = stream(folder, "--output", "reports", "--engine", "prism", **path)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert re.match(
        r"shh: --engine prism: \S+/prism was not built by this version's make prism, so other machines", last
    )
    assert "It was not started. Build it again with: make prism." in last
    assert not list(folder.rglob("started"))
    assert not (folder / "reports").exists()


def test_the_mark_of_prism_is_the_one_that_make_leaves():
    makefile = (ROOT / "Makefile").read_text()
    (version,) = re.findall(r"^PRISM_VERSION := (\S+)$", makefile, re.MULTILINE)
    (mark,) = re.findall(r"^PRISM_MADE := \$\(SHH_ENGINES\)/(\S+)$", makefile, re.MULTILINE)
    assert mark.replace("$(PRISM_VERSION)", version) == ON_LOOPBACK_MARK


def test_a_port_that_opens_later_ends_the_run(folder):
    words = ["--output", "reports", "--engine", "in-process", "--clock", "event", "--idle-timeout", "1h"]
    result = run_python("-c", OPENS_LATE, *STREAM, *words, cwd=folder, timeout=_PATIENCE_SECONDS)
    assert result.returncode == 1
    assert "--engine in-process listens beyond this machine" in result.stderr.splitlines()[-1]
    assert "Ctrl-C drains it" in result.stderr  # it had begun


def test_who_allows_it_is_told(folder, monkeypatch, capsys):
    monkeypatch.setenv("SHH_ENGINES", str(folder / "engines"))
    with pytest.raises(UserError, match="listens beyond"), started_engine(EngineChoice("prism"), [], "job"):
        pass
    (folder / "engines" / ON_LOOPBACK_MARK).unlink()
    with started_engine(EngineChoice("prism", allow_open_ports=True), [], "job") as engine:
        port = re.search(r"--job_endpoint=\S+:(\d+)|'job_endpoint': '\S+:(\d+)'", str(engine.options.get_all_options()))
    stderr_text = capsys.readouterr().err
    assert port is not None
    assert re.search(rf"other machines may reach \S+ on port {port[1] or port[2]} of all addresses", stderr_text)


def test_ports_of_this_process_are_checked_but_for_those_on_loopback():
    with listening("127.0.0.1"):
        check_ports("flink", allow=False)
        with (
            listening("0.0.0.0") as port,
            pytest.raises(UserError, match=rf"on port {port} of all addresses\. Beam needs no password"),
        ):
            check_ports("flink", allow=False)


def test_a_worker_pool_on_the_internet_is_refused_before_anything_starts(folder):
    words = ["--output", "reports", "--engine", "flink", "--worker-pool", "8.8.8.8:50000"]
    result = stream(folder, *words)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "an address of the internet" in result.stderr
    allowed = stream(folder, *words, "--allow-open-ports")
    assert "make flink" in allowed.stderr.splitlines()[-1]  # it went on to look for the engine


def test_a_worker_pool_is_the_operators_on_a_private_network_and_listens_no_further_on_this_machine():
    for master in ("jobs.invalid:8081", "[local]"):
        with pytest.raises(UserError, match=r"--worker-pool 8\.8\.8\.8:50000 has an address of the internet"):
            check_worker_pool("8.8.8.8:50000", master)
    for pool in ("10.1.2.3:50000", "192.168.0.9:50000", "pool.invalid:50000", "[fd00::2]:50000"):
        check_worker_pool(pool, "jobs.invalid:8081")
    with listening("0.0.0.0") as port, listening("127.0.0.1") as own_port:
        for master in ("[local]", "localhost:8081"):
            with pytest.raises(UserError, match=rf"--worker-pool localhost:{port} listens beyond this machine.*"):
                check_worker_pool(f"localhost:{port}", master)
            check_worker_pool(f"localhost:{own_port}", master)
        # There it is a port of the task managers' own machine.
        check_worker_pool(f"localhost:{port}", "jobs.invalid:8081")
