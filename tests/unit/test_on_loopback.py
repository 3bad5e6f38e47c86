"""Servers of gRPC are moved to the loopback address, and what listens elsewhere is found."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest

from dp_transforms.engines.this_machine import OpenPort, addresses_of, is_loopback, is_open_here, open_ports

ROOT = pathlib.Path(__file__).parents[2]
# Starts a server at each address that it is given and says where this process then listens.
SERVERS = """
import json, sys, grpc, psutil
from concurrent import futures
servers = []
for address in sys.argv[1:]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    assert server.add_insecure_port(address) > 0
    server.start()
    servers.append(server)
found = [one.laddr[0] for one in psutil.net_connections("tcp") if one.pid == psutil.Process().pid]
print(json.dumps(found))
for server in servers:
    server.stop(None)
"""
ANY = ["[::]:0", "0.0.0.0:0"] if socket.has_ipv6 else ["0.0.0.0:0"]


def listens_on(folder, *words):
    (folder / "servers.py").write_text(SERVERS)
    command = [sys.executable, *words]
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": ""}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return list(json.loads(found.stdout))


def test_a_program_on_loopback(tmp_path):
    hosts = listens_on(tmp_path, "-m", "dp_transforms.beam.on_loopback", "servers", *ANY, "127.0.0.1:0")
    assert len(hosts) >= len(ANY) + 1
    assert all(is_loopback(host) for host in hosts)


def test_without_it_the_program_listens_on_all_addresses(tmp_path):
    hosts = listens_on(tmp_path, "-m", "servers", *ANY)
    assert not any(is_loopback(host) for host in hosts)


def test_an_address_that_is_named_is_kept(tmp_path):
    hosts = listens_on(tmp_path, "-m", "dp_transforms.beam.on_loopback", "servers", "127.0.0.3:0")
    assert [host.removeprefix("::ffff:") for host in hosts] == ["127.0.0.3"]


def test_a_program_must_be_named():
    result = subprocess.run(
        [sys.executable, "-m", "dp_transforms.beam.on_loopback"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 1
    assert "usage: python -m dp_transforms.beam.on_loopback MODULE" in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine_alone(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::ffff:0.0.0.0", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "8.8.8.8"]
)
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)


def test_a_port_that_is_open_is_found_in_a_child_too():
    code = "import socket; s = socket.create_server(('{}', 0)); print(s.getsockname()[1], flush=True); input()"
    for host in ("0.0.0.0", "127.0.0.1"):
        command = ["sh", "-c", f'"{sys.executable}" -c "{code.format(host)}"; true']
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(process.stdout.readline())
            found = [one for one in open_ports() if one.port == port]
            assert found == [one for one in open_ports(process.pid) if one.port == port]
            assert bool(found) == is_open_here(port) == (host == "0.0.0.0")
            if found:
                assert str(found[0]).endswith(f"on port {port} of all addresses")
            process.stdin.close()
    assert open_ports(process.pid) == []


def test_an_open_port_names_the_address():
    assert str(OpenPort("java", "10.0.0.1", 7)) == "java on port 7 of 10.0.0.1"


def test_names_are_looked_up():
    assert addresses_of("localhost")
    assert all(is_loopback(address) for address in addresses_of("localhost"))
    assert addresses_of("192.0.2.7") == ["192.0.2.7"]
    assert addresses_of("no-such-machine.invalid") == []
