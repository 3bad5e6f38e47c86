"""The layers of the code: who may import what. Read off the sources, and once more off a running interpreter."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Set

import pytest

from tests.helpers.report_samples import written

pytestmark = pytest.mark.xdist_group("sources")  # one process parses them
ROOT = pathlib.Path(__file__).parent.parent
LAZY = ROOT / "dp_transforms" / "__init__.py"  # its head names public transforms for type checkers alone
# From the lowest: each imports only those before it.
ROOMS = (
    *("accounting", "stores", "plan", "core", "papers", "logs", "reports", "runs", "audit", "local", "beam"),
    *("views", "cli"),
)
HALL = ("checks", "errors", "lean_imports")  # for all of them
# Nothing of these, in a folder below the package.
NEVER = {
    "": ["scipy", "tests", "benchmarks", "pipelines", "runners"],
    "logs": ["dp_transforms.accounting"],
    "runs": ["dp_transforms.accounting"],
    "audit": ["dp_transforms.core", "dp_transforms.runs"],
    **{room: ["dp_transforms.papers"] for room in ROOMS if room != "papers"},
    "views/page": ["dp_transforms.runs", "dp_transforms.logs", "dp_transforms.beam"],
}
LAWS = {"discrete_laplace_law", "exponential_power", "priced_weights"}  # of accounting, for the core


def _sources(*folders: str) -> list[pathlib.Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no sources in {folders}"
    return found


@functools.cache
def _nodes(path: pathlib.Path) -> list[ast.AST]:
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


@functools.cache
def _imports(path: pathlib.Path) -> frozenset[str]:
    """Absolute names of all that a module imports, at its head or anywhere else, also for type checking only."""
    names: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _within(names: Set[str], package: str) -> set[str]:
    return {name for name in names if name == package or name.startswith(package + ".")}


def _run(code: str) -> list[str]:
    """The lines that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _room_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT / "dp_transforms").parts[0].removesuffix(".py")


def test_imports_run_down_from_room_to_room():
    """So there is no circle; and only the rooms beam and cli know Beam. The docstring of the package names the rooms in
    their order."""
    for path in set(_sources("dp_transforms")) - {LAZY}:
        room = _room_of(path)
        knows_beam = _within(_imports(path), "apache_beam") | _within(_imports(path), "dp_transforms.beam")
        assert room in ("beam", "cli") or not knows_beam, path
        assert room in (*ROOMS, *HALL), path
        others = {name.split(".")[1] for name in _within(_imports(path), "dp_transforms") if name.count(".")}
        below = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ()
        assert others & {*ROOMS} <= {*below}, path
    named = re.findall(r"(?:^- |\. )(\w+):", LAZY.read_text().partition("Map of the package")[2], re.MULTILINE)
    assert tuple(named) == ROOMS


def test_what_a_room_must_not_know():
    """And the core knows of accounting only the laws of its noise."""
    for folder, others in NEVER.items():
        for path in _sources(f"dp_transforms/{folder}"):
            assert not any(_within(_imports(path), other) for other in others), path
    for path in _sources("dp_transforms/core"):
        ours = _within(_imports(path), "dp_transforms.accounting") - {"dp_transforms.accounting"}
        assert {name.split(".")[2] for name in ours} <= LAWS, path


def test_what_is_submitted_is_short_and_nobody_imports_it():
    assert all(len(path.read_text().splitlines()) <= 80 for path in _sources("pipelines"))
    for path in _sources("runners", "tests", "benchmarks", "examples"):
        assert not re.search(r"^ *(?:from|import) pipelines\b", path.read_text(), re.MULTILINE), path


def test_no_module_imports_a_test_module():
    """In one line, or over several in brackets."""
    statement = re.compile(r"^ *(?:from|import) tests\b(?:[^\n(]*\([^)]*\)|[^\n]*)", re.MULTILINE)
    for path in _sources("tests", "benchmarks", "examples", "runners"):
        assert not [found for found in statement.findall(path.read_text()) if re.search(r"\btest_", found)], path


# What is loaded, by a fresh interpreter.

BUDGET = ["--epsilon", "2", "--delta", "1e-9", "--window", "1h", "--start", "2026-01-01", "--end", "2026-01-02"]
ENGINE = {"apache_beam", "scipy", "dp_accounting", "cryptography"}


def test_importing_the_package_loads_nothing_heavy():
    (loaded,) = _run("import sys; before = {*sys.modules}; import dp_transforms; print(*{*sys.modules} - before)")
    assert not {*loaded.split()} & (ENGINE | {"numpy", "pyarrow", "fastavro", "rich", "click"})


RUN = """
import contextlib, io, sys
from dp_transforms.cli.main import main
for words, said in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(words)
    assert said in out.getvalue(), words
    print(*(name for name in sys.modules if "." not in name))
"""


def test_a_command_loads_no_library_that_it_does_not_use(tmp_path):
    """One after the other in one process: what a command must not load, none before it loads either."""
    (tmp_path / "log.csv").write_text("user,item,timestamp\nu,i,2026-01-01\n")
    readers = {"pyarrow", "fastavro"}
    cases = (
        (["--help"], "simulate", ENGINE | readers | {"numpy", "rich"}),
        (["plan", *BUDGET], "threshold", ENGINE | readers),
        (["show", str(written(tmp_path, "jsonl"))], "4,021", ENGINE | readers),
        (["show", str(written(tmp_path, "avro"))], "4,021", ENGINE | {"pyarrow"}),
        (["doctor", str(tmp_path / "log.csv")], "--user-field user", ENGINE),
        (["replay", "--help-all"], "--noise-key-file", ENGINE - {"cryptography"}),
    )
    lines = _run(RUN.format(commands=[case[:2] for case in cases]))
    for (words, _, never), loaded in zip(cases, lines, strict=True):
        assert not {*loaded.split()} & never, words
    (workers,) = _run("import dp_transforms.local.libraries, sys; print(*sys.modules)")
    assert not {*workers.split()} & {"apache_beam", "click", "rich", "scipy"}


# Randomness.


def test_no_seedable_generator_outside_the_simulation_and_no_builtin_hash():
    """`hash` differs from process to process: ids are hashed by key in one module."""
    simulation = ROOT / "dp_transforms" / "cli" / "simulate.py"
    for path in _sources("dp_transforms"):
        used = {ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in _nodes(path)}
        generators = _within(_imports(path), "random") | _within(_imports(path), "numpy.random")
        assert bool(generators | used & {"np.random", "numpy.random"}) == (path == simulation), path
        assert "hash" not in used, path
