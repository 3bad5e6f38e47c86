"""Headers of states, the fingerprints that bind a run to its log and key, and which part may run by them."""

import dataclasses
import json
import subprocess
import sys

import pytest

from dp_transforms.core.planned_run import fresh_nonce
from dp_transforms.logs import ending_of_log
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.fingerprints import InputFingerprint, input_key, key_fingerprint, sealing_key
from dp_transforms.runs.judge import check_run_of_state, part_by_state
from dp_transforms.runs.records import PublishedError, RunRefusedError, StateError, VerdictKind
from dp_transforms.runs.state_file import hold_state, write_state
from dp_transforms.runs.state_header import MOST_HEADER_BYTES, MOST_PARTS, PartRecord, StateHeader
from tests.helpers.small_runs import SECRET

PART = PartRecord(0, 3, "1" * 64, "/reports/3.avro")
HEADER = StateHeader("{}", "a" * 64, "events", "run-1", "b" * 64, "user", "item", "", (PART,))
KEY = bytes(32)
NONCE = "e" * 32


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": (PartRecord(1, 3, "1" * 64, "x"),)},
        {"parts": (PART, PART)},
        {"parts": (PART, PartRecord(4, 5, "1" * 64, "x"))},
        {"intent": PartRecord(2, 4, "1" * 64, "x")},
        {"run_id": ""},
        {"run_id": "a\nb"},
        {"key_fingerprint": "B" * 64},
        {"plan": ""},
        {"parts": tuple(PartRecord(end - 1, end, "1" * 64, "x") for end in range(1, MOST_PARTS + 2))},
    ],
)
def test_a_header_that_no_run_can_have_is_refused(changes):
    with pytest.raises(ValueError, match=r"must|can be"):
        dataclasses.replace(HEADER, **changes)
    fields = json.loads(HEADER.to_json()) | {
        name: json.loads(json.dumps(value, default=dataclasses.asdict)) for name, value in changes.items()
    }
    with pytest.raises(StateError, match="damaged"):
        StateHeader.from_json(json.dumps(fields))


def test_a_header_of_any_other_text_is_refused():
    for text in ("", "x", "{}", "[]", "null", "7", '{"format_version": true}', "[" * 100_000, "9" * 5_000):
        with pytest.raises(StateError, match=r"damaged|format version no number"):
            StateHeader.from_json(text)


def test_headers_follow_the_parts_of_a_run():
    begun = StateHeader("{}", "a" * 64, "events", "run-1", "b" * 64, "user", "item")
    intended = begun.with_intent(PART)
    assert StateHeader.from_json(intended.to_json()) == intended
    after = intended.after(PART)
    assert (after.closed_through, after.parts, after.intent) == (3, (PART,), None)
    third = PartRecord(3, 5, "2" * 64, "y")
    after = after.with_intent(third, draws_as=NONCE).after(third)
    assert (after.closed_through, after.parts) == (5, (PART, third))
    assert StateHeader.from_json(after.to_json()) == after


def test_a_header_has_a_bound_however_many_parts_its_run_has():
    """What was done is known as long as it is kept."""
    path = "/" + "x" * 4095
    parts = tuple(PartRecord(end - 1, end, f"{end:064x}", path) for end in range(8, 8 + MOST_PARTS))
    header = dataclasses.replace(HEADER, parts=parts)
    begin = header.closed_through
    new = PartRecord(begin, begin + 1, "7" * 64, path)
    after = header.with_intent(new, "0.1.0", NONCE).after(new)
    assert StateHeader.from_json(after.to_json()) == after
    assert (after.parts, after.closed_through) == ((*parts[1:], new), begin + 1)
    assert header.finished(8, parts[0].input_fingerprint) == parts[0]
    assert after.finished(8, parts[0].input_fingerprint) is None  # forgotten: its windows are refused as published
    assert after.finished(begin + 1, "7" * 64) == new
    assert after.finished(begin + 1, "8" * 64) is None


def test_a_header_that_could_not_be_read_again_is_not_written(tmp_path):
    large = dataclasses.replace(HEADER, plan="x" * (MOST_HEADER_BYTES - 900))
    assert StateHeader.from_json(large.to_json()) == large
    begun = large.with_intent(PartRecord(3, 4, "2" * 64, "y" * 400), "0.1.0", NONCE)
    with pytest.raises(StateError, match="would be too large"):
        write_state(tmp_path / "state", begun, [], KEY)
    assert not list(tmp_path.iterdir())


def test_what_was_to_follow_is_forgotten_with_the_intent():
    begun = HEADER.with_intent(PartRecord(3, 5, "2" * 64, "y"), "0.1.0", NONCE)
    publishing = begun.publishing("c" * 64)
    assert StateHeader.from_json(publishing.to_json()) == publishing
    assert publishing.with_intent(None) == HEADER
    assert publishing.after(publishing.intent).next_fingerprint == ""
    for changes in ({"intent": None}, {"begun_by": 1}, {"next_fingerprint": "c"}, {"user_field": ""}):
        with pytest.raises(ValueError, match="must"):
            dataclasses.replace(publishing, **changes)


def test_a_later_part_begins_with_a_nonce_and_no_other_part_has_one():
    """Without it, it would draw the noise of the run."""
    first, later = PartRecord(0, 2, "1" * 64, "/2.avro"), PartRecord(3, 5, "2" * 64, "y")
    new = dataclasses.replace(HEADER, parts=())
    begun = HEADER.with_intent(later, "0.1.0", fresh_nonce())
    assert StateHeader.from_json(begun.to_json()).draws_as == begun.draws_as
    assert new.with_intent(first).draws_as == HEADER.draws_as == begun.after(later).draws_as == ""
    for header, intent, nonce in (
        *((HEADER, later, nonce) for nonce in ("", "E" * 32, "e" * 31, "e" * 64, 7)),
        (new, first, NONCE),
        (HEADER, None, NONCE),
    ):
        with pytest.raises(ValueError, match="draws_as must"):
            header.with_intent(intent, "0.1.0" if intent else "", nonce)
    assert len({fresh_nonce() for _ in range(1000)}) == 1000


def test_the_fingerprint_of_a_log_is_that_of_its_content_how_it_is_read_and_the_key(tmp_path):
    for name, content in (("a", b"1"), ("b", b"2"), ("copy of a", b"1")):
        (tmp_path / name).write_bytes(content)

    def text(*names, read_as="csv", reading=("user", "item"), key=None):
        return InputFingerprint([(str(tmp_path / name), read_as) for name in names], reading, key).text

    assert text("a", "b") == text("b", "a", "a") == text("copy of a", "b")
    different = [
        *(text("a"), text("a", "b"), text("a", "copy of a"), text("b"), text()),
        *(text("a", reading=reading) for reading in (("item", "user"), ("us", "er"), ("use", "r"))),
        # The same bytes are other rows in another format, or if they are uncompressed first.
        *(text("a", read_as=ending_of_log(f"log.{name}")) for name in ("tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz")),
        # Without the key nobody can try guesses of the log.
        *(text("a", key=input_key(secret)) for secret in (SECRET, SECRET + b"x")),
    ]
    assert len(set(different)) == len(different)
    assert text("a", key=input_key(SECRET)) == different[-2]
    assert ending_of_log("log.CSV.GZ") == ending_of_log("log.csv.gz")


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StateError, match="cannot be read"):
        _ = InputFingerprint([(str(tmp_path / "log"), "")], []).text


def test_the_fingerprint_of_a_key_is_no_key_of_the_run():
    found = key_fingerprint(SECRET)
    assert len(found) == 64
    assert found != key_fingerprint(SECRET + b"x")
    assert SECRET.hex() not in found
    assert len({found, sealing_key(SECRET).hex(), input_key(SECRET).hex()}) == 3


def test_one_process_at_a_time_holds_a_state(tmp_path):
    """Until it ends, however it ends."""
    program = (
        "import sys, time\nfrom dp_transforms.runs.state_file import hold_state\n"
        "with hold_state(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(100)"
    )
    path = str(tmp_path / "state")
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(StateError, match="another process works on it"), hold_state(path):
                pass
        finally:
            other.kill()
            other.wait()
    with hold_state(path), pytest.raises(StateError), hold_state(path):
        pass
    (tmp_path / ".linked.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StateError, match="cannot be made"), hold_state(tmp_path / "linked"):
        pass
    assert not (tmp_path / "victim").exists()


DAY = 86_400
SCHEDULE = WindowSchedule(0, 6 * DAY, DAY, DAY)
FIRST, SECOND = PartRecord(0, 2, "1" * 64, "/2.avro"), PartRecord(2, 3, "2" * 64, "/3.avro")
NEXT = PartRecord(3, 5, "3" * 64, "/5.avro")
NEW = StateHeader("{}", "a" * 64, "events", "run-1", "b" * 64, "user", "item")
ON_THE_WAY = dataclasses.replace(NEW, parts=(FIRST, SECOND))
BEGUN = ON_THE_WAY.with_intent(NEXT, "1.0", NONCE).publishing("c" * 64)
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
