"""An sdist and a wheel of what git tracks can be built, and used with what the wheel requires alone: what a local run
needs is there, and what is not there is named with its extra.

No network is needed: the process of these tests sees only the packages that the project's requirements bring.
"""

from __future__ import annotations

import email
import importlib
import importlib.metadata
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dp_transforms

ROOT = pathlib.Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGE = "--window 1h --epsilon 2 --delta 1e-9 --start 2026-01-01 --end 2026-01-03"
MISSING = {
    "kafka": f"stream --input kafka://localhost:9092/clicks {RANGE} --output reports",
    "stores": f"replay s3://bucket/clicks.csv {RANGE} --output r.avro",
}
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
USED = f"""
import importlib, pkgutil, runpy
import dp_transforms
from dp_transforms.cli.main import main
for module in pkgutil.walk_packages(dp_transforms.__path__, "dp_transforms."):
    importlib.import_module(module.name)
for words in {[*MISSING.values()]!r}:
    try:
        main(words.split())
    except SystemExit as ended:
        print("ended with", ended.code)
runpy.run_path({str(ROOT / "tests" / "local_run.py")!r}, run_name="__main__")
print(dp_transforms.__file__)
"""


def run(*words: object, cwd, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done


def checkout_in(folder: pathlib.Path) -> pathlib.Path:
    """The tracked files alone."""
    for name in run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def brought(requirements: list[str]) -> set[str]:
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


def hide_packages(folder: pathlib.Path) -> None:
    """Python with this folder in its path sees no package that a plain install does not bring."""
    seen = brought(DECLARED["dependencies"]) | {canonicalize_name(DECLARED["name"]), "pip", "setuptools"}
    hidden = {
        package
        for package, distributions in importlib.metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & seen
    }
    assert {"psutil", "dp_accounting", "pytest"} <= hidden
    folder.mkdir()
    (folder / "hidden.txt").write_text("\n".join(sorted(hidden)))
    (folder / "sitecustomize.py").write_text(BLOCKER)


class Installed(NamedTuple):
    """dist: with an sdist and a wheel. site: what the wheel installs. folder: where it was used. said: by the use."""

    dist: pathlib.Path
    site: pathlib.Path
    folder: pathlib.Path
    said: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """By the build backend that is installed, without a network. Beam ships such an sdist to workers (--setup_file)."""
    folder = tmp_path_factory.mktemp("installed")
    dist, site, plain = folder / "dist", folder / "site", folder / "plain"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, cwd=checkout_in(folder / "checkout"))
    (wheel,) = dist.glob("shifting_heavy_hitters-*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", site, wheel, cwd=folder)
    hide_packages(plain)
    used = folder / "used"
    used.mkdir()
    said = run(sys.executable, "-c", USED, cwd=used, PYTHONPATH=f"{plain}{os.pathsep}{site}")
    return Installed(dist, site, used, said)


def test_every_module_can_be_imported():
    """With these versions of what the package requires: `make test-oldest` asks the oldest and the newest."""
    for module in pkgutil.walk_packages(dp_transforms.__path__, "dp_transforms."):
        importlib.import_module(module.name)


def test_the_sdist_makes_a_wheel_with_the_package_alone(installed):
    (sdist,) = installed.dist.glob("shifting_heavy_hitters-*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {name.split("/")[0] for name in names} & {"tests", "benchmarks", "docs"} == set()
    names = {path.name for path in installed.site.iterdir()} - {"bin", "__pycache__"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dp_transforms"}, "one name of ours alone"
    assert (installed.site / "dp_transforms" / "py.typed").exists()
    version = run(installed.site / "bin" / "shh", "--version", cwd=installed.folder, PYTHONPATH=str(installed.site))
    assert version.stdout.startswith("shh, version ")
    (metadata,) = installed.site.glob("*.dist-info/METADATA")
    about = email.message_from_string(metadata.read_text())
    assert set(re.findall(r"\]\((\w+:|)", about.get_payload())) == {"https:"}, "an index knows no other files"
    assert f"## {about['Version']} (20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {about['Version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_all_that_a_local_run_needs_is_there(installed):
    """`make test-wheels` runs the same program in clean environments."""
    said, _, place = installed.said.stdout.rstrip().rpartition("\n")
    assert pathlib.Path(place).is_relative_to(installed.site)
    assert "Traceback" not in installed.said.stderr
    assert (installed.folder / "page.html").stat().st_size > 40_000, "all that a page is made of is in the package"
    assert "heavy: a story" in said


def test_what_is_missing_is_named_with_its_extra(installed):
    assert installed.said.stdout.startswith("ended with 1\n" * len(MISSING))
    refused = installed.said.stderr.splitlines()
    for extra in MISSING:
        assert len([line for line in refused if line.startswith("shh: ") and f"pip install '.[{extra}]'" in line]) == 1
        assert extra in DECLARED["optional-dependencies"]
