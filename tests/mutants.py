"""Mutation testing by mutmut, of a folder, a module or a random sample: ``make mutants``. Results: docs/benchmarks.md.

    python -m tests.mutants run [SCOPE ...] [--sample N] [--seed N] [--jobs N] [--again | --tests PATH]
    python -m tests.mutants report [SCOPE ...] [--sample N] [--seed N] [--survivors]

A scope is a folder or a module, such as ``mechanisms`` or ``accounting/composition``. ``run`` goes on where the last
one stopped; results are in ``mutants/``, which nothing else needs: remove it to begin anew. ``--again`` runs once more
what survived or took too long, after tests were added; ``--tests`` does so with these tests alone, which may be any,
such as tests/privacy. A sample is the same for the same seed and code.

Mutants of words are left out (`left_out`), and so are, by the settings in pyproject.toml, those of ``raise``.
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from scipy.special import betaincinv

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "mutants"
SURVIVORS = ROOT / "tests" / "surviving_mutants.json"
FOLDERS = ("accounting", "core", "logs/streams", "papers", "plan", "reports", "runs")
_ALL = ("-m", "")  # as in pyproject.toml: also what is nightly
_SMALL = "dp_transforms.core.hit_noise.*"  # run first: with it mutmut writes down all mutants there are
_TOO_LONG = {-24, 24, 36, 152, 255}
_DIED = {-6, -9, -11}
_NAMING = re.compile(r"_?check_\w+|_real|_?as_float|cast")  # their first argument is a word of an error, or a type
_ERRORS = re.compile(r"[A-Z]\w*Error|(threshold|noise|write|_folder|_changed)_error|second_(answer|end)")


class Mutant(NamedTuple):
    """One change of one function. code: what mutmut noted, None before it is run. lines: those that differ."""

    name: str
    module: str
    function: str
    code: int | None
    lines: tuple[str, ...]
    left_out: str

    @property
    def outcome(self) -> str:
        if self.code is None:
            return "not run"
        if self.code in (0, 33, 5):  # 33 and 5: no test reaches it
            return "survived"
        return "took too long" if self.code in _TOO_LONG else "killed"

    @property
    def key(self) -> tuple[str, str, str]:
        """By which the list of survivors knows it: numbers change with the code."""
        return self.module, self.function, "\n".join(self.lines)


def mutants_of(scopes: list[str]) -> list[Mutant]:
    """All mutants that mutmut made, of these scopes, in order."""
    found = []
    package = WORK / "dp_transforms"
    for meta in sorted(package.rglob("*.py.meta")):
        module = meta.relative_to(package).as_posix().removesuffix(".py.meta")
        if any(f"{module}/".startswith(f"{scope}/") for scope in scopes):
            found += _of_module(module, meta)
    return found


def _of_module(module: str, meta: pathlib.Path) -> Iterator[Mutant]:
    codes = json.loads(meta.read_text())["exit_code_by_key"]
    tree = ast.parse(meta.with_suffix("").read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name, code in codes.items():
        mutated = name.rpartition(".")[2]
        mangled = mutated.rpartition("__mutmut_")[0]
        before, after = functions[f"{mangled}__mutmut_orig"], functions[mutated]
        function = mangled[2:].replace("ǁ", ".")  # x_name or xǁClassǁname
        yield Mutant(name, module, function, code, _changed_lines(before, after), left_out(before, after))


def _changed_lines(before: ast.FunctionDef, after: ast.FunctionDef) -> tuple[str, ...]:
    texts = [[ast.unparse(one.args), *ast.unparse(ast.Module(one.body, [])).splitlines()] for one in (before, after)]
    return tuple(
        line[0] + " " + line[1:].strip()
        for line in difflib.unified_diff(*texts, n=0, lineterm="")
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    )


def left_out(before: ast.AST, after: ast.AST) -> str:
    """Why a mutant is not run, or "": ``words`` of an error or a type for mypy, and ``strict`` of a zip.

    ``strict`` guards against faults of our own; where there are none, no test can tell it from its absence.
    """
    parents = _parents_of_difference(before, after)
    for parent, child in zip(parents, [*parents[1:], None], strict=False):
        if not isinstance(parent, ast.Call):
            continue
        name = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
        if _ERRORS.fullmatch(name) and child is not parent.func:
            return "words"
        if _NAMING.fullmatch(name) and parent.args and child is parent.args[0] and _is_text_or_type(name, child):
            return "words"
        if name in ("zip", "map") and _is_strict(parent, child, after):
            return "strict"
    return ""


def _is_text_or_type(name: str, child: ast.AST) -> bool:
    return name == "cast" or isinstance(child, ast.JoinedStr) or isinstance(getattr(child, "value", None), str)


def _is_strict(call: ast.Call, child: ast.AST | None, after: ast.AST) -> bool:
    if isinstance(child, ast.keyword):
        return child.arg == "strict"
    if child is not None or not any(keyword.arg == "strict" for keyword in call.keywords):
        return False
    without = ast.unparse(ast.Call(call.func, call.args, [one for one in call.keywords if one.arg != "strict"]))
    return without in ast.unparse(after)


def _parents_of_difference(before: ast.AST, after: ast.AST) -> list[ast.AST]:
    """From the function down to the innermost node of `before` that holds all that differs."""
    if type(before) is not type(after):
        return [before]
    inner: list[list[ast.AST]] = []
    for field in before._fields:
        if isinstance(before, ast.FunctionDef) and field == "name":
            continue
        one, two = getattr(before, field, None), getattr(after, field, None)
        ones, twos = (value if isinstance(value, list) else [value] for value in (one, two))
        if len(ones) != len(twos):
            return [before]
        for a, b in zip(ones, twos, strict=True):
            if isinstance(a, ast.AST) and isinstance(b, ast.AST):
                inner += [path] if (path := _parents_of_difference(a, b)) else []
            elif a != b or type(a) is not type(b):
                inner.append([])
    if not inner:
        return []
    return [before, *inner[0]] if len(inner) == 1 else [before]


def chosen_mutants(scopes: list[str], sample: int | None, seed: int) -> list[Mutant]:
    """Those of the scopes that are not left out; of them a random sample, each set of that size alike."""
    found = [mutant for mutant in mutants_of(scopes) if not mutant.left_out]
    if sample is None or sample >= len(found):
        return found
    return sorted(random.Random(seed).sample(found, sample))


def run(scopes: list[str], sample: int | None, seed: int, jobs: int, again: bool) -> int:
    mutmut = [str(pathlib.Path(sys.executable).with_name("mutmut")), "run", f"--max-children={jobs}"]
    if not WORK.exists():
        subprocess.run([*mutmut, _SMALL], cwd=ROOT, check=True)
    chosen = chosen_mutants(scopes, sample, seed)
    wanted = {"not run", *(["survived", "took too long"] if again else [])}
    names = [mutant.name for mutant in chosen if mutant.outcome in wanted]
    if not chosen:
        print(f"no mutants of {' '.join(scopes)} in {WORK.name}/: check the name, or remove that folder to begin anew")
        return 1
    print(f"{len(chosen)} mutants, {len(names)} of them to run", flush=True)
    if not names:
        return 0
    return subprocess.run([*mutmut, *names], cwd=ROOT, check=False).returncode


def run_with_tests(scopes: list[str], sample: int | None, seed: int, tests: list[str]) -> int:
    """Runs what survived with these tests alone, and notes what they kill."""
    shutil.copytree(ROOT / "tests", WORK / "tests", dirs_exist_ok=True)
    clean = _run_tests("", tests)
    if clean:
        print(f"{' '.join(tests)} end with {clean} without any mutant")
        return clean
    for mutant in chosen_mutants(scopes, sample, seed):
        if mutant.outcome == "survived":
            code = _run_tests(mutant.name, tests)
            print(f"{'killed  ' if code else 'survived'} {mutant.name}", flush=True)
            if code:
                meta = WORK / "dp_transforms" / f"{mutant.module}.py.meta"
                noted = json.loads(meta.read_text())
                noted["exit_code_by_key"][mutant.name] = 1
                meta.write_text(json.dumps(noted, indent=4))
    return 0


def _run_tests(name: str, tests: list[str]) -> int:
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--rootdir=.", *_ALL, *tests]
    environment = {**os.environ, "MUTANT_UNDER_TEST": name, "PYTHONPATH": str(WORK)}
    done = subprocess.run(words, cwd=WORK, env=environment, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode} at {name or 'no mutant'}: {done.stdout[-300:]!r}")
    return done.returncode


def known_survivors() -> dict[tuple[str, str, str], tuple[str, str]]:
    """``(module, function, lines)`` to ``(kind, reason)``, of `SURVIVORS`. kind: equivalent, or open."""
    entries = json.loads(SURVIVORS.read_text()) if SURVIVORS.exists() else []
    return {
        (entry["module"], entry["function"], "\n".join(entry["lines"])): (entry["kind"], entry["reason"])
        for entry in entries
    }


def interval(part: int, whole: int, level: float = 0.95) -> tuple[float, float]:
    """Of a share, after a random sample (Clopper, Pearson 1934)."""
    tail = (1 - level) / 2
    low = betaincinv(part, whole - part + 1, tail) if part else 0.0
    high = betaincinv(part + 1, whole - part, 1 - tail) if part < whole else 1.0
    return float(low), float(high)


def report(scopes: list[str], sample: int | None, seed: int) -> None:
    """A table in Markdown: for each module and folder what was made, left out, run, killed, and is equivalent."""
    known = known_survivors()
    chosen = collections.defaultdict(list)
    for mutant in chosen_mutants(scopes, sample, seed):
        chosen[mutant.module].append(mutant)
    made = collections.Counter(mutant.module for mutant in mutants_of(scopes))
    out = collections.Counter(mutant.module for mutant in mutants_of(scopes) if mutant.left_out)
    print("| module | mutants | left out | run | killed | too long | survived | equivalent | killed of the others |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    sums: collections.Counter[str] = collections.Counter()
    for module in sorted(made):
        counts = collections.Counter(mutant.outcome for mutant in chosen[module])
        counts["run"] = len(chosen[module]) - counts["not run"]
        counts["made"], counts["left out"] = made[module], out[module]
        counts["equivalent"] = sum(
            mutant.outcome == "survived" and known.get(mutant.key, ("", ""))[0] == "equivalent"
            for mutant in chosen[module]
        )
        if counts["run"]:
            _print_row(module, counts)
        sums.update(counts)
    if sums["run"]:
        _print_row("all", sums)
        dead, others = sums["killed"] + sums["took too long"], sums["run"] - sums["equivalent"]
        low, high = interval(dead, others)
        print(f"\nOf a random sample, the share of all that are killed is within {low:.1%} and {high:.1%} (95 %).")


def _print_row(name: str, counts: collections.Counter[str]) -> None:
    dead, others = counts["killed"] + counts["took too long"], counts["run"] - counts["equivalent"]
    numbers = [counts[of] for of in ("made", "left out", "run", "killed", "took too long", "survived", "equivalent")]
    share = math.floor(1000 * dead / others) / 10 if others else 100.0
    print(f"| {name} | {' | '.join(map(str, numbers))} | {share:.1f} % |")


def print_survivors(scopes: list[str], sample: int | None, seed: int) -> None:
    """Those without a reason, as entries for `SURVIVORS`."""
    known = known_survivors()
    for mutant in chosen_mutants(scopes, sample, seed):
        if mutant.outcome in ("survived", "took too long") and mutant.key not in known:
            entry = {"module": mutant.module, "function": mutant.function, "lines": mutant.lines}
            print(json.dumps({**entry, "kind": "open", "reason": mutant.outcome}, ensure_ascii=False))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["run", "report"])
    parser.add_argument("scopes", nargs="*", default=list(FOLDERS))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tests", nargs="+")
    parser.add_argument("--survivors", action="store_true")
    given = parser.parse_args()
    scopes = [scope.removeprefix("dp_transforms/").removesuffix(".py").strip("/") for scope in given.scopes]
    for scope in scopes:
        if not (ROOT / "dp_transforms" / scope).is_dir() and not (ROOT / "dp_transforms" / f"{scope}.py").is_file():
            parser.error(f"there is no folder and no module dp_transforms/{scope}")
    if given.action == "run" and given.tests:
        return run_with_tests(scopes, given.sample, given.seed, given.tests)
    if given.action == "run":
        return run(scopes, given.sample, given.seed, given.jobs, given.again)
    (print_survivors if given.survivors else report)(scopes, given.sample, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
