"""The examples in docstrings are tests. Their noise is fresh, and each fails with a probability below 1e-9."""

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
    """And show no key: who copies an example copies it, and whoever has read it can subtract the noise."""
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
    sources = [example.source for test in doctest.DocTestFinder().find(module) for example in test.examples]
    assert not [source for source in sources if re.search(r"SecretNoise\([^)]", source)]
