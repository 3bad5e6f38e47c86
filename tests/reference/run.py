"""The reports of a run, in every mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dp_transforms import Plan, WindowReport
from tests.helpers.small_runs import RUN_ID, SECRET
from tests.helpers.trials import trial_of
from tests.reference.budgets import replay_weights, stream_weights
from tests.reference.contributions import oracle_names, reports_of
from tests.reference.hits import oracle_transcript
from tests.reference.log import Event, Held
from tests.reference.rounds import RoundsOracle
from tests.reference.two_tests import TwoTestsOracle


def reference(
    log: Iterable[Event] | Held,
    plan: Plan,
    public: Collection[str] = (),
    *,
    in_order: bool = False,
    ends: Sequence[int] = (),
    stream: str = "events",
) -> list[WindowReport]:
    """public: all items, unless open ones count, too. in_order: whether budgets are spent window by window, by
    those who do not know what comes; else each user's weight follows from all that it holds. Hits alone know no such
    difference. ends: where parts of the run end, on which rounds depend."""
    settings = trial_of(plan, stream=stream, run_id=RUN_ID)
    keys = settings.stream_keys(SECRET)
    if public and not settings.takes_open_items and not isinstance(log, Mapping):  # windows know the public items
        log = [event for event in log if event[1] in public]
    if settings.contributions is None:
        return oracle_transcript(log, settings, SECRET, public).reports
    if settings.rounds is not None:
        return reports_of(RoundsOracle(log, settings, keys, public).names(ends), settings)
    if settings.second_test is not None:
        return reports_of(TwoTestsOracle(log, settings, keys).names(), settings)
    weights = (stream_weights if in_order else replay_weights)(log, settings, keys)
    return reports_of(oracle_names(weights, settings, keys, public), settings)
