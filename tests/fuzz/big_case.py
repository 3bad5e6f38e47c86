"""What a case of much memory or time is."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

MB = 1 << 20


@dataclasses.dataclass(frozen=True)
class BigCase:
    """write: puts the input at a path. sample: whose context the reader takes. verdict: what must come of it.

    seconds: of CPU. A case is read at the speed of its bytes: those that have gigabytes get more.
    """

    name: str
    reader: str
    sample: str
    ending: str
    write: Callable[[pathlib.Path], None]
    verdict: str = "refused"
    seconds: float = 10
    megabytes: float = 512


def as_file(data: Callable[[], bytes]) -> Callable[[pathlib.Path], None]:
    return lambda path: (path.write_bytes(data()), None)[1]
