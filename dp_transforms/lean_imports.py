"""What a process of ``shh`` goes without."""

from __future__ import annotations

import sys


class _WithoutPandas:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("no process of shh loads it", name=name)


def go_without_pandas() -> None:
    """For a process that is all ours. Where pandas is installed, pyarrow loads it to ask whether an array is one of its
    own, and Beam on import: a quarter of a second and 50 MB each time."""
    sys.meta_path.insert(0, _WithoutPandas)
