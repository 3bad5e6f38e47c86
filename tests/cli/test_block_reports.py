"""`shh replay --block-output`: what many users had in whole blocks, beside the report of windows."""

import json

import pytest

from dp_transforms import WindowSchedule
from tests.helpers import shh_process
from tests.helpers.modes import plan_in_rounds
from tests.helpers.replay_logs import START, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import key_file

USERS, WINDOWS = 300, 8
RUN = (
    *("--start", "2026-01-01", "--end", "2026-01-01T08:00:00Z", "--window", "1h", "--epsilon", "8", "--delta", "1e-6"),
    *("--usual-contributions", "1", "20"),
)
BLOCKS = ("--plan", "blocks.plan")
OUTPUTS = ("--output", "windows.jsonl", "--block-output", "blocks.jsonl")
# What happens when the first of two reports has its name.
THEN = """
import os, signal
from dp_transforms.cli import replay_run, state_part
def then(publish):
    def and_then(*arguments):
        publish(*arguments)
        {}
    return and_then
replay_run.publish_output, state_part.write_output = then(replay_run.publish_output), then(state_part.write_output)
from dp_transforms.cli.main import main
main()
"""
KILLED_THEN = THEN.format("os.kill(os.getpid(), signal.SIGKILL)")
TAKEN_THEN = THEN.format("open('windows.jsonl', 'x').close()")


@pytest.fixture
def folder(tmp_path):
    """An item in all windows, and one in those of each block."""
    rows = [
        (f"user-{user}", item, START + 3600 * window + user)
        for window in range(WINDOWS)
        for user in range(USERS)
        for item in ("always", f"block-{window // 4}")
    ]
    write_parquet(tmp_path / "log.parquet", rows)
    schedule = WindowSchedule.fixed(START, START + 8 * 3600, "1h")
    plan = plan_in_rounds(schedule, epsilon=8, delta=1e-6, usual_contributions=(1, 20), block_seconds=4 * 3600)
    (tmp_path / "blocks.plan").write_text(plan.to_json())
    return tmp_path


def read(path):
    first, *records = map(json.loads, path.read_text().splitlines())
    return first["header"], records


def test_both_reports_are_one_run_and_can_be_shown_explained_and_loaded(folder):
    done = shh("replay", "log.parquet", *BLOCKS, *OUTPUTS, cwd=folder)
    assert done.returncode == 0, done.stderr
    (header, windows), (of_blocks, blocks) = read(folder / "windows.jsonl"), read(folder / "blocks.jsonl")
    both = " This is the report of the blocks of windows of a run. It and the report of its windows are protected so"
    assert of_blocks.pop("of_blocks") is True
    assert of_blocks.pop("guarantee") == header.pop("guarantee") + both + " together: both cost this once."
    assert of_blocks == header, "the same run, stream and plan"
    times = [(each["window_start"][11:13], each["window_end"][11:13]) for each in blocks]
    assert times == [("00", "04"), ("04", "08")]
    for block, record in enumerate(blocks):
        sizes = {hit["item"]: hit["at_least_users"] for hit in record["heavy_hitters"]}
        assert sizes.keys() == {"always", f"block-{block}"}
        assert all(0 <= size <= USERS for size in sizes.values())
    named = {hit["item"] for record in windows for hit in record["heavy_hitters"]}
    assert named == {"always", "block-0", "block-1"}
    shown = shh("show", "blocks.jsonl", cwd=folder)
    assert "4h" in shown.stdout
    assert "both cost this once" in " ".join(shown.stdout.split())
    explained = [shh("explain", name, cwd=folder) for name in ("windows.jsonl", "blocks.jsonl")]
    assert [each.returncode for each in explained] == [0, 0]
    for each, other, kind in zip(explained, ("blocks", "windows"), ("windows", "blocks of windows"), strict=True):
        words = " ".join(each.stdout.split())
        assert f"So with the run's report of {other}, where there is one." in words
        assert f"yes: All windows are {kind} of the plan." in words
    assert "are not of one run: it has the windows of run" in error_line(
        shh("show", "windows.jsonl", "blocks.jsonl", cwd=folder)
    )
    assert shh("show", "blocks.jsonl", "--html", "blocks.html", cwd=folder).returncode == 0
    assert "What many users had, in blocks of 4h" in (folder / "blocks.html").read_text()
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "windows.jsonl").rename(folder / "moved.jsonl")
    again = error_line(shh("replay", "log.parquet", *BLOCKS, *OUTPUTS, cwd=folder))
    assert "--block-output blocks.jsonl exists and is never overwritten" in again
    assert (folder / "blocks.jsonl").read_bytes() == contents["blocks.jsonl"]


def test_a_block_report_that_does_not_agree_with_its_plan_is_told(folder):
    assert shh("replay", "log.parquet", *BLOCKS, *OUTPUTS, cwd=folder).returncode == 0
    lines = (folder / "blocks.jsonl").read_text().splitlines()
    across = lines[1].replace("T04:00:00Z", "T05:00:00Z")  # into the second block
    header = json.loads(lines[0])
    del header["header"]["of_blocks"]
    for text in ([lines[0], across], [json.dumps(header), *lines[1:]]):
        (folder / "wrong.jsonl").write_text("".join(f"{line}\n" for line in text))
        told = shh("explain", "wrong.jsonl", cwd=folder)
        assert told.returncode == 1
        assert "NO, this does not hold: All windows are" in " ".join(told.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (*RUN, "--usual-contributions", "1", "2", *OUTPUTS),
            "--block-output needs a plan with rounds",
        ),
        ((*BLOCKS, "--output", "a.jsonl", "--block-output", "./a.jsonl"), "--output and --block-output name the same"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_drawn(folder, words, said):
    refused = shh("replay", "log.parquet", *words, cwd=folder)
    assert (refused.returncode > 0, said in " ".join(refused.stderr.split())) == (True, True), refused.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["blocks.plan", "log.parquet"]


def test_a_report_that_fails_after_its_blocks_says_what_is_published(folder):
    failed = shh_process.run_python("-c", TAKEN_THEN, "replay", "log.parquet", *BLOCKS, *OUTPUTS, cwd=folder)
    said = " ".join(failed.stderr.split())
    assert failed.returncode == 1
    assert "windows.jsonl exists and is never overwritten" in said
    assert "The report of blocks, blocks.jsonl, is published, and valid: the run has spent its budget." in said
    assert read(folder / "blocks.jsonl")[1]


def test_a_part_that_was_killed_between_its_reports_keeps_the_first_one(folder):
    given = (*BLOCKS, "--noise-key-file", key_file(folder), "--state", "run.state")
    first = ("replay", "log.parquet", *given, "--until", "2026-01-01T06:00:00Z", *OUTPUTS)
    assert shh_process.run_python("-c", KILLED_THEN, *first, cwd=folder).returncode == -9
    published = (folder / "blocks.jsonl").read_bytes()
    assert not (folder / "windows.jsonl").exists()
    for said in ("of the 8 windows of the run are closed", "is done"):
        ended = shh(*first, cwd=folder)
        assert (ended.returncode, said in ended.stderr) == (0, True), ended.stderr
        assert (folder / "blocks.jsonl").read_bytes() == published
    times = [record["window_end"][11:13] for record in read(folder / "blocks.jsonl")[1]]
    assert times == ["04", "06"], "the part ends in the second block"
    (folder / "blocks.jsonl").rename(folder / "1.jsonl")
    assert "this part is done. It was published without it, or the file was moved" in shh(*first, cwd=folder).stderr
    last = shh("replay", "log.parquet", *given, "--output", "2.jsonl", "--block-output", "blocks.jsonl", cwd=folder)
    assert last.returncode == 0, last.stderr
    assert shh("show", "1.jsonl", "blocks.jsonl", cwd=folder).returncode == 0
