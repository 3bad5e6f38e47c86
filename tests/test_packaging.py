"""An sdist and a wheel of what git tracks can be built and used, and setup.py serves as Beam's shim."""

from __future__ import annotations

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest

from tests.helpers.shh_process import run_python

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*words: object, cwd, **environment: str):
    result = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def checkout(tmp_path):
    """The tracked files alone."""
    folder = tmp_path / "checkout"
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).exists():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return folder


def test_messages_name_extras_that_there_are_and_no_package_of_an_index():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named: set[str] = set()
    for path in (ROOT / "dp_transforms").rglob("*.py"):
        text = path.read_text()
        assert "shifting-heavy-hitters[" not in text, path
        named |= set(re.findall(r"""how_to_install\(["'](\w+)["']\)""", text))
    assert {"kafka"} <= named <= set(extras)


EACH_MODULE = """
import importlib, pkgutil, dp_transforms, dp_transforms.cli
count = 0
for package in (dp_transforms, dp_transforms.cli):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        count += 1
print(count)
"""


def test_every_module_can_be_imported():
    """With these versions of what the package requires: `make test-versions` asks the oldest and the newest."""
    files = [path for folder in ("dp_transforms", "pipelines") for path in (ROOT / folder).rglob("*.py")]
    done = run_python("-c", EACH_MODULE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0.9 * len(files) > 100


PAGE = """
import datetime
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page.report_page import report_page
print(len(report_page(ReportHeader("r", "s", "g", {}), [], datetime.UTC)))
"""
USED = """
import dp_transforms.cli.subcommands, dp_transforms.beam.jobs, dp_transforms.papers
from dp_transforms import Plan, ShiftingHeavyHitters
print(dp_transforms.__file__)
"""


def test_the_sdist_makes_a_wheel_that_works(checkout, tmp_path):
    """Also what Beam ships to workers (--setup_file) is such an sdist."""

    # Builds the sdist, and the wheel from the sdist, with the build backend that is installed: no network.
    def build(folder: pathlib.Path, *words: str) -> str:
        words = ("-m", "build", "--no-isolation", "--outdir", str(folder), *words)
        return run(sys.executable, *words, cwd=checkout, SOURCE_DATE_EPOCH="1767225600")

    built = build(tmp_path / "dist")
    assert not re.search("deprecat|warning: (?!.*byte-compiling)", built, re.IGNORECASE), built
    (wheel,) = (tmp_path / "dist").glob("shifting_heavy_hitters-*.whl")
    build(tmp_path / "again", "--wheel")
    assert wheel.read_bytes() == (tmp_path / "again" / wheel.name).read_bytes(), "whoever builds a commit has its wheel"
    (sdist,) = (tmp_path / "dist").glob("shifting_heavy_hitters-*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    folder = checkout / "dp_transforms" / "views" / "page"
    carried = {path.relative_to(checkout).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert carried <= names
    assert {name.split("/")[0] for name in names} & {"tests", "benchmarks", "docs"} == set()

    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", target, wheel, cwd=tmp_path)
    names = {path.name for path in target.iterdir()} - {"bin", "__pycache__"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dp_transforms"}, "one name of ours alone"
    assert (target / "dp_transforms" / "py.typed").exists()

    def installed(*words: object) -> str:
        return run(*words, cwd=tmp_path, PYTHONPATH=str(target))

    assert int(installed(sys.executable, "-c", PAGE)) > 40_000, "all that a page is made of is in the package"
    assert pathlib.Path(installed(sys.executable, "-c", USED).strip()).is_relative_to(target)
    assert installed(target / "bin" / "shh", "--version").startswith("shh, version ")
    (metadata,) = target.glob("*.dist-info/METADATA")
    about = email.message_from_string(metadata.read_text())
    assert set(re.findall(r"\]\((\w+:|)", about.get_payload())) == {"https:"}, "an index knows no other files"
    assert f"## {about['Version']} (20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {about['Version']}\n" in (ROOT / "CITATION.cff").read_text()
