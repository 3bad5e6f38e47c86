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
HEAVY = ("apache_beam", "numpy", "scipy", "pyarrow", "fastavro", "cryptography", "dp_accounting", "rich", "click")


def _sources(*folders: str) -> list[pathlib.Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no sources in {folders}"
    return found


# Its head names public transforms for type checkers alone.
LAZY = ROOT / "dp_transforms" / "__init__.py"
# From the lowest: each imports only those before it.
ROOMS = (
    *("accounting", "stores", "plan", "core", "papers", "logs", "reports", "runs", "audit", "local", "beam"),
    *("views", "cli"),
)
HALL = ("checks", "errors", "lean_imports")  # for all of them
MOST_ARROWS = 50  # between rooms; may only become fewer
WITHOUT_BEAM = [
    path
    for path in _sources("dp_transforms")
    if path != LAZY and path.relative_to(ROOT).parts[1] not in ("beam", "cli")
]


def _package_of(path: pathlib.Path) -> list[str]:
    return list(path.relative_to(ROOT).with_suffix("").parts[:-1])


@functools.cache
def _nodes(path: pathlib.Path) -> tuple[ast.Import | ast.ImportFrom | ast.Attribute | ast.Call, ...]:
    """What the rules below are about, of a source that is parsed once."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call)
    return tuple(node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


@functools.cache
def _imports(path: pathlib.Path) -> frozenset[str]:
    """Absolute names of all that a module imports, at its head or anywhere else, also for type checking only."""
    names: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = _package_of(path)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _within(names: Set[str], package: str) -> set[str]:
    return {name for name in names if name == package or name.startswith(package + ".")}


def _relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_only_the_folder_beam_imports_beam():
    for path in WITHOUT_BEAM:
        assert not _within(_imports(path), "apache_beam") | _within(_imports(path), "dp_transforms.beam"), _relative(
            path
        )


def test_importing_all_that_knows_no_beam_loads_no_beam():
    """Not through others either."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in WITHOUT_BEAM
    ]
    loaded = _run(f"import {', '.join(modules)}, sys; print([m for m in sys.modules if m.startswith('apache_beam')])")
    assert loaded == "[]"


def _room_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT / "dp_transforms").parts[0].removesuffix(".py")


def _rooms_within(names: Set[str]) -> set[str]:
    return {name.split(".")[1] for name in _within(names, "dp_transforms") if name.count(".")} & {*ROOMS, *HALL}


def test_imports_run_down_from_room_to_room_along_few_arrows():
    """So there is no circle. The docstring of the package names the rooms in their order."""
    arrows = set()
    for path in _sources("dp_transforms"):
        room = _room_of(path)
        if path != LAZY:
            assert room in (*ROOMS, *HALL), _relative(path)
            arrows |= {(room, other) for other in _rooms_within(_imports(path)) - {room, *HALL}}
    assert {room for room, _ in arrows} <= set(ROOMS), "the hall knows no room"
    assert [arrow for arrow in sorted(arrows) if ROOMS.index(arrow[0]) < ROOMS.index(arrow[1])] == []
    assert len(ROOMS) <= 16
    assert len(arrows) <= MOST_ARROWS, sorted(arrows)
    named = re.findall(r"(?:^- |\. )(\w+):", LAZY.read_text().partition("Map of the package")[2], re.MULTILINE)
    assert tuple(named) == ROOMS


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("logs", ["accounting"]),
        ("runs", ["accounting"]),
        ("audit", ["core", "runs"]),
    ],
)
def test_packages_that_must_not_know_each_other(package, forbidden):
    for path in _sources(f"dp_transforms/{package}"):
        for other in forbidden:
            assert not _within(_imports(path), f"dp_transforms.{other}"), _relative(path)


def test_the_pipeline_runs_nothing_of_the_papers():
    for path in _sources("dp_transforms"):
        if _room_of(path) != "papers":
            assert not _within(_imports(path), "dp_transforms.papers"), _relative(path)


def test_the_core_knows_of_accounting_only_the_laws_of_its_noise():
    laws = {"discrete_laplace_law", "exponential_power", "priced_weights"}
    for path in _sources("dp_transforms/core"):
        ours = _within(_imports(path), "dp_transforms.accounting") - {"dp_transforms.accounting"}
        assert {name.split(".")[2] for name in ours} <= laws, _relative(path)


def test_the_library_does_not_know_the_tests_nor_what_is_beside_it():
    for path in _sources("dp_transforms"):
        for other in ("tests", "benchmarks", "pipelines", "runners"):
            assert not _within(_imports(path), other), _relative(path)


def test_pages_are_made_of_what_was_released_and_wait_for_no_engine():
    """They know the plan and the report, and no log, noise or pipeline. What draws is loaded when it is used."""
    for path in [*_sources("dp_transforms/views/page"), ROOT / "dp_transforms" / "cli" / "explain.py"]:
        names = _imports(path)
        for other in ("runs", "logs", "engines", "beam"):
            assert not _within(names, f"dp_transforms.{other}"), _relative(path)
        assert {each for each in _within(names, "dp_transforms.core") if "window_report" not in each} == set()
        assert not _within(names, "apache_beam"), _relative(path)
    code = "import dp_transforms.cli.show, dp_transforms.views.page.report_page, sys; "
    code += "print([m for m in sys.modules if m.startswith(('apache_beam', 'playwright'))])"
    assert _run(code) == "[]"


def test_the_library_needs_no_scipy():
    """Its import takes longer than all that it would do here. Tests compare with it."""
    for path in _sources("dp_transforms", "pipelines"):
        assert not _within(_imports(path), "scipy"), _relative(path)


def test_what_is_submitted_is_short_and_nobody_imports_it():
    scripts = _sources("pipelines")
    assert {path.stem for path in scripts} == {"live_stream", "replay_log"}
    for path in scripts:
        assert len(path.read_text().splitlines()) <= 80, _relative(path)
    for path in _sources("dp_transforms", "runners", "tests", "benchmarks", "examples"):
        if "pipelines" in path.read_text():
            assert not _within(_imports(path), "pipelines"), _relative(path)


def test_importing_the_package_loads_nothing_heavy():
    """Against a bare interpreter: an editable install or coverage may have loaded something before."""
    code = "import sys; {}; print(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    bare, loaded = (set(_run(code.format(statement)).split()) for statement in ("pass", "import dp_transforms"))
    assert not (loaded - bare) & set(HEAVY)
    assert "dp_transforms" in loaded


def _loaded_by(words: list[str], said: str) -> set[str]:
    """The modules of a fresh process after this command, which must print `said`."""
    code = (
        "import contextlib, io, sys\n"
        "from dp_transforms.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        f"    main({words!r})\n"
        "print(*sorted(sys.modules))\n"
        f"assert {said!r} in out.getvalue()"
    )
    return set(_run(code).split())


BUDGET = ["--epsilon", "2", "--delta", "1e-9", "--window", "1h", "--start", "2026-01-01", "--end", "2026-01-02"]
NEVER_BEFORE_A_LOG = {"apache_beam", "pyarrow", "dp_accounting", "cryptography"}


def test_help_loads_no_library_but_that_of_the_command_line():
    assert not _loaded_by(["--help"], "simulate") & (NEVER_BEFORE_A_LOG | {"numpy", "scipy", "rich", "fastavro"})


def test_plan_loads_no_library_that_it_does_not_use():
    loaded = _loaded_by(["plan", *BUDGET], "threshold")
    assert not loaded & (NEVER_BEFORE_A_LOG | {"fastavro"})


def test_a_look_at_a_log_waits_for_no_engine(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,timestamp\nu,i,2026-01-01\n")
    loaded = _loaded_by(["doctor", str(tmp_path / "log.csv")], "--user-field user")
    assert not loaded & {"apache_beam", "scipy", "dp_accounting", "cryptography"}


@pytest.mark.parametrize("file_format", ["avro", "jsonl"])
def test_show_loads_the_libraries_of_one_format(tmp_path, file_format):
    loaded = _loaded_by(["show", str(written(tmp_path, file_format))], "4,021")
    of_format = {"avro": {"fastavro"}, "jsonl": set()}[file_format]
    assert not loaded & (NEVER_BEFORE_A_LOG | {"fastavro", "scipy"}) - of_format


def test_a_replay_loads_no_engine_and_no_solver_before_it_begins_to_read():
    loaded = _loaded_by(["replay", "--help-all"], "--noise-key-file")
    assert not loaded & {"apache_beam", "scipy", "dp_accounting"}


def test_worker_processes_of_a_replay_load_no_engine():
    code = "import dp_transforms.local.libraries, sys; print(*sorted(sys.modules))"
    loaded = set(_run(code).split())
    assert "pyarrow.parquet" in loaded
    assert not loaded & {"apache_beam", "click", "rich", "scipy"}


def test_no_module_of_the_tests_imports_a_test_module():
    """What two test modules need is in tests/helpers, or in a module of the suite that is not named test_*."""
    sources = _sources("tests", "benchmarks", "examples", "dp_transforms", "runners")
    found = {
        f"{_relative(path)}: {name}"
        for path in sources
        for name in _imports(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    }
    assert not found


# ---------------------------------------------------------------------------------------------------------------------
# Randomness
# ---------------------------------------------------------------------------------------------------------------------


def _seedable(path: pathlib.Path) -> list[str]:
    """Imports and attributes through which a seedable generator comes in."""
    found = [name for name in _imports(path) if name == "random" or name.startswith(("random.", "numpy.random"))]
    for node in _nodes(path):
        if not isinstance(node, ast.Attribute) or node.attr != "random":
            continue
        if isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"):
            found.append(f"{node.value.id}.random, line {node.lineno}")
    return found


def test_no_seedable_generator_outside_the_simulation():
    simulation = []
    for path in _sources("dp_transforms"):
        if path.parent == ROOT / "dp_transforms" / "cli" and path.name.startswith("simulat"):
            simulation += _seedable(path)
        else:
            assert not _seedable(path), _relative(path)
    assert simulation, "the rule above sees what it looks for"


def test_no_builtin_hash_in_the_library():
    """It differs from process to process: ids are hashed by key in one module."""
    for path in _sources("dp_transforms"):
        calls = [
            node.lineno
            for node in _nodes(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hash"
        ]
        assert not calls, f"{_relative(path)}: {calls}"
