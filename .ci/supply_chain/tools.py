"""The environment of pip-audit and cyclonedx-bom, made when it is first needed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")
# What pip and requests say if nobody answers. Any other failure is an error.
_NO_ANSWER = ("after connection broken by", "ConnectionError", "Max retries exceeded", "NameResolutionError", "Timeout")


class NoAnswerError(Exception):
    """No registry or service answers here: nothing is known, and nothing is wrong."""


def is_no_answer(said: str) -> bool:
    return any(words in said for words in _NO_ANSWER)


def tools_folder() -> pathlib.Path:
    """``SHH_SUPPLY_CHAIN``, or ``.supply-chain`` of this checkout."""
    return pathlib.Path(os.environ.get("SHH_SUPPLY_CHAIN") or ROOT / ".supply-chain")


def tool(name: str) -> str:
    """The program; installs it first if necessary. Raises NoAnswerError, and RuntimeError if the installation fails."""
    folder = tools_folder()
    made = folder / ".made"
    if not made.exists() or made.read_bytes() != REQUIREMENTS.read_bytes():
        if not (folder / "bin" / "python").exists():
            run([sys.executable, "-m", "venv", str(folder)])
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*install, "--retries=1", "--timeout=20", "--requirement", str(REQUIREMENTS)])
        made.write_bytes(REQUIREMENTS.read_bytes())
    return str(folder / "bin" / name)


def run(words: list[str], *, may_find: bool = False) -> str:
    """The output of a program. Raises NoAnswerError or RuntimeError where it fails.

    may_find: exit code 1 with output means that it found something, not that it failed.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not (may_find and done.returncode == 1 and done.stdout.strip()):
        if is_no_answer(done.stderr):
            raise NoAnswerError(f"{pathlib.Path(words[0]).name} reached nobody")
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
