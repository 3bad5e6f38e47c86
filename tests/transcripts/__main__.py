"""`python -m tests.transcripts write` writes data/ anew; with words after it, these modes alone."""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

from tests.transcripts.cases import MODES
from tests.transcripts.drivers import DATA, MEMBERS, ran

if __name__ == "__main__":
    assert sys.argv[1:2] == ["write"], __doc__
    for mode in sys.argv[2:] or MODES:
        found: dict[str, list[str]] = {}
        for member in MEMBERS:
            with tempfile.TemporaryDirectory() as folder:
                lines = ran(pathlib.Path(folder), mode, member)
            assert all(found.setdefault(name, lines[name]) == lines[name] for name in lines), member
        (DATA / f"{mode}.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
