"""`shh stream` on Dataflow and with Pub/Sub, as far as it goes without either."""

from __future__ import annotations

import pathlib

import pytest
from apache_beam.io.gcp import pubsub

from dp_transforms import WindowSchedule
from dp_transforms.pipelines.stream_pubsub import user_and_item
from tests.helpers.names_plans import names_plan_of
from tests.pipelines.stream_words import CLOUD, DATAFLOW, HOURS, PLAN, PUBSUB, SECRET, START, SUBSCRIPTION, run


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


def test_messages_without_user_and_item_are_no_error() -> None:
    assert user_and_item(b'{"user": "u", "item": 7, "more": []}', "user", "item") == ("u", 7)
    for message in (b"", b"\xff", b"[1]", b"{", b'{"user": "u"}', b"[" * 100_000):
        assert user_and_item(message, "user", "item")[1] is None
