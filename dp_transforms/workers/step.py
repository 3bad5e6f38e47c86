"""What a step is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

Work = Callable[[Any, "Counter[str]"], Iterator[Any]]
"""An element, and what is counted for the operator (`operator_counts`) -> outputs."""


class Step(Protocol):
    """A step with all its settings, and without the key. Equal ones do the same. It can be pickled.

    stores: whether its outputs, pairs of a key and packed columns, are read by other steps alone.
    """

    @property
    def stores(self) -> bool: ...

    def start(self, secret: bytes) -> Work:
        """What is done once on each worker, before the first element. secret: the noise key of the run."""
        ...

    def fetched(self, element: Any, get: Callable[[bytes], bytes]) -> Any:
        """The element with its packed columns, which may lie elsewhere: ``get`` fetches them."""
        ...
