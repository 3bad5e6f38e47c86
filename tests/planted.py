"""Faults that are put into the code one by one, each of which some tests must find.

    python -m tests.planted [NAME ...] [--jobs N] [--list]

tests/planted.toml has them: every fault that was once planted to see whether tests find it, and every one that was
found by reading. Each changes one place, and names the tests that must fail. Each runs in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "demo", "mutants", "*.egg-info", "__pycache__")
_FAILED = 1  # pytest's exit code where tests ran and some failed; others say that it did not come so far


@dataclasses.dataclass(frozen=True)
class Fault:
    """name: what is wrong then. file: in the checkout. old: stands in it once; new: what is put there. tests: each of
    them must fail, as node ids or files."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def misfit(self) -> str:
        """Why it cannot be planted; nothing if it can."""
        path = ROOT / self.file
        count = path.read_text().count(self.old) if path.exists() else 0
        missing = [test for test in self.tests if not _exists(*test.partition("[")[0].split("::"))]
        if count != 1:
            return f"the old text stands {count} times in {self.file}"
        if self.old == self.new or not self.tests:
            return "it changes nothing, or no test has to find it"
        return f"there is no {missing[0]}" if missing else ""

    def unfound(self, checkout: pathlib.Path) -> list[str]:
        """The tests that do not fail with it, in a copy of the checkout."""
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(checkout, pathlib.Path(folder) / "checkout")
            changed = copy / self.file
            changed.write_text(changed.read_text().replace(self.old, self.new))
            return [test for test in self.tests if _outcome(copy, test) != _FAILED]


def _exists(path: str, *names: str) -> bool:
    return (ROOT / path).exists() and (not names or f"def {names[-1]}(" in (ROOT / path).read_text())


def _outcome(checkout: pathlib.Path, test: str) -> int:
    words = ["-m", "pytest", "-q", "-x", "-n0", "-m", "", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *words], cwd=checkout, env=environment, capture_output=True).returncode


def faults() -> list[Fault]:
    listed = tomllib.loads((ROOT / "tests" / "planted.toml").read_text())["fault"]
    return [Fault(**{**fault, "tests": tuple(fault["tests"])}) for fault in listed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults whose names contain one of these; all without")
    parser.add_argument("--jobs", type=int, default=2, help="at once")
    parser.add_argument("--list", action="store_true", help="their names alone")
    asked = parser.parse_args()
    chosen = [fault for fault in faults() if not asked.names or any(name in fault.name for name in asked.names)]
    if asked.list:
        print("\n".join(fault.name for fault in chosen))
        return 0
    misfits = [f"{fault.name}: {why}" for fault in chosen if (why := fault.misfit())]
    if misfits:
        print("\n".join(misfits))
        return 1
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool, tempfile.TemporaryDirectory() as folder:
        checkout = shutil.copytree(ROOT, pathlib.Path(folder) / "checkout", ignore=_NOT_COPIED)
        unfound = 0
        for fault, tests in zip(chosen, pool.map(lambda each: each.unfound(checkout), chosen), strict=True):
            print(f"{'NOT FOUND by ' + ', '.join(tests) if tests else 'found'}: {fault.name}", flush=True)
            unfound += bool(tests)
    print(f"{len(chosen) - unfound} of {len(chosen)} faults are found.")
    return int(unfound > 0)


if __name__ == "__main__":
    sys.exit(main())
