"""No two draws of a run share a key: over purpose, secret, run, plan, stream, threshold, part, window and number.

What each key is made of: test_randomness.py.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator

import pytest

from dp_transforms.core import randomness
from dp_transforms.core.randomness import BlockFunction, ContributionOrder, ItemUniforms, StreamKeys

CONTEXTS = {
    "run_id": ("run", "run 2"),
    "plan_fingerprint": ("plan", "0"),
    "stream": ("events", "0"),
    "threshold": (0, 5),
    "part": ("", "0", "part", "5"),
}
SECRETS = (bytes(32), bytes(range(32)))
NUMBERS = (0, 1, 5, 2**40)  # of windows, rounds and uniforms; some are texts of the context, too
CHOICES = ("contribution_order", "payment_order")  # which depend on neither run nor part, so that budgets carry over


def keyed_functions() -> dict[str, int]:
    """The methods that return one, and how many numbers each takes: a new one is found here by itself."""
    found = {}
    for name, method in inspect.getmembers(StreamKeys, inspect.isfunction):
        signature = inspect.signature(method, eval_str=True)
        kinds = (BlockFunction, ItemUniforms, ContributionOrder)
        if not name.startswith("_") and signature.return_annotation in kinds:
            found[name] = len(signature.parameters) - 1
    return found


def contexts() -> Iterator[tuple[bytes, dict[str, str | int]]]:
    for secret, *values in itertools.product(SECRETS, *CONTEXTS.values()):
        yield secret, dict(zip(CONTEXTS, values, strict=True))


def test_no_two_draws_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: count for name, count in keyed_functions().items() if name not in CHOICES}
    assert {"pass_uniforms", "window_uniforms", "round_uniforms", "block_uniforms"} <= names.keys()
    derived: list[bytes] = []
    derive = randomness.derive_key
    monkeypatch.setattr(randomness, "derive_key", lambda *parts: derived.append(derive(*parts)) or derived[-1])
    keys = []
    for secret, context in contexts():
        of_run = StreamKeys(secret, **context)
        for name, arguments in names.items():
            for numbers in itertools.product(NUMBERS, repeat=arguments):
                derived.clear()
                getattr(of_run, name)(*numbers)
                keys += derived
    assert len(set(keys)) == len(keys) > 3_000
