"""The shared stream is one in which every fault shows."""

import pytest

from tests.engines.stream_case import history_case, names_transcript
from tests.helpers.small_runs import SECRET, settings_of
from tests.helpers.trials import changed
from tests.reference.hits import oracle_transcript


def test_every_lost_or_doubled_charge_changes_later_reports():
    case = history_case()
    settings = settings_of(case.plan)
    expected = case.expected
    assert len(expected.reports) == case.plan.schedule.horizon
    assert len(expected.excluded) >= 50
    one_hit_more = changed(
        settings,
        hits_per_user=settings.hits_per_user + 1,
        epsilon_after_hits=(*settings.epsilon_after_hits, settings.epsilon_after_hits[-1]),
    )
    assert oracle_transcript(case.counted, one_hit_more, SECRET).reports != expected.reports
    for window in range(case.plan.schedule.horizon - 1):  # nobody asks for the charges of the last one
        for times in (0, 2):
            faulty = oracle_transcript(case.counted, settings, SECRET, charged_times={window: times}).reports
            assert faulty[:window] == expected.reports[:window]
            assert faulty[window + 1 :] != expected.reports[window + 1 :]


@pytest.mark.parametrize(
    "windows", [(0, 7, 15, 22), pytest.param(tuple(range(23)), marks=pytest.mark.nightly)], ids=["four", "all"]
)
def test_what_every_window_takes_out_of_purses_and_what_is_known_changes_later_reports(windows):
    """Lost, or taken twice, or forgotten."""
    case = history_case(mode="looks")
    expected = case.expected
    reports = expected.reports
    assert len(reports) == case.plan.schedule.horizon
    assert sum(wallet.left < case.plan.paid_contributions.units[0] for wallet in expected.wallets.values()) >= 50
    assert sum(entry.was_known for entry in expected.named) >= 50
    assert any(entry.nobody for entry in expected.named)
    for window in windows:
        for fault in ({"paid_times": {window: 0}}, {"paid_times": {window: 2}}, {"forgotten_at": window + 1}):
            faulty = names_transcript(case.counted, case.plan, **fault).reports
            assert faulty[: window + 1] == reports[: window + 1]
            assert faulty[window + 1 :] != reports[window + 1 :], fault
