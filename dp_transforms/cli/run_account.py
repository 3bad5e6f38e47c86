"""The account of a run in a ledger, if one is given: the run must fit before its log is looked at, its budget is
reserved before anything is drawn, and it is finished when its report is published."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import LogError, Options, user_errors
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.records import LedgerError, PartRequest, RunRefusedError, Verdict

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
        if options.ledger is None or options.population is None:
            return cls()
        from dp_transforms.runs.ledger import Ledger

        return cls(Ledger(options.ledger), options.population, options.caps)

    def check_fits(self, plan: Plan, stream: str, run_id: str) -> None:
        """Raises UserError if a new run does not fit into what is left. Before its log is looked for."""
        if self.ledger is not None:
            self.ledger.check_fits(self.request(plan, stream, run_id), self.caps)

    def request(self, plan: Plan, stream: str, run_id: str, input_fingerprint: str = "") -> PartRequest:
        """Of a run without a state: one part, with a key that is forgotten, so that nothing can resume it."""
        with user_errors(ValueError):
            return PartRequest.whole(plan, input_fingerprint, run_id=run_id, stream=stream, population=self.population)

    @contextlib.contextmanager
    def whole(self, request: PartRequest, *, is_private: bool | None = True) -> Iterator[str]:
        """Reserves a run without a state, says what it takes, and runs the block, in which all of it is drawn and
        published, with the id of the run.

        is_private: whether this process alone publishes, so that it knows of a log that was refused that nothing was.
        A job on a runner publishes by itself, whatever is seen of it here: its id is never used for another log, since
        that may be two answers for one price. None: of a stream, which publishes while it runs.
        """
        assert self.ledger is not None
        verdict = self.ledger.reserve(request, self.caps)
        tell_verdict(verdict)
        try:
            self.ledger.start(verdict)
            yield verdict.run_id
        except BaseException as error:
            is_of_log = isinstance(error, LogError)
            tell_failure(self.ledger, verdict, forget=is_of_log and bool(is_private))
            if is_of_log and is_private:
                tell(
                    "The run stays charged, and published nothing. To use it when the log is mended: the same command"
                    f" with --run-id {verdict.run_id}, without --noise-key-file."
                )
            elif is_of_log and is_private is not None:
                tell(
                    "The run stays charged, and is not for another log: its job publishes by itself, and may have done"
                    " so. Another log is a new run, which pays."
                )
            raise
        finish(
            self.ledger,
            verdict,
            "what was released",
            "Do not run it again: that would be a new run, which pays. To close this one: shh ledger --ledger FILE"
            f" --end {verdict.run_id}",
        )


def tell_verdict(verdict: Verdict) -> None:
    if line := verdict.line:
        tell(f"{line[:1].upper()}{line[1:]}")


def tell_failure(ledger: Ledger, verdict: Verdict, *, forget: bool) -> None:
    """What cannot be told is said beside why it failed. forget: as in `Ledger.fail`."""
    try:
        ledger.fail(verdict, forget=forget)
    except UserError as error:
        tell(f"The ledger could not be told that the run failed, and shows it as running: {error}")


def finish(ledger: Ledger, verdict: Verdict, published: str, remedy: str, state_fingerprint: str = "") -> None:
    """The report and the new state, with this fingerprint, are in place. The UserError says so too. published: what.
    remedy: where only its end cannot be told."""
    try:
        ledger.finish(verdict, state_fingerprint)
    except RunRefusedError as error:
        raise UserError(f"{published} is published, and valid: it was charged. But {error}") from None
    except LedgerError as error:
        words = f"{published} is published, and valid. Only its end is not in the ledger: {error}"
        raise UserError(f"{words} {remedy}") from None
