"""Links and citations lead somewhere. That the site builds without a warning: `make docs`, which `.ci/run` calls."""

from __future__ import annotations

import ast
import pathlib
import pydoc
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
RUNNERS = sorted((ROOT / "runners").glob("*/*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def without_code(text):
    return re.sub(r"`[^`\n]*`", "`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    """As GitHub makes them of headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")
        found.add(anchor if anchor not in found else f"{anchor}-1")
    return found


def broken_links(path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", [*DOCUMENTS, *RUNNERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path):
    assert not broken_links(path)


def names_in(text):
    """Headings, and what stands in bold: theorems, lemmas, claims."""
    bold = re.findall(r"\*\*([^*]+?)[.:]?\*\*", text)
    return {" ".join(name.split()) for name in (*re.findall(r"^#+ (.+)$", text, re.MULTILINE), *bold)}


def wrong_citations(text):
    """``docs/guarantee.md, "Theorem of the game"`` in a docstring: that page has that name. Numbers would go stale."""
    text, wrong = re.sub(r"\s+(?:#:? )?", " ", text), []
    for page, number, names in re.findall(r'docs/(\w+\.md)(,? sections? \d)?((?:(?:,| and) "[^"]+")*)', text):
        target = ROOT / "docs" / page
        known = names_in(target.read_text()) if target.exists() else set()
        wrong += [f"{page}{number}"] if number or not known else []
        wrong += [f"{page}: {name}" for name in re.findall('"([^"]+)"', names) if name not in known]
    return wrong


def test_code_cites_pages_and_theorems_that_exist():
    for folder in ("dp_transforms", "pipelines", "tests", "benchmarks", "examples"):
        for path in {*(ROOT / folder).rglob("*.py")} - {pathlib.Path(__file__)}:
            assert not wrong_citations(path.read_text()), path


def test_each_theorem_names_its_code_and_tests_and_the_code_its_theorem():
    """The lines ``Code: core/x.py `name`, ...; test: unit/test_x.py.``"""
    pages = "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("guarantee", "proofs"))
    lines = re.findall(r"^Code: ((?:.+\n)+)", pages, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        code, _, tests = " ".join(line.split()).rstrip(".").partition("; test: ")
        assert all((ROOT / "tests" / test.removeprefix("tests/")).exists() for test in tests.split(", ")), tests
        for path, names in re.findall(r"([\w/]+\.py) ([^;]+)", code):
            tree = ast.parse((ROOT / "dp_transforms" / path).read_text())
            defined = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
            for name in re.findall(r"`(\w+)`", names):
                words = f"{ast.get_docstring(tree)} {ast.get_docstring(defined[name])}"
                cites = re.search(r"docs/(guarantee|proofs)\.md,\s", words)
                assert cites or not path.startswith(("accounting/", "core/")), f"{path}, {name} names no theorem"


def test_files_and_modules_that_the_documents_name_exist():
    """Files from the root of the repository, or from a package: core/steps.py is one of dp_transforms."""
    path = re.compile(r"(?<![\w/.-])((?:\w+/)+[\w.-]*\w\.(?:py|md|java|json|yaml|ipynb))\b")
    module = re.compile(r"(?<![\w.])dp_transforms(?:\.\w+)+")
    roots = [ROOT, ROOT / "dp_transforms", ROOT / "dp_transforms" / "papers", ROOT / "tests"]
    for page in (page for page in (*DOCUMENTS, *RUNNERS) if page.name != "CHANGELOG.md"):
        text = page.read_text()
        missing = [name for name in path.findall(text) if not any((root / name).exists() for root in roots)]
        missing += [name for name in module.findall(text) if pydoc.locate(name) is None]
        assert all(name.startswith(("benchmarks/results", "dist/")) for name in missing), (page, missing)
