"""``python -m tests.canaries.driver WORDS``: runs ``shh`` and writes what its pipelines are made of into the home."""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from dp_transforms.cli.main import main
from tests.canaries.traces import Recorded

if __name__ == "__main__":
    recorded = Recorded(pytest.MonkeyPatch())
    try:
        main(sys.argv[1:])
    finally:
        folder = pathlib.Path(os.environ["HOME"]) / "recorded"
        folder.mkdir()
        for name, data in recorded.places.items():
            (folder / name).write_bytes(data)
