"""The account of a run: a ledger, if one is given. The run must fit before its log is looked at, its budget is reserved
before anything is drawn, and it is finished when its report is published."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dp_transforms.cli.operator_log import tell
from dp_transforms.cli.options import LogError, Options, user_errors
from dp_transforms.errors import UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.records import Caps, LedgerError, PartRequest, RunRefusedError, Verdict, VerdictKind

if TYPE_CHECKING:
    from dp_transforms.cli.state_part import PartFacts
    from dp_transforms.runs.ledger import Ledger


class RunAccount:
    """What a ledger is told of one run; without a ledger all methods do nothing.

    Each may raise UserError, and then nothing more happens. Each call may come again for the same part, after a kill.
    facts: None for a run without a state, which is one part.
    """

    def __init__(self, ledger: Ledger | None = None, population: str = "", caps: Caps | None = None) -> None:
        self._ledger = ledger
        self._population = population
        self._caps = caps
        self._verdict: Verdict | None = None

    @classmethod
    def of_options(cls, options: Options) -> RunAccount:
        """options: of `shared_options.ACCOUNT`. Raises UserError for a ledger that cannot be opened. Without one no
        database library is loaded."""
        if options.ledger is None or options.population is None:
            return cls()
        from dp_transforms.runs.ledger import Ledger

        return cls(Ledger.open(options.ledger), options.population, caps_of(options.max_epsilon, options.max_delta))

    @property
    def is_kept(self) -> bool:
        """Whether there is a ledger."""
        return self._ledger is not None

    def check_fits(self, plan: Plan, stream: str, run_id: str | None) -> Verdict | None:
        """What a new run would take. Raises UserError if it does not fit into what is left. Before its log is looked
        for."""
        if self._ledger is None:
            return None
        request = self._request(plan, stream, run_id=run_id, input_fingerprint="", key_fingerprint="")
        return self._ledger.check_fits(request, self._caps)

    def reserve(self, facts: PartFacts) -> None:
        """Before the intent is written and the log is opened by the pipeline. Says what the run takes, and what is
        left."""
        header, record = facts.header, facts.record
        if self._ledger is None:
            return
        if facts.how == VerdictKind.DONE and (header.intent is not None or record != header.parts[-1]):
            return  # the ledger is asked about the latest part alone
        # What is done is at its end; a run that has no state yet has no fingerprint of one.
        first = header.closed_through if facts.how == VerdictKind.DONE else record.first
        end = header.closed_through if facts.how == VerdictKind.DONE else record.end
        verdict = self.reserve_part(
            facts.plan,
            stream=header.stream,
            run_id=header.run_id,
            first_window=first,
            end_window=end,
            input_fingerprint=facts.drawn_from,
            key_fingerprint=header.key_fingerprint,
            state_fingerprint=facts.state_fingerprint if header.parts else "",
        )
        if verdict.kind == VerdictKind.DONE and facts.how != VerdictKind.DONE:
            raise UserError(
                f"the state {facts.state_path} is an older copy: the ledger knows that this part is finished. Bring"
                " back the newest copy. Without it the run cannot go on; a new one has another run id and pays in full."
            )

    def reserve_whole(self, plan: Plan, stream: str, run_id: str | None, input_fingerprint: str) -> Verdict:
        """A run without a state: one part, with a key that is forgotten, so that nothing can resume it."""
        return self.reserve_part(
            plan,
            stream=stream,
            run_id=run_id,
            input_fingerprint=input_fingerprint,
            key_fingerprint=secrets.token_hex(32),
        )

    def reserve_part(self, plan: Plan, *, stream: str, **fields: Any) -> Verdict:
        """fields: of `PartRequest`; without windows, all of the plan's."""
        assert self._ledger is not None
        self._verdict = self._ledger.reserve(self._request(plan, stream, **fields), self._caps)
        tell(f"{self._verdict.line[:1].upper()}{self._verdict.line[1:]}")
        return self._verdict

    def _request(self, plan: Plan, stream: str, **fields: Any) -> PartRequest:
        with user_errors(ValueError):
            return PartRequest.of_plan(plan, population=self._population, stream=stream, **fields)

    def start(self, facts: PartFacts | None = None) -> None:
        """From here on the part counts as drawn."""
        if self._ledger:
            self._ledger.start(self._reserved)

    def finish(self, facts: PartFacts | None = None, state_fingerprint: str = "") -> None:
        """The report and the new state, with this fingerprint, are in place. The UserError says so too."""
        if self._ledger is None or self._verdict is None:  # a part that was done long ago
            return
        try:
            end = None if facts is None else facts.record.end
            self._ledger.finish(self._verdict, state_fingerprint, end)
        except RunRefusedError as error:
            raise UserError(f"{_published(facts)}, and valid: it was charged. But {error}") from None
        except LedgerError as error:
            words = f"{_published(facts)}, and valid. Only its end is not in the ledger: {error}"
            if facts:  # with a state the command finds that the part is done
                remedy = "Give the same command again: it draws nothing, and tells the ledger."
            else:
                remedy = (
                    "Do not run it again: that would be a new run, which pays. To close this one: shh ledger abandon"
                    f" {self._verdict.run_id}"
                )
            raise UserError(f"{words} {remedy}") from None

    def publishing(self, facts: PartFacts, state_fingerprint: str) -> None:
        """The report is published next, and then the new state, with this fingerprint."""
        if self._ledger:
            self._ledger.publishing(self._reserved, state_fingerprint)

    @property
    def resumes(self) -> bool:
        """Whether an earlier process has begun the part that was reserved."""
        return self._verdict is not None and self._verdict.kind == VerdictKind.RESUMES

    @property
    def was_publishing(self) -> bool:
        """Whether an earlier process has said `publishing` of the part that was reserved."""
        return self._verdict is not None and self._verdict.was_publishing

    def fail(self, facts: PartFacts | None = None, *, forget: bool = False) -> bool:
        """The part has failed, and this process has published nothing of it. forget: nor has another one, and the log
        alone is why: so it may be taken from another log. What cannot be told is said beside why it failed. Returns
        whether it was told."""
        try:
            if self._ledger:
                self._ledger.fail(self._reserved, forget=forget)
        except UserError as error:
            tell(f"The ledger could not be told that the run failed, and shows it as running: {error}")
            return False
        return True

    @contextlib.contextmanager
    def whole(self, *, is_private: bool | None = True) -> Iterator[None]:
        """Runs the block, in which all of a run without a state is drawn and published.

        is_private: whether this process alone publishes, so that it knows of a log that was refused that nothing was.
        A job on a runner publishes by itself, whatever is seen of it here: its id is never used for another log, since
        that may be two answers for one price. None: of a stream, which publishes while it runs.
        """
        has_started = False
        try:
            self.start()
            has_started = True
            yield
        except BaseException as error:
            is_of_log = has_started and isinstance(error, LogError)
            self.fail(forget=not self.resumes and (not has_started or (is_of_log and bool(is_private))))
            if is_of_log and is_private is not None:
                words = "is not for another log: its job publishes by itself, and may have done so. Another log is a"
                words += " new run, which pays."
                if is_private:
                    words = (
                        "published nothing. To use it when the log is mended: the same command with --run-id"
                        f" {self._reserved.run_id}, without --noise-key-file."
                    )
                tell(f"The run stays charged, and {words}")
            raise
        self.finish()

    @property
    def _reserved(self) -> Verdict:
        assert self._verdict is not None, "reserve comes first"
        return self._verdict


def _published(facts: PartFacts | None) -> str:
    return "what was released is published" if facts is None else f"the report {facts.record.output} is published"


def caps_of(max_epsilon: str | None, max_delta: str | None, rule: str | None = None) -> Caps | None:
    """The caps that were given; None without any. Raises UserError for half of them."""
    if max_epsilon is None and max_delta is None and rule is None:
        return None
    if max_epsilon is None or max_delta is None:
        raise UserError("--max-epsilon and --max-delta are set together, once, when a population is new.")
    return Caps(max_epsilon, max_delta, rule)
