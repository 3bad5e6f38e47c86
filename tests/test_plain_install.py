"""`pip install` without extras: what a local run needs is there, and what is not there is named with its extra.

No network is needed: processes of these tests see only the packages that the project's requirements bring.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGE = ("--window", "1h", "--epsilon", "2", "--delta", "1e-9", "--start", "2026-01-01", "--end", "2026-01-03")
# Who looks for packages in folders does not find those that the file beside this one names.
BLOCKER = """
import pathlib, sys
from importlib.machinery import PathFinder
_HIDDEN = frozenset(pathlib.Path(__file__).with_name("hidden.txt").read_text().split())
class _Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in _HIDDEN else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = _Hide
"""


def _brought(requirements: list[str]) -> set[str]:
    """The distributions that these requirements install here, and those that they require in turn."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += map(Requirement, importlib.metadata.requires(name) or ())
    return found


@pytest.fixture
def run(tmp_path: pathlib.Path):
    """Runs Python where `sitecustomize` hides the packages that a plain install does not bring."""
    folder = tmp_path / "plain"
    folder.mkdir()
    brought = _brought(DECLARED["dependencies"]) | {canonicalize_name(DECLARED["name"]), "pip", "setuptools"}
    hidden = {
        package
        for package, distributions in importlib.metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & brought
    }
    assert {"psutil", "dp_accounting", "pytest"} <= hidden
    (folder / "hidden.txt").write_text("\n".join(sorted(hidden)))
    (folder / "sitecustomize.py").write_text(BLOCKER)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return lambda *words: subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )


def test_all_that_a_local_run_needs_is_there(run, tmp_path):
    """`make test-wheels` runs the same program in clean environments."""
    done = run(str(ROOT / "tests" / "helpers" / "local_run.py"))
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 40_000
    assert "heavy: a story" in done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("stream", "--input", "kafka://localhost:9092/clicks", *RANGE, "--output", "reports"), "kafka"),
        (("replay", "s3://bucket/clicks.csv", *RANGE, "--output", "r.avro"), "stores"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(run, words, extra):
    done = run("-m", "dp_transforms.cli.main", *words)
    assert done.returncode == 1
    assert f"pip install '.[{extra}]'" in done.stderr
    assert extra in DECLARED["optional-dependencies"]
