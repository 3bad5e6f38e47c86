"""Programs that kill themselves at the n-th of the calls that matter, before or after it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class DyingProgram:
    """Takes n from the command line, as its first argument. calls: how many moments there were until now."""

    def __init__(self) -> None:
        self._at = int(sys.argv.pop(1))
        self._lock = threading.RLock()
        self.calls = 0

    def dies_at(self, owner: Any, *names: str) -> None:
        """The functions of these names count from now on."""
        for name in names:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def and_perhaps_die(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._count()
                result = function(*arguments, **options)
                self._count()
                return result

        return and_perhaps_die

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
