"""May a part run, by what its state says: which part a command is about, and why it is refused. By the ledger:
tests/ledger/test_ledger.py."""

import dataclasses

import pytest

from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.judge import check_run_of_state, part_by_state
from dp_transforms.runs.records import PublishedError, RunRefusedError, VerdictKind
from dp_transforms.runs.state_header import PartRecord, StateHeader

DAY = 86_400
SCHEDULE = WindowSchedule(0, 6 * DAY, DAY, DAY)
FIRST, SECOND = PartRecord(0, 2, "1" * 64, "/2.avro"), PartRecord(2, 3, "2" * 64, "/3.avro")
NEXT = PartRecord(3, 5, "3" * 64, "/5.avro")
NEW = StateHeader("{}", "a" * 64, "events", "run-1", "b" * 64, "user", "item")
ON_THE_WAY = dataclasses.replace(NEW, parts=(FIRST, SECOND))
BEGUN = ON_THE_WAY.with_intent(NEXT, "1.0").publishing("c" * 64)
AT_THE_END = ON_THE_WAY.after(PartRecord(3, 6, "3" * 64, "/6.avro"))


def of(record, **changes):
    """What a command asks that is about this part, but for the changes."""
    return {"end": record.end, "input_fingerprint": record.input_fingerprint, "output": record.output, **changes}


@pytest.mark.parametrize(
    ("header", "asked", "how", "record"),
    [
        (NEW, of(FIRST), VerdictKind.NEW, FIRST),
        (ON_THE_WAY, of(NEXT), VerdictKind.CONTINUES, NEXT),
        (ON_THE_WAY, of(NEXT, end=6), VerdictKind.CONTINUES, dataclasses.replace(NEXT, end=6)),
        (ON_THE_WAY, of(SECOND, output="/moved.avro"), VerdictKind.DONE, SECOND),
        (BEGUN, of(FIRST), VerdictKind.DONE, FIRST),
        (BEGUN, of(NEXT), VerdictKind.RESUMES, NEXT),
    ],
)
def test_which_part_a_command_is_about(header, asked, how, record):
    assert part_by_state(header, "run.state", SCHEDULE, version="1.0", **asked) == (how, record)


@pytest.mark.parametrize(
    ("header", "asked", "words"),
    [
        (ON_THE_WAY, of(SECOND, input_fingerprint="4" * 64), "up to 1970-01-04T00:00:00Z .* give a later --until"),
        (ON_THE_WAY, of(NEXT, end=1), "published already"),
        (AT_THE_END, of(NEXT, end=6, input_fingerprint="4" * 64), "All windows of the plan are published"),
        (BEGUN, of(NEXT, input_fingerprint="4" * 64), "another input.*--until 1970-01-06T00:00:00Z --output /5.avro"),
        (BEGUN, of(NEXT, end=6), "another --until or --output"),
        (BEGUN, of(NEXT, output="/6.avro"), "another --until or --output"),
        (BEGUN, of(NEXT, version="1.1"), r"begun by shh 1\.0 and not finished, and this is shh 1\.1"),
    ],
)
def test_what_may_not_run(header, asked, words):
    error = RunRefusedError if header.intent else PublishedError
    with pytest.raises(error, match=words):
        part_by_state(header, "run.state", SCHEDULE, **{"version": "1.0", **asked})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"plan_fingerprint": "c" * 64}, "with another plan"),
        ({"stream": "films"}, "with the stream 'events'. Give the same --stream"),
        ({"key_fingerprint": "c" * 64}, "another noise key"),
        ({"user_field": "item"}, "with --user-field 'user'"),
        ({"item_field": "user"}, "with --item-field 'item'"),
        ({"population": "news"}, r"with the --population \(none\)"),
        ({"run_id": "run-2"}, "with the run id 'run-1'. Leave --run-id out"),
    ],
)
def test_a_state_of_another_run(changed, words):
    same = {name: getattr(NEW, name) for name in ("plan_fingerprint", "stream", "user_field", "run_id")}
    check_run_of_state(ON_THE_WAY, "run.state", 6, same)
    with pytest.raises(RunRefusedError, match=f"{words}.*name a new state file"):
        check_run_of_state(ON_THE_WAY, "run.state", 6, same | changed)
    with pytest.raises(RunRefusedError, match="remove the file to begin another run there"):
        check_run_of_state(NEW, "run.state", 6, same | changed)
    with pytest.raises(RunRefusedError, match="closed beyond the end of its plan"):
        check_run_of_state(ON_THE_WAY, "run.state", 2, same)
