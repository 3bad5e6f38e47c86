"""The manifest for Kubernetes runs what the tests on a cluster of two processes run, and guards the key."""

import pathlib

import yaml

from examples.engines import flink, flink_cluster

ROOT = pathlib.Path(__file__).parents[2]
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
