"""Confirm: intents of partitions -> nothing; but this process learns when the engine has stored each of them.

A partition acts on an intent (`logs.streams.partition_progress`) only when no restart can forget it. It emits the name
of the intent to `ConfirmDoFn`, which runs in the same process, fused with the DoFn that emitted it. The engine calls
back there when it has stored the bundle.

Two confirmations are needed. When a checkpoint is complete, Flink calls back for all bundles that have ended by then,
including bundles that ended after the checkpoint's barrier: the first call may be for such a bundle. The second
question is asked after the first call, so the checkpoint that answers it began after the intent was stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam

_CONFIRMATIONS = 2
_ASK_AGAIN_SECONDS = 30
# Of this process: how often each intent was confirmed, and when each question was last asked, by (intent, number).
_CONFIRMED: dict[str, int] = {}
_ASKED: dict[tuple[str, int], float] = {}


def is_confirmed(intent: str) -> bool:
    """Whether the engine has surely stored the intent."""
    return _CONFIRMED.get(intent, 0) >= _CONFIRMATIONS


def must_ask(intent: str) -> bool:
    """Whether this process has not asked for the next confirmation lately. If so, it counts as asked now."""
    now, question = time.monotonic(), (intent, _CONFIRMED.get(intent, 0))
    if now - _ASKED.get(question, -_ASK_AGAIN_SECONDS) < _ASK_AGAIN_SECONDS:
        return False
    _ASKED[question] = now
    return True


def forget(intent: str) -> None:
    """Call it when the intent was acted on."""
    _CONFIRMED.pop(intent, None)
    for number in range(_CONFIRMATIONS):
        _ASKED.pop((intent, number), None)


class ConfirmDoFn(beam.DoFn):
    """Registers a `Confirmation` for each intent. Emits nothing."""

    def process(self, intent: str, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[str]:
        finalizer.register(Confirmation(intent))
        yield from ()


class Confirmation:
    """What the engine calls when it has stored the bundle. Repeated calls count once."""

    def __init__(self, intent: str) -> None:
        self._intent = intent
        self._number = _CONFIRMED.get(intent, 0) + 1

    def __call__(self) -> None:
        _CONFIRMED[self._intent] = max(self._number, _CONFIRMED.get(self._intent, 0))
