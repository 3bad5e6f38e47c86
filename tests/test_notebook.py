"""docs/tutorial.ipynb runs from its first cell to its last, and shows what it says."""

import os
import pathlib
import re
import sys

import nbclient
import nbformat

PATH = pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorial.ipynb"


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds_of(cell):
    return {output.output_type for output in cell.outputs}


def html_of(cell):
    (shown,) = [output.data for output in cell.outputs if output.output_type == "execute_result"]
    return shown["text/html"]


def test_it_is_kept_with_its_outputs_and_goes_from_a_log_to_a_page(tmp_path, monkeypatch):
    """A report without any item has a probability far below 1e-9: the largest story has 500 users in its hour."""
    notebook = nbformat.read(PATH, as_version=4)
    nbformat.validate(notebook)
    text = PATH.read_text()
    assert len(text) < 60_000
    assert not re.search(r"u001b\[(?!\d*m)|/tmp/|/home/", text), "a bar that moves, or a path"
    kept = [kinds_of(cell) for cell in code_of(notebook)]
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    places = {"TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}  # where the notebook makes its folder
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    done = client.execute(env={**os.environ, **places, "PATH": path})
    assert [kinds_of(cell) for cell in code_of(done)] == kept
    said = "".join(output.get("text", "") for cell in code_of(done) for output in cell.outputs)
    assert "Read 100,000 rows" in said
    assert "\x1b[2K" not in said, "a bar that moves"
    cells = {cell.source.splitlines()[-1]: cell for cell in code_of(done)}
    assert "(2, 1e-09)-differentially private" in html_of(cells["plan"])
    assert re.search(r"<bdi>[a-z]+-\d+</bdi></td><td><bdi>at least [\d,]+<", html_of(cells["report"]))
    assert "<td><bdi>story-" in html_of(cells["report.windows[-1]"])
    assert "Page written to report.html." in said
    (replayed,) = [cell for source, cell in cells.items() if source.startswith("!shh replay")]
    assert "differentially private" in "".join(output.get("text", "") for output in replayed.outputs)
