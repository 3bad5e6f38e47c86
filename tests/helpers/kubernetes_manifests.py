"""The manifests of runners/kubernetes as they stand in the files."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).parents[2]
BASE = ROOT / "runners" / "kubernetes"
EXAMPLE = ROOT / "examples" / "kubernetes"


def manifests() -> dict[str, Any]:
    """By kind and name, as in "Job/shh-stream"."""
    files = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    found = [manifest for file in files for manifest in yaml.safe_load_all((BASE / file).read_text())]
    return {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in found}


def task_manager_pod() -> Any:
    return manifests()["FlinkDeployment/shh"]["spec"]["taskManager"]["podTemplate"]["spec"]


def stream_pod() -> Any:
    return manifests()["Job/shh-stream"]["spec"]["template"]["spec"]


def savepoint_pod() -> Any:
    return manifests()["CronJob/shh-savepoint"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def container(pod: Any, name: str) -> Any:
    (found,) = (one for one in [*pod["initContainers"], *pod["containers"]] if one["name"] == name)
    return found
