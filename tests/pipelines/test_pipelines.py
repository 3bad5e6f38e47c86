"""pipelines/*.py: what they publish on Beam's own runner, the jobs that Dataflow would get, and what they refuse."""

from __future__ import annotations

import json
import pathlib
import re
import shlex

import click
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.portability.api import beam_runner_api_pb2

from dp_transforms.cli import replay, stream
from dp_transforms.reports import read_report
from tests.helpers.no_network import no_network
from tests.helpers.shh_process import ROOT
from tests.pipelines import jobs
from tests.pipelines.jobs import HEAVY, REPLAY, STREAM, assert_answers, items, make_folder, script, words_on_page

BOTH = pytest.mark.parametrize("name", [REPLAY, STREAM])
KEY = ["--noise-key-file", "noise.key"]
LOG = ["--log", "clicks", "--plan", "plan.json", "--output", "report.jsonl"]
FOLDER = ["--input", "clicks", "--plan", "plan.json", "--output", "reports"]
SECRET = ["--noise-key-secret", "projects/p/secrets/s/versions/1"]
CLOUD = [
    *("--runner=DataflowRunner", "--project=project", "--region=r", "--temp_location=gs://bucket/tmp"),
    "--sdk_container_image=i",
]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with a log, a plan, a key and a stop file."""
    make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: pathlib.Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# The log is an argument of the command; only Dataflow takes a key from Secret Manager; the last two are for clusters.
OF_PROGRAMS_ALONE = {"--help-all", "--log", "--noise-key-secret", "--stop-file", "--partitions"}


@pytest.mark.parametrize(("name", "command"), [(REPLAY, replay.command), (STREAM, stream.command)])
def test_each_option_of_a_program_is_one_of_its_command(name: str, command: click.Command) -> None:
    theirs = {each.opts[0]: each for each in command.params if isinstance(each, click.Option)}
    ours = {each.opts[0]: each for each in script(name).command.params}
    assert set(ours) - set(theirs) <= OF_PROGRAMS_ALONE
    for flag in set(ours) & set(theirs) - {"--help-all"}:
        for what in ("name", "default", "multiple", "nargs", "is_flag", "type"):
            assert getattr(ours[flag], what) == getattr(theirs[flag], what), (flag, what)


@BOTH
def test_what_the_command_of_the_page_publishes_is_what_shh_replay_publishes(name: str, folder: pathlib.Path) -> None:
    before = names(folder)
    script(name).command.run([*words_on_page("direct", name), *KEY])
    made = {path.partition("/")[0] for path in names(folder) - before}
    assert made == {"report.avro" if name == REPLAY else "reports"}, "a draft is left"
    assert_answers(name, folder)


def test_a_job_draws_a_run_id_of_its_own_and_its_options_reach_the_transform(folder: pathlib.Path) -> None:
    """A name of the stream, and a list of the rows that cannot be read."""
    (folder / "clicks" / "bad.jsonl").write_text('{"user": "u", "item": "i", "timestamp": "no time"}\n' * 2)
    reports = []
    for number in "12":
        words = ["--stream", "clicks", "--dead-letter", f"bad{number}.txt"]
        script(REPLAY).command.run([*LOG[:-1], f"{number}.jsonl", *words])
        reports.append(read_report(folder / f"{number}.jsonl"))
        assert items(list(reports[-1])) == HEAVY
        assert len((folder / f"bad{number}.txt").read_text().splitlines()) == 2
    assert len({report.header.run_id for report in reports}) == 2
    assert {report.header.stream for report in reports} == {"clicks"}


LOG_OF = {REPLAY: "gs://BUCKET/clicks", STREAM: "kafka://BROKER:9092/clicks"}


@BOTH
def test_dataflow_gets_a_job_that_spreads_its_work_without_an_account_or_a_network(
    name: str, folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command of the page, with names that Google allows and a folder in place of the log or topic."""
    pytest.importorskip("google.cloud.dataflow", reason="Google's client is missing: pip install -e '.[dev]'")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("PATH", "/nonexistent")
    (folder / "clicks" / "b.parquet").write_bytes((folder / "clicks" / "a.parquet").read_bytes())
    before = names(folder)
    with no_network() as refused:
        job, options = jobs.made_job(
            name, {LOG_OF[name]: "clicks", "PROJECT": "my-project", "BUCKET": "my-bucket"}, monkeypatch
        )
    assert refused == []
    assert names(folder) == before
    assert options.view_as(GoogleCloudOptions).job_name.startswith("shh-events-")
    if name == STREAM:
        return
    steps = job.components.transforms.values()
    (last,) = (each for each in steps if each.unique_name.endswith("/WriteReportFile"))
    assert not any(set(last.outputs.values()) & set(each.inputs.values()) for each in steps), "it publishes last"
    assert any("SpreadChunks" in each.unique_name for each in steps), "no reader is fused with the list of files"
    for each in steps:
        if each.spec.urn == "beam:transform:pardo:v1":
            has_state = bool(beam_runner_api_pb2.ParDoPayload.FromString(each.spec.payload).state_specs)
            assert has_state == each.unique_name.endswith("/CloseWindows"), each.unique_name
    hints = [hint for each in job.components.environments.values() for hint in each.resource_hints.values()]
    assert {bytes(hint) for hint in hints} == {b"8000000000"}


@BOTH
def test_the_launch_line_of_a_flex_template_is_a_command_line_and_its_parameters_are_options(name: str) -> None:
    """The launcher writes a parameter as --name=value, among options of Beam's."""
    pages = ROOT / "runners" / "dataflow"
    metadata = json.loads((pages / f"metadata_{'stream' if name == STREAM else 'replay'}.json").read_text())
    parameters = {parameter["name"]: parameter for parameter in metadata["parameters"]}
    options = {each.opts[0][2:].replace("-", "_"): each for each in script(name).command.params}
    required = {called for called, parameter in parameters.items() if not parameter["isOptional"]}
    assert required == {"input" if name == STREAM else "log", "plan", "output", "noise_key_secret"}
    for called in set(parameters) - required:
        assert parameters[called].get("defaultValue") == options[called].to_info_dict()["default"], called
    text = (pages / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^ *(gcloud dataflow flex-template run .*/{name}\.json.*)$", text, re.MULTILINE)
    pairs = [word.partition("=")[2].split(",") for word in shlex.split(line) if word.startswith("--parameters=")]
    given = dict(pair.split("=", 1) for each in pairs for pair in each)
    assert required <= set(given) <= set(parameters)
    beams = ["--region=r", "--temp_location=gs://bucket/tmp", "--template_location=gs://bucket/job", "--job_name=j"]
    context = script(name).command.make_context(name, [*beams, *(f"--{each}={given[each]}" for each in given)])
    assert context.obj == beams
    for called, value in given.items():
        assert all(re.fullmatch(regex, value) for regex in parameters[called]["regexes"]), called
        assert context.params[options[called].name] in (value, (value,)), called


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        (REPLAY, [*LOG, "--runner=PortableRunner", "--job_endpoint=localhost:9"], "need one noise key"),
        (REPLAY, [*LOG[:-1], "plan.json"], "exists and is never overwritten"),
        (REPLAY, [*LOG, *KEY, *CLOUD], "--noise-key-secret, not --log, --output, --noise-key-file"),
        (REPLAY, [*LOG, "--noise-key-secret", "latest"], "with a number N"),
        (REPLAY, [*LOG, *KEY, *SECRET], "--noise-key-secret cannot be used with --noise-key-file"),
        (REPLAY, [*LOG, "--noise_key_file=nowhere"], "nowhere"),  # written as Beam's are, which would leave it out
        (REPLAY, [*LOG, "--user-field", "nobody"], "nobody"),
        (STREAM, [*FOLDER, *KEY, "--run-id", "again"], "belong together"),
        (STREAM, [*FOLDER, "--update"], "belong together"),
        (STREAM, [*FOLDER[:-1], "clicks"], "holds other files"),
        (STREAM, [*FOLDER, *SECRET, *CLOUD], "share no disk"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    folder: pathlib.Path, name: str, words: list[str], says: str
) -> None:
    before = names(folder)
    with pytest.raises(SystemExit) as refused:
        script(name).command.run(words)
    assert str(refused.value.code).startswith(f"{name}: ")
    assert says in str(refused.value.code)
    assert names(folder) == before


@pytest.mark.parametrize(
    ("name", "words"), [(REPLAY, [*LOG, "--run-id", "again"]), (STREAM, [*FOLDER, "--flink_mastr=jobs:8081"])]
)
def test_a_word_that_neither_we_nor_beam_know_is_named(
    folder: pathlib.Path, name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job has no option for a run id; and Beam would drop the others, and say so in its log alone."""
    with pytest.raises(SystemExit):
        script(name).command.run(words)
    assert f"No such option '{words[6].partition('=')[0]}'" in capsys.readouterr().err
