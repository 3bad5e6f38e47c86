"""A private computation whose results a test writes down."""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_transforms.papers.noise_source import NoiseSource


@dataclasses.dataclass
class Scripted:
    """Returns its results one after the other, and counts how often it was run."""

    results: list[Any]
    epsilon: float = 0.5
    delta: float = 0.0
    runs: int = 0

    def run(self, data: Any, noise: NoiseSource) -> Any:
        self.runs += 1
        return self.results[self.runs - 1]
