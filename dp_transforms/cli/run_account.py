"""The account of a run in a ledger, if one is given: the run must fit, and its budget is reserved, before anything is
drawn, and it is finished when its report is published."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import Options
from dp_transforms.core.planned_run import fresh_run_id
from dp_transforms.errors import LogError, UserError
from dp_transforms.runs.records import PartRequest, Verdict

if TYPE_CHECKING:
    from dp_transforms.runs.ledger import Caps, Ledger


@dataclasses.dataclass(frozen=True)
class RunAccount:
    """ledger: of the population; None without one. caps: that were given for it."""

    ledger: Ledger | None = None
    population: str = ""
    caps: Caps | None = None

    @classmethod
    def of_options(cls, options: Options) -> RunAccount:
        """options: of `options.ACCOUNT`. Raises UserError. Without a ledger no database library is loaded."""
        if options.ledger is None:
            return cls()
        from dp_transforms.runs.ledger import Ledger

        return cls(Ledger(options.ledger), options.population, options.caps)

    @contextlib.contextmanager
    def whole(self, request: PartRequest, *, is_private: bool = True) -> Iterator[str]:
        """Reserves a run without a state, says what it takes, and runs the block, in which all of it is drawn and
        published, with the id of the run. Without a ledger it runs the block.

        is_private: whether this process alone publishes, at the end, so that it knows of a log that was refused that
        nothing was. Others may have read what a stream or a job on a runner has published, whatever is seen of it here:
        the id of the run is never used for another log then, since that may be two answers for one price.
        """
        if self.ledger is None:
            yield request.run.run_id or fresh_run_id()
            return
        verdict = self.ledger.reserve(request, self.caps)
        tell(verdict.line)
        run_id = verdict.run_id
        end = f"To close this run: shh ledger --ledger FILE --end {run_id}"
        try:
            with drawn(self.ledger, verdict, end, is_private=is_private):
                yield run_id
        except LogError:
            again = "is not for another log: its job publishes by itself, and may have done so."
            if is_private:
                again = f"published nothing: for a mended log give --run-id {run_id}, without --noise-key-file."
            tell(f"The run stays charged, and {again}")
            raise


@contextlib.contextmanager
def drawn(
    ledger: Ledger, verdict: Verdict, remedy: str, *, is_private: bool = True, left: Callable[[], str] = str
) -> Iterator[None]:
    """Runs the block, in which a part is drawn and published, between its start record and its end or failure.

    A part that failed by its log alone is forgotten (`Ledger.fail`): where the failure may depend on the noise, another
    log must not be drawn for with the same noise. remedy: what to do where the ledger cannot be told that it is
    published. is_private: as of `RunAccount.whole`. left: the fingerprint of the state that it leaves.
    """
    try:
        ledger.start(verdict)
        yield
    except BaseException as error:
        try:
            ledger.fail(verdict, forget=is_private and isinstance(error, LogError))
        except UserError as failure:  # said beside why the part failed
            tell(f"The ledger could not be told that the run failed, and shows it as running: {failure}")
        raise
    try:
        ledger.finish(verdict, left())
    except UserError as error:
        raise UserError(
            f"what was released is published, and valid. Only its end is not in the ledger: {error} Do not begin it as"
            f" a new run, which pays. {remedy}"
        ) from None
