"""What a run must publish: the slow reference of the whole algorithm, dicts and loops, for every mode.

Its parts are beside it: oracle.py (hits), naming_oracle.py (looks), rounds_oracle.py (looks in rounds),
and pace_oracle.py (purses in the order of windows). They were written from the design, and share the
keyed functions alone with the code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dp_transforms import Plan, WindowReport
from tests.helpers.naming_oracle import oracle_names, replay_weights, reports_of
from tests.helpers.oracle import Event, oracle_transcript
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.rounds_oracle import RoundsOracle
from tests.helpers.small_runs import RUN_ID, SECRET
from tests.helpers.trials import trial_of

Held = Mapping[int, Mapping[str, Collection[str]]]  # window, user: items


def reference(
    log: Iterable[Event] | Held,
    plan: Plan,
    domain: Collection[str] = (),
    *,
    in_order: bool = False,
    ends: Sequence[int] = (),
    stream: str = "events",
) -> list[WindowReport]:
    """domain: all items, where they are known. in_order: whether purses are spent window by window, by those who do not
    know what comes; else each user's weight follows from all that it holds. Hits alone know no such difference.
    ends: where parts of the run end, on which looks in rounds depend."""
    settings = trial_of(plan, stream=stream, run_id=RUN_ID)
    keys = settings.stream_keys(SECRET)
    known = _known(log, domain)
    if settings.contributions is None:
        return oracle_transcript(known, settings, SECRET, domain).reports
    if settings.rounds is not None:
        return reports_of(RoundsOracle(known, settings, keys).names(ends), settings)
    weights = (stream_weights if in_order else replay_weights)(known, settings, keys)
    return reports_of(oracle_names(weights, settings, keys, domain), settings)


def _known(log: Iterable[Event] | Held, domain: Collection[str]) -> list[Event] | Held:
    """What is left of the log in a known domain."""
    if isinstance(log, Mapping):  # of windows, which know the domain
        return log
    return [event for event in log if not domain or event[1] in domain]
