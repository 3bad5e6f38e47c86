"""The examples in docstrings are tests: each module that has some is run.

Their noise is fresh, and their margins so wide that each fails with a probability below 1e-9.
"""

import doctest
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "dp_transforms").rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_say_what_happens(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_no_example_shows_a_key():
    """Who copies an example copies its key, and whoever has read it can subtract the noise from what is published."""
    assert len(MODULES) > 5
    found = []
    for name in MODULES:
        for test in doctest.DocTestFinder().find(importlib.import_module(name)):
            found += [name for example in test.examples if re.search(r"SecretNoise\([^)]", example.source)]
    assert not found


@pytest.mark.parametrize("code", ["noise = SecretNoise(bytes(32))", "f(SecretNoise(key))"])
def test_a_key_in_an_example_would_be_found(code):
    assert re.search(r"SecretNoise\([^)]", code)
