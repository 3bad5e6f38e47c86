"""An sdist and a wheel of what git tracks can be built and used."""

from __future__ import annotations

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
EACH_MODULE = """
import importlib, pkgutil, dp_transforms
for module in pkgutil.walk_packages(dp_transforms.__path__, "dp_transforms."):
    importlib.import_module(module.name)
"""
USED = """
import datetime
import dp_transforms.cli.subcommands, dp_transforms.beam.jobs, dp_transforms.papers
from dp_transforms.reports import ReportHeader
from dp_transforms.views.page.report_page import report_page
print(dp_transforms.__file__, len(report_page(ReportHeader("r", "s", "g", {}), [], datetime.UTC)))
"""


def run(*words: object, cwd, **environment: str):
    env = {**os.environ, **environment}
    result = subprocess.run([*map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def checkout_in(tmp_path):
    """The tracked files alone."""
    folder = tmp_path / "checkout"
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).exists():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    return folder


def test_every_module_can_be_imported():
    """With these versions of what the package requires: `make test-oldest` asks the oldest and the newest."""
    run(sys.executable, "-c", EACH_MODULE, cwd=ROOT)


def test_the_sdist_makes_a_wheel_that_works(tmp_path):
    """By the build backend that is installed, without a network. Beam ships such an sdist to workers (--setup_file)."""
    words = ("-m", "build", "--no-isolation", "--outdir", tmp_path / "dist")
    run(sys.executable, *words, cwd=checkout_in(tmp_path))
    (wheel,) = (tmp_path / "dist").glob("shifting_heavy_hitters-*.whl")
    (sdist,) = (tmp_path / "dist").glob("shifting_heavy_hitters-*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {name.split("/")[0] for name in names} & {"tests", "benchmarks", "docs"} == set()

    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", target, wheel, cwd=tmp_path)
    names = {path.name for path in target.iterdir()} - {"bin", "__pycache__"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dp_transforms"}, "one name of ours alone"
    assert (target / "dp_transforms" / "py.typed").exists()
    place, size = run(sys.executable, "-c", USED, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert pathlib.Path(place).is_relative_to(target)
    assert int(size) > 40_000, "all that a page is made of is in the package"
    assert run(target / "bin" / "shh", "--version", cwd=tmp_path, PYTHONPATH=str(target)).startswith("shh, version ")
    (metadata,) = target.glob("*.dist-info/METADATA")
    about = email.message_from_string(metadata.read_text())
    assert set(re.findall(r"\]\((\w+:|)", about.get_payload())) == {"https:"}, "an index knows no other files"
    assert f"## {about['Version']} (20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {about['Version']}\n" in (ROOT / "CITATION.cff").read_text()
