"""How much memory this process took at the peak."""

from __future__ import annotations

import contextlib
import resource
import sys


class Memory:
    """What this process takes beyond what it had when this was made, at its peak since the last question."""

    def __init__(self) -> None:
        self._forget()
        self._before = _peak()

    def grown(self) -> int:
        grown = _peak() - self._before
        if grown > 32 << 20:
            self._forget()
        return max(0, grown)

    def _forget(self) -> None:
        """Linux can start the peak anew; elsewhere it only grows, and the first case that reaches it is to blame."""
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")


def _peak() -> int:
    """Bytes. The system's account of a process begins with what its parent had; Linux tells its own as well."""
    try:
        with open("/proc/self/status", "rb") as file:
            return int(file.read().split(b"VmHWM:")[1].split(None, 1)[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
