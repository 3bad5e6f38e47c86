"""Engines: processes end with their starter, servers listen on loopback, the manifest guards the key."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import psutil
import yaml

from examples.engines import flink, flink_cluster


def _sleepers(seconds):
    return {p.pid for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-1:] == [seconds]}


def test_processes_end_with_their_starter(tmp_path):
    """Also when the starter is killed and can clean up nothing."""
    seconds = f"1234.{os.getpid()}"  # found again by it
    program = ["sh", "-c", f"sleep {seconds} & sleep {seconds}"]
    code = (
        "import pathlib, time, examples.engines.engine_process as e;"
        f"e.EngineProcess({program!r}, pathlib.Path({str(tmp_path / 'log')!r}));"
        "print('started', flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    for kill, left in ((False, 2), (True, 0)):
        if kill:
            starter.kill()
            starter.wait()
        deadline = time.monotonic() + 60
        while len(_sleepers(seconds)) != left and time.monotonic() < deadline:
            time.sleep(0.3)
        assert len(_sleepers(seconds)) == left


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


def test_a_program_on_loopback_listens_there_alone_and_where_it_was_told_to(tmp_path):
    (tmp_path / "servers.py").write_text(SERVERS)
    command = [sys.executable, "-m", "dp_transforms.beam.on_loopback", "servers", *ANY, "127.0.0.3:0"]
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    hosts = [host.removeprefix("::ffff:") for host in json.loads(done.stdout)]
    assert len(hosts) >= len(ANY) + 1
    assert all(host.startswith("127.") or host == "::1" for host in hosts)
    assert "127.0.0.3" in hosts


PLACE = ROOT / "runners" / "kubernetes"
FLINK = yaml.safe_load((PLACE / "flink.yaml").read_text())["spec"]
POD = FLINK["taskManager"]["podTemplate"]["spec"]
BEGINNING = {one["name"]: one for one in POD["initContainers"]}
POOL_PORT = 50000


def mounts_of(container):
    return {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", ())}


def test_workers_are_started_as_the_tests_start_them():
    workers = BEGINNING["workers"]
    assert workers["command"] == ["python", *flink.worker_pool_words(POOL_PORT)]
    assert str(POOL_PORT) in workers["startupProbe"]["exec"]["command"][-1]
    assert workers["restartPolicy"] == "Always"  # Flink's own pods are never restarted; a sidecar is


def test_flink_is_the_release_that_the_tests_run_with_its_settings():
    release, config = flink.FLINK_RELEASE, FLINK["flinkConfiguration"]
    assert FLINK["image"] == f"flink:{release}-java17"
    assert FLINK["flinkVersion"] == "v" + "_".join(release.split(".")[:2])
    (plugins,) = FLINK["podTemplate"]["spec"]["containers"][0]["env"]
    assert release in plugins["value"]
    assert {key: str(value) for key, value in flink_cluster.CONFIG.items()}.items() <= config.items()
    assert all(isinstance(value, str) for value in config.values())  # as its schema wants


def test_only_who_needs_the_key_sees_it():
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert volumes["secret"]["secret"]["secretName"] == "shh-noise-key"
    assert volumes["key"]["emptyDir"]["medium"] == "Memory"
    seen = {name: {one for one, each in BEGINNING.items() if name in mounts_of(each)} for name in volumes}
    assert seen["secret"] == {"copy-key"}
    assert (seen["key"], seen["kafka"]) == ({"copy-key", "workers"}, {"workers"})
    assert POD["containers"] == [{"name": "flink-main-container"}]
    assert "fsGroup" not in FLINK["podTemplate"]["spec"]["securityContext"]  # it would open the copy to a group
    assert BEGINNING["copy-key"]["command"][1] == "--mode=0400"
    assert mounts_of(BEGINNING["workers"])["no-account"] == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_no_container_may_become_more_than_it_is():
    security = FLINK["podTemplate"]["spec"]["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 9999, 9999)
    for one in [*BEGINNING.values(), *FLINK["podTemplate"]["spec"]["containers"]]:
        assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
