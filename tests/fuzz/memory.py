"""How much memory this process took at the peak."""

from __future__ import annotations

import contextlib
import resource
import sys

_FORGOTTEN_FROM = 8 << 20  # bytes: a peak so far above what is held now is started anew


class Memory:
    """What this process takes beyond what it held before."""

    def __init__(self) -> None:
        self._forget()
        self._before, _ = _held_and_peak()

    def grown(self) -> int:
        """Bytes, at the peak since the last question, beyond what was held then."""
        held, peak = _held_and_peak()
        grown = peak - self._before
        if peak - held > _FORGOTTEN_FROM:
            self._forget()
        self._before = held
        return max(0, grown)

    def _forget(self) -> None:
        """Linux can start the peak anew; elsewhere it only grows, and the first case that reaches it is to blame."""
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")


def _held_and_peak() -> tuple[int, int]:
    """Bytes. The system's account of a process begins with what its parent had; Linux tells its own as well."""
    try:
        with open("/proc/self/status", "rb") as file:
            status = file.read()
        held, peak = (int(status.split(name)[1].split(None, 1)[0]) * 1024 for name in (b"VmRSS:", b"VmHWM:"))
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        held = peak
    return held, peak
