"""The manifests for Kubernetes, as kustomize builds them: published schemas take them, and their command runs."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml
from lightkube.codecs import from_dict

from dp_transforms.engines.engine_process import EngineError, engine_file, java
from dp_transforms.engines.flink_rest import ENDED
from dp_transforms.reports.report_topic import ReportTopic
from examples.demos.flink_cluster import FLINK_LIBRARIES
from tests.engines.answers import faults, raw_records
from tests.engines.stream_case import STREAM, Feeder, history_case, wait_for_end, wait_for_reports
from tests.helpers.kubernetes_manifests import BASE, EXAMPLE, container, savepoint_pod, stream_pod
from tests.helpers.shh_process import shh
from tests.helpers.small_runs import RUN_ID

HISTORY = ("--clock", "event", "--allowed-lateness", "60s", "--out-of-order", "10s")
DIGEST = f"sha256:{'a' * 64}"
CASE = (
    "--stream",
    STREAM,
    "--run-id",
    RUN_ID,
    "--time-field",
    "time",
    "--time-unit",
    "us",
    "--checkpoint-interval",
    "1s",
)
# A run may have a name where a ledger knows which names were used.
ACCOUNT = ("--ledger", "ledger.db", "--population", "all", "--max-epsilon", "100", "--max-delta", "0.01")


def _made(name: str) -> pathlib.Path:
    try:
        return engine_file(f"kubernetes/{name}", "kubernetes")
    except EngineError as error:
        pytest.skip(str(error))


def _closed(schema: Any) -> Any:
    """The schema of a custom resource in which an unknown field is an error: the server would drop it unsaid."""
    if isinstance(schema, list):
        return [_closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What `kubectl apply -k` of the example would send."""
    folder = tmp_path_factory.mktemp("kubernetes")
    shutil.copytree(EXAMPLE, folder / "examples" / "kubernetes")
    shutil.copytree(BASE, folder / "runners" / "kubernetes")
    (folder / "examples" / "kubernetes" / "plan.json").write_text("{}")
    (folder / "examples" / "kubernetes" / "noise.key").write_bytes(os.urandom(32))
    settings = folder / "examples" / "kubernetes" / "settings.env"
    settings.write_text(re.sub(r"^(PORT_OF_\w+)=(\d+)$", r"\g<1>=1\2", settings.read_text(), flags=re.MULTILINE))
    overlay = folder / "examples" / "kubernetes" / "kustomization.yaml"
    overlay.write_text(re.sub(r"newTag: \S+", f"digest: {DIGEST}", overlay.read_text()))
    command = [_made("kustomize"), "build", folder / "examples" / "kubernetes"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for place in (": SHH_IMAGE", ": STORAGE/", ": MONITORING"):
        assert place not in text
    return list(yaml.safe_load_all(text))


@pytest.fixture(scope="module")
def flink_schema() -> Any:
    definition = yaml.safe_load(_made("flinkdeployments.yml").read_text())
    (version,) = definition["spec"]["versions"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}  # of every resource
    return schema


def test_settings_are_where_they_belong(built: list[Any]) -> None:
    images = set(re.findall(r"image: (\S+)", yaml.safe_dump_all(built)))
    assert images == {f"registry.example/shh@{DIGEST}", f"flink@{DIGEST}"}
    policies = {each["metadata"]["name"]: each["spec"] for each in built if each["kind"] == "NetworkPolicy"}
    of_stores = policies["shh-flink-reaches-stores"]["egress"]
    assert [rule["ports"] for rule in of_stores] == [
        [{"protocol": "TCP", "port": 1443}],
        [{"protocol": "TCP", "port": 16443}],
    ]
    assert policies["shh-reaches-kafka"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 19092}]}]
    (rule,) = policies["shh-flink-shows-metrics"]["ingress"]
    labels = rule["from"][0]["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": "monitoring"}


def test_flinks_operator_takes_the_cluster(built: list[Any], flink_schema: Any) -> None:
    (deployment,) = (manifest for manifest in built if manifest["kind"] == "FlinkDeployment")
    jsonschema.Draft202012Validator(flink_schema).validate(deployment)


@pytest.mark.parametrize(
    ("place", "value"),
    [(("flinkVersion",), "1.19"), (("taskManager", "podTemplate", "spec", "sidecars"), []), (("image",), 1)],
)
def test_flinks_schema_finds_what_is_wrong(built: list[Any], flink_schema: Any, place: Any, value: Any) -> None:
    (deployment,) = (manifest for manifest in built if manifest["kind"] == "FlinkDeployment")
    wrong = yaml.safe_load(yaml.safe_dump(deployment))
    inner = wrong["spec"]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(flink_schema).validate(wrong)


def _understood(manifest: Any) -> Any:
    """The manifest through the types of its kind."""
    return type(from_dict(manifest)).from_dict(manifest, lazy=False).to_dict()


def _unknown(given: Any, understood: Any, path: str = "") -> list[str]:
    """Fields that were lost on the way through the types of Kubernetes."""
    if isinstance(given, dict) and isinstance(understood, dict):
        return [
            fault
            for key, value in given.items()
            for fault in (_unknown(value, understood[key], f"{path}.{key}") if key in understood else [f"{path}.{key}"])
        ]
    if isinstance(given, list) and isinstance(understood, list) and len(given) == len(understood):
        return [
            fault
            for n, pair in enumerate(zip(given, understood, strict=True))
            for fault in _unknown(*pair, f"{path}.{n}")
        ]
    return [] if given == understood else [path]


def test_kubernetes_knows_every_field_of_the_others(built: list[Any]) -> None:
    others = [manifest for manifest in built if manifest["kind"] != "FlinkDeployment"]
    kinds = {manifest["kind"] for manifest in others}
    assert kinds == {"ConfigMap", "CronJob", "Job", "NetworkPolicy", "PodDisruptionBudget", "Secret"}
    for manifest in others:
        assert _unknown(manifest, _understood(manifest)) == []
    job = next(manifest for manifest in others if manifest["kind"] == "Job")
    job["spec"]["template"]["spec"]["sidecars"] = []
    assert _unknown(job, _understood(job)) == [".spec.template.spec.sidecars"]


def _cli(cluster: Any, folder: pathlib.Path) -> str:
    """The path of a folder with the command `flink`, which calls what that of Flink's image calls."""
    libraries = engine_file(FLINK_LIBRARIES, "flink").parent / "lib"
    call = f'exec {java()} -cp "{libraries}/*" org.apache.flink.client.cli.CliFrontend "$@"'
    (folder / "flink").write_text(f"#!/bin/sh\nFLINK_CONF_DIR={cluster.flink.folder / 'conf'} {call}\n")
    (folder / "flink").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.nightly
def test_its_commands_run_on_a_cluster_of_two_processes(kafka, cluster, key_path, tmp_path) -> None:
    """The stream is handed over; the pod of each night saves it; another one of the same ends it; and it goes on from
    what the first one saved, which is further back."""
    case = history_case(mode="looks")
    kafka.create_topic("kubernetes-in", case.partitions)
    kafka.create_topic("kubernetes-out")
    sink, half = ReportTopic(kafka.bootstrap, "kubernetes-out"), len(case.rows) // 2
    (tmp_path / "plan.json").write_text(case.plan.to_json())
    places = {
        "shh-rest:8081": cluster.flink.address,
        "localhost:50000": cluster.pool.address,
        "/etc/shh/plan.json": str(tmp_path / "plan.json"),
        "/run/shh/noise.key": key_path,
        "/run/kafka": str(EXAMPLE),
        "$(KAFKA)": kafka.bootstrap,
        "$(TOPIC)": "kubernetes-in",
        "$(OUTPUT_TOPIC)": "kubernetes-out",
    }
    words = container(stream_pod(), "stream")["command"][1:]
    for place, ours in places.items():
        assert any(place in word for word in words), place
        words = [word.replace(place, ours) for word in words]
    (saving,) = savepoint_pod()["containers"]
    text = [word.replace("shh-rest:8081", cluster.flink.address) for word in saving["command"]]
    path = _cli(cluster, tmp_path)

    def handed_over(*more: str) -> str:
        known = cluster.job_ids()
        started = shh(*words, *CASE, *ACCOUNT, *HISTORY, *more, cwd=tmp_path)
        assert started.returncode == 0, started.stderr
        return cluster.newest_job(known)

    def saved(verb: str) -> str:
        command = [word.replace("flink savepoint ", f"flink {verb} ") for word in text]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
        (found,) = re.findall(r"^Savepoint completed\. Path: (\S+)$", done.stdout, re.MULTILINE)
        return found

    Feeder(kafka.bootstrap, "kubernetes-in", case.rows[:half], 1).join()
    job = handed_over()
    try:
        wait_for_reports(sink, 5)
        kept = saved("savepoint")
        assert saved("stop") != kept
        cluster.flink.rest.wait_for_state(job, ["FINISHED"])
        assert not sink.read(RUN_ID)[2]
        Feeder(kafka.bootstrap, "kubernetes-in", case.rows[half:], 1).join()
        job = handed_over("--resume-from", kept)
        wait_for_end(sink)
        records = raw_records(kafka, "kubernetes-out")
        assert faults(records, case.expected.reports, case.plan.schedule.horizon) == []
    finally:
        if cluster.flink.rest.job_state(job) not in ENDED:
            cluster.cancel(job)
