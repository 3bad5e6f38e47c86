"""The scenarios of all topics; a new module is found by its name."""

from __future__ import annotations

import importlib
import pathlib

from tests.privacy.scenarios import Scenario

FOLDER = pathlib.Path(__file__).parent


def collect() -> list[Scenario]:
    """All scenarios of all topics."""
    names = sorted(path.stem for path in FOLDER.glob("scenarios_*.py"))
    modules = [importlib.import_module(f"tests.privacy.{name}") for name in names]
    return [scenario for module in modules for scenario in module.SCENARIOS]
