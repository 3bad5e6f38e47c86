import pathlib
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def short_folder() -> Iterator[pathlib.Path]:
    """A temporary folder with so short a path that a socket can be in it; pytest's own ones are longer."""
    with tempfile.TemporaryDirectory(prefix="shh-") as folder:
        yield pathlib.Path(folder)
