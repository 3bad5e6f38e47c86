"""pipelines/*.py on Beam's own runner in this process: what they publish, and what they refuse."""

from __future__ import annotations

import pathlib
import re
import types

import click
import pytest

from dp_transforms.beam import jobs, write_reports
from dp_transforms.cli import replay, stream
from dp_transforms.core.window_report import WindowReport
from dp_transforms.errors import StreamError
from dp_transforms.reports import read_report_file
from dp_transforms.reports.report_folder import ReportNews
from dp_transforms.reports.report_records import RunEnded
from tests.helpers.submitted_jobs import (
    HEAVY,
    REPLAY,
    STREAM,
    assert_answers,
    items,
    make_folder,
    script,
    submit,
    words_on_page,
)

KEY = ["--noise-key-file", "noise.key"]
LOG = ["--log", "clicks", "--plan", "plan.json", "--output", "report.avro"]
FOLDER = ["--input", "clicks", "--plan", "plan.json", "--output", "reports"]
TOPICS = ["--input", "kafka://b:9/t", "--output", "gs://b/r", "--plan", "plan.json"]
ELSEWHERE = ["--runner=PortableRunner", "--job_endpoint=localhost:9"]
SECRET = ["--noise-key-secret", "projects/p/secrets/s/versions/1"]
CLOUD = ["--project=project", "--region=r", "--temp_location=gs://bucket/tmp", "--sdk_container_image=i"]
DATAFLOW = ["--runner=DataflowRunner", *CLOUD]


# The log is an argument of the command; and only Dataflow takes a key from Secret Manager. The last two are for
# clusters with topics alone.
OF_PROGRAMS_ALONE = {"--help-all", "--log", "--noise-key-secret", "--stop-file", "--partitions"}


@pytest.mark.parametrize(("name", "command"), [(REPLAY, replay.command), (STREAM, stream.command)])
def test_each_option_of_a_program_is_one_of_its_command(name: str, command: click.Command) -> None:
    theirs = {each.opts[0]: each for each in command.params if isinstance(each, click.Option)}
    ours = {each.opts[0]: each for each in script(name).command.params}
    assert set(ours) - set(theirs) <= OF_PROGRAMS_ALONE
    for flag in set(ours) & set(theirs) - {"--help-all"}:
        one, other = ours[flag], theirs[flag]
        for what in ("name", "default", "multiple", "nargs", "is_flag", "type"):
            assert getattr(one, what) == getattr(other, what), (flag, what)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [REPLAY, STREAM])
def test_what_beam_runs_is_what_shh_replay_publishes(name: str, folder: pathlib.Path) -> None:
    """The commands of the page, with a key that the test knows."""
    before = {path.name for path in folder.iterdir()}
    result = submit(name, [*words_on_page("direct", name), *KEY], folder)
    assert result.returncode == 0, result.stderr
    made = {path.name for path in folder.iterdir()} - before
    assert made == {"report.avro" if name == REPLAY else "reports"}, "a draft is left"
    assert_answers(name, folder)


class Endless:
    """A pipeline that never ends by itself."""

    is_over, cancelled = False, False

    def cancel(self) -> None:
        self.cancelled = True

    def raise_error(self) -> None:
        """It did not fail."""


class Output:
    """What each look finds: how many reports are new, and how many the end says there are; or an error. looks: so many
    were asked for; the last one again and again."""

    def __init__(self, *found: tuple[int, int | None] | StreamError) -> None:
        self.found, self.looks = found, 0

    def read_new(self) -> ReportNews:
        found = self.found[min(self.looks, len(self.found) - 1)]
        self.looks += 1
        if isinstance(found, StreamError):
            raise found
        new, of_all = found
        ended = None if of_all is None else RunEnded("events", 9, of_all)
        return ReportNews(
            None,
            [WindowReport("events", each, each + 1, [], 1.0, 1e-9, 1.0) for each in range(new)],
            ended,
            self.looks == 1,
        )


def watched(monkeypatch: pytest.MonkeyPatch, job: Endless, output: Output) -> None:
    monkeypatch.setattr(jobs, "RunningPipeline", lambda _: job)
    stream = types.SimpleNamespace(run_id="run-1", sink=types.SimpleNamespace(follow=lambda _: output))
    jobs.watch_to_end(None, stream, pause_seconds=0)  # type: ignore[arg-type]


def test_a_stream_is_waited_for_until_all_that_its_end_counts_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end record can overtake the last reports, which the job has yet to write."""
    late = Output((1, None), StreamError("away"), (1, 4), (0, 4), (1, 4), (1, 4), (1, 4))
    watched(monkeypatch, Endless(), late)
    assert late.looks == 6


def test_a_job_whose_output_cannot_be_read_is_not_left_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    job, output = Endless(), Output((1, None), StreamError("no broker."))
    monkeypatch.setattr(jobs, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(StreamError, match="no broker"):
        watched(monkeypatch, job, output)
    assert (job.cancelled, output.looks > 2) == (True, True)


def test_each_job_draws_a_key_and_a_run_id_of_its_own(folder: pathlib.Path) -> None:
    program = script(REPLAY).command
    headers = []
    for output in ("1.jsonl", "2.jsonl"):
        program.run([*LOG[:-1], output])
        header, reports = read_report_file(folder / output)
        assert items(list(reports)) == HEAVY
        headers.append(header)
    assert headers[0].run_id != headers[1].run_id


def test_the_options_of_ours_reach_the_transform(folder: pathlib.Path) -> None:
    """Other fields, a name of the stream, and a list of the rows that cannot be read."""
    (folder / "clicks" / "bad.jsonl").write_text('{"user": "u", "item": "i", "timestamp": "no time"}\n' * 2)
    words = ["--stream", "clicks", "--dead-letter", "bad.txt"]
    script(REPLAY).command.run([*LOG[:-1], "report.jsonl", *words])
    header, reports = read_report_file(folder / "report.jsonl")
    assert header.stream == "clicks"
    assert {report.stream for report in reports} == {"clicks"}
    assert len((folder / "bad.txt").read_text().splitlines()) == 2
    with pytest.raises(SystemExit, match="nobody"):
        script(REPLAY).command.run([*LOG[:-1], "other.jsonl", "--user-field", "nobody"])


def test_where_too_many_rows_are_bad_nothing_is_published(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_reports, "MOST_REJECTED", 0.001)
    (folder / "clicks" / "bad.jsonl").write_text('{"user": "u", "item": "i", "timestamp": "no time"}\n' * 9)
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(SystemExit, match="more than half of the rows"):
        script(REPLAY).command.run(LOG)
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        (REPLAY, [*LOG, *KEY, "--template_location=gs://b/t"], "with the same noise"),
        (REPLAY, [*LOG, *ELSEWHERE], "need one noise key"),
        (REPLAY, [*LOG[:-1], "plan.json"], "exists and is never overwritten"),
        (REPLAY, [*LOG[:-1], "new.avro", "--dead-letter", "noise.key"], "--dead-letter"),
        (REPLAY, [*LOG, "--dead-letter", "report.avro"], "--output and --dead-letter name the same file"),
        (REPLAY, [*LOG[:-1], "nowhere/report.avro"], "folder does not exist"),
        (REPLAY, [*LOG, *KEY, *DATAFLOW], "--noise-key-secret, not --log, --output, --noise-key-file"),
        (REPLAY, [*LOG, *SECRET, *DATAFLOW], "share no disk: give URLs such as gs://BUCKET/NAME"),
        (REPLAY, [*LOG, *SECRET, "--runner=DataflowRunner", *CLOUD, "--streaming"], "no --streaming"),
        (REPLAY, [*LOG, "--noise-key-secret", "latest"], "with a number N"),
        (REPLAY, [*LOG, *KEY, *SECRET], "--noise-key-secret cannot be used with --noise-key-file"),
        (STREAM, [*FOLDER, *KEY, "--run-id", "again"], "belong together"),
        (STREAM, [*FOLDER, *KEY, *ELSEWHERE, "--savepoint_path=s"], "belong together"),
        (STREAM, [*FOLDER, *ELSEWHERE], "need one noise key"),
        (STREAM, [*FOLDER[:-1], "clicks"], "holds files"),
        (STREAM, [*FOLDER[:-1], "kafka://localhost:9/t"], "--output: URLs kafka://... are not known"),
        (STREAM, [*FOLDER, *SECRET, *DATAFLOW], "give a topic, a URL of a store and --noise-key-secret, not --input"),
        (STREAM, [*TOPICS, *SECRET, *DATAFLOW, "--dead-letter", "bad"], "--noise-key-secret, not --dead-letter"),
        (STREAM, [*FOLDER, "--update"], "belong together"),
        (STREAM, [*FOLDER, *KEY, "--dead-letter", "reports/bad"], "--dead-letter must lie outside --output"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    folder: pathlib.Path, name: str, words: list[str], says: str
) -> None:
    before = {path.name for path in folder.rglob("*")}
    with pytest.raises(SystemExit) as refused:
        script(name).command.run(words)
    assert str(refused.value.code).startswith(f"{name}: ")
    assert says in str(refused.value.code)
    assert {path.name for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "words"),
    [(REPLAY, [*LOG, "--run-id", "again"]), (STREAM, [*FOLDER, "--flink_mastr=jobs:8081"]), (REPLAY, [*LOG, "more"])],
)
def test_a_word_that_neither_we_nor_beam_know_is_named(
    folder: pathlib.Path, name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job has no option for a run id; and Beam would drop the others, and say so in its log alone."""
    with pytest.raises(SystemExit):
        script(name).command.run(words)
    unknown = words[len(LOG if name == REPLAY else FOLDER)]
    assert re.search(rf"(No such option:? |extra argument ).*{unknown.partition('=')[0]}", capsys.readouterr().err)


@pytest.mark.parametrize(("name", "words"), [(REPLAY, LOG), (STREAM, FOLDER)])
@pytest.mark.parametrize("option", [["--noise_key_file=nowhere"], ["--noise_key_file", "nowhere"]])
def test_an_option_of_ours_that_is_written_as_beams_are_is_not_lost(
    folder: pathlib.Path, name: str, words: list[str], option: list[str]
) -> None:
    """Beam would leave it out."""
    with pytest.raises(SystemExit, match=r"nowhere"):
        script(name).command.run([*words, *option])
