"""Servers of gRPC are moved to the loopback address."""

import json
import pathlib
import socket
import subprocess
import sys

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


def is_loopback(host):
    return host.removeprefix("::ffff:").startswith("127.") or host == "::1"


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
