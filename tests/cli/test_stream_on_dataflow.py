"""`shh stream` on Dataflow and with Pub/Sub, as far as it goes without either."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from apache_beam.io.gcp import pubsub
from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.timestamp import Timestamp

from dp_transforms import EventFields, WindowSchedule
from dp_transforms.beam.read_events import CollectEventsDoFn
from dp_transforms.cli.stream_pubsub import item_of, user_and_item, user_of
from dp_transforms.logs.streams.record_formats import BROKEN_RECORD, record_decoder
from tests.cli.stream_words import CLOUD, DATAFLOW, HOURS, PLAN, PUBSUB, SECRET, START, SUBSCRIPTION, run
from tests.helpers.names_plans import names_plan_of
from tests.neighbours.kafka_records import hostile_json


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pubsub_words() -> list[str]:
    return [
        *("--pubsub-subscription", SUBSCRIPTION, "--output-topic", "r", "--output-kafka", "localhost:9"),
        *(*SECRET, *PLAN),
    ]


@pytest.mark.parametrize(
    ("beam_words", "messages"),
    [
        ([], ["--project", "--region", "--temp_location"]),
        (CLOUD[:-1], ["--sdk_container_image"]),
        ([*CLOUD, "--project=No", "--dry_run=true"], ["Invalid Project ID"]),
    ],
)
def test_what_dataflow_misses_is_named(
    beam_words: list[str], messages: list[str], folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run([*pubsub_words(), *beam_words], capsys)
    assert code == 1
    for part in messages:
        assert part in err.splitlines()[-1]


def test_names_on_pubsub_are_refused_with_a_remedy(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = names_plan_of(WindowSchedule.fixed(START, START + 3600 * HOURS, 3600))
    (folder / "names.json").write_text(plan.to_json())
    code, out, err = run([*DATAFLOW, *PUBSUB, "--plan", "names.json", *CLOUD, "--dry_run=true"], capsys)
    assert (code, out) == (1, "")
    assert "--release names cannot read --pubsub-subscription" in err
    assert "--kafka or --folder" in err


def test_a_dry_run_on_dataflow_builds_the_job_and_sends_nothing(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    pytest.importorskip("google.cloud.pubsub", reason="Google's client is missing: pip install -e '.[dev]'")
    code, out, err = run([*pubsub_words(), *CLOUD, "--dry_run=true"], capsys)
    assert code == 0, err
    assert out == ""
    assert "Nothing was sent" in err


def test_pubsub_without_its_client_names_the_extra(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pubsub, "pubsub", None)  # what Beam has without the extra
    code, _, err = run([*pubsub_words(), *CLOUD, "--dry_run=true"], capsys)
    assert code == 1
    assert "pip install '.[gcp]'" in err


def _rejected(message: bytes) -> str | None:
    """Why the transform rejects a message; None if it counts. Each message is in a bundle of its own."""
    collect = CollectEventsDoFn(user_of, item_of)
    collect.start_bundle()
    list(collect.process(user_and_item(message, EventFields()), Timestamp(micros=0)))
    reasons = [out.value.value.reason for out in collect.finish_bundle() if isinstance(out, TaggedOutput)]
    return reasons[0] if reasons else None


def test_messages_are_rejected_for_the_reasons_of_json_lines() -> None:
    """But for their time, which is when Pub/Sub received them."""
    messages = [message for message in hostile_json() if message is not None]
    decoder = record_decoder("json", EventFields())
    expected = []
    for message in messages:
        rejected = decoder.decode("topic:0", [message], np.zeros(1, np.int64)).rejected
        expected.append(next((part.reason for part in rejected if not part.reason.endswith(" time")), None))
    assert [_rejected(message) for message in messages] == expected
    assert expected.count(None) > 20
    assert expected.count(BROKEN_RECORD) > 50
    assert len(set(expected)) > 6


def test_double_keys_nan_and_utf_16_are_no_messages() -> None:
    fine = b'{"user": "u", "item": 7, "more": []}'
    assert user_and_item(fine, EventFields()) == ("u", "7")
    twice, nan = fine[:-1] + b', "user": "v"}', fine[:-1] + b', "x": NaN}'
    for message in (twice, nan, fine.decode().encode("utf-16"), b"[1]", b"[" * 100_000):
        assert user_and_item(message, EventFields()) == BROKEN_RECORD
