"""docs/tutorial.ipynb runs from its first cell to its last, and shows what it says."""

import os
import pathlib
import re
import sys

import nbclient
import nbformat

PATH = pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorial.ipynb"


def kinds_of_outputs(notebook):
    return [{each.output_type for each in cell.outputs} for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_kept_with_its_outputs_and_goes_from_a_log_to_a_page(tmp_path, monkeypatch):
    """A report without any item has a probability far below 1e-9: the largest story has 500 users in its hour."""
    notebook = nbformat.read(PATH, as_version=4)
    assert not re.search(r"u001b\[(?!\d*m)|/tmp/|/home/", PATH.read_text()), "a bar that moves, or a path"
    kept = kinds_of_outputs(notebook)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    places = {"TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}  # where the notebook makes its folder
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    done = client.execute(env={**os.environ, **places, "PATH": path})
    assert kinds_of_outputs(done) == kept
    said = nbformat.writes(done)
    for part in ("Read 100,000 rows", "(2, 1e-09)-differentially private", "<td><bdi>story-", "Page written to report"):
        assert part in said
