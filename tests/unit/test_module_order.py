"""The docstrings of `accounting`, `plan` and `audit` list their modules in order: each imports only those above it."""

import ast
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "dp_transforms"


def listed_modules(folder):
    """Names at the head of the docstring's list entries, in order."""
    text = ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text())) or ""
    heads = re.findall(r"^- ((?:`\w+`(?:, )?)+):", text, re.MULTILINE)
    return [name for head in heads for name in re.findall(r"`(\w+)`", head)]


def imported_modules(folder, module):
    """The modules of the same folder that a module imports, anywhere in it but for types; a package is one module."""
    path = PACKAGE / folder / module
    sources = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    prefix = f"dp_transforms.{folder}"
    found = set()
    for node in (node for source in sources for node in _at_run_time(ast.parse(source.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module == prefix:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{prefix}."):
            found.add((node.module or "").removeprefix(f"{prefix}.").partition(".")[0])
    return found - {module}


def _at_run_time(node):
    """All nodes but those of ``if TYPE_CHECKING``."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not (isinstance(inner, ast.If) and isinstance(inner.test, ast.Name) and inner.test.id == "TYPE_CHECKING"):
            yield from _at_run_time(inner)


def out_of_order(folder, modules):
    """Pairs of a module and one that it imports although it is not above it."""
    return [
        (module, other)
        for at, module in enumerate(modules)
        for other in sorted(imported_modules(folder, module))
        if other not in modules[:at]
    ]


@pytest.mark.parametrize(
    ("folder", "last"), [("accounting", "purse"), ("plan", "lifetime_cost"), ("audit", "exact_looks")]
)
def test_each_module_imports_only_those_above_it(folder, last):
    modules = listed_modules(folder)
    assert modules[-1] == last
    assert len(set(modules)) == len(modules) > 5
    assert out_of_order(folder, modules) == []


@pytest.mark.parametrize(
    ("folder", "first"), [("accounting", "calibration"), ("plan", "lifetime_cost"), ("audit", "exact_hits")]
)
def test_a_module_above_what_it_imports_is_found(folder, first):
    modules = listed_modules(folder)
    moved = [first, *(module for module in modules if module != first)]
    assert {module for module, _ in out_of_order(folder, moved)} == {first}
