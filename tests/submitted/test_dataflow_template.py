"""The flex templates of Dataflow: parameters are options of pipelines/*.py, and the page launches them correctly."""

from __future__ import annotations

import json
import re
import shlex

import click
import pytest
from packaging.specifiers import SpecifierSet

from tests.helpers.shh_process import ROOT
from tests.helpers.submitted_jobs import REPLAY, STREAM, script

FOLDER = ROOT / "runners" / "dataflow"
METADATA = {
    STREAM: json.loads((FOLDER / "metadata_stream.json").read_text()),
    REPLAY: json.loads((FOLDER / "metadata_replay.json").read_text()),
}
ALL = {name: {parameter["name"]: parameter for parameter in found["parameters"]} for name, found in METADATA.items()}
REQUIRED = {
    STREAM: {"input", "plan", "output", "noise_key_secret"},
    REPLAY: {"log", "plan", "output", "noise_key_secret"},
}
# What a value of each parameter can look like, if it has no default; each must pass its regex.
EXAMPLES = {
    "plan": "gs://bucket/plan.json",
    "noise_key_secret": "projects/p/secrets/s/versions/12",
    "item_field": "page",
    "time_format": "%d/%b/%Y:%H:%M:%S %z",
    "log": "gs://bucket/clicks/2026-*.parquet",
    "public_items": "gs://bucket/items.txt",
    "output": "gs://bucket/reports/january.avro",
    "dead_letter": "s3://bucket/bad.jsonl",
}
OF_STREAM = {"input": "kafka://b-1.internal:9092,b-2.internal:9092/clicks", "output": "kafka://b:9092/trends"}
NAMES = pytest.mark.parametrize("name", [STREAM, REPLAY])


def options(name: str) -> dict[str, click.Option]:
    """Of the program, by the names that parameters have."""
    return {each.opts[0][2:].replace("-", "_"): each for each in script(name).command.params}


@NAMES
def test_the_metadata_has_the_form_that_dataflow_reads(name: str) -> None:
    metadata = METADATA[name]
    of_streams = ("supportsAtLeastOnce", "supportsExactlyOnce") if name == STREAM else ()
    assert set(metadata) == {*("name", "description", "streaming", "parameters"), *of_streams}
    assert metadata["streaming"] is (name == STREAM)
    assert len(ALL[name]) == len(metadata["parameters"])
    known = {"name", "label", "helpText", "isOptional", "paramType", "regexes", "defaultValue"}
    for called, parameter in ALL[name].items():
        assert re.fullmatch(r"[a-z][a-z_]*", called)
        assert {"name", "label", "helpText", "isOptional", "paramType"} <= set(parameter) <= known
        assert parameter["paramType"] == "TEXT"
        assert parameter["regexes"]
    assert {called for called, parameter in ALL[name].items() if not parameter["isOptional"]} == REQUIRED[name]


@NAMES
def test_every_parameter_is_an_option_and_takes_what_the_option_takes(name: str) -> None:
    for called, parameter in ALL[name].items():
        default = options(name)[called].to_info_dict()["default"]
        assert parameter.get("defaultValue") == default or called in REQUIRED[name], called
        example = {**EXAMPLES, **(OF_STREAM if name == STREAM else {})}.get(called, default)
        for regex in parameter["regexes"]:
            assert re.fullmatch(regex, example), called
            assert not re.fullmatch(regex, ""), called
            assert not re.fullmatch(regex, " x"), called


@NAMES
def test_the_launch_line_of_the_page_is_a_command_line(name: str) -> None:
    """The launcher writes a parameter as --name=value, among options of Beam's."""
    text = (FOLDER / "README.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"^ *(gcloud dataflow flex-template run .*/{name}\.json.*)$", text, re.MULTILINE)
    pairs = [word.partition("=")[2].split(",") for word in shlex.split(line) if word.startswith("--parameters=")]
    parameters = dict(pair.split("=", 1) for each in pairs for pair in each)
    assert REQUIRED[name] <= set(parameters) <= set(ALL[name])
    for called, value in parameters.items():
        for regex in ALL[name][called]["regexes"]:
            assert re.fullmatch(regex, value), called
    beams = ["--region=r", "--temp_location=gs://bucket/tmp", "--template_location=gs://bucket/job", "--job_name=j"]
    words = [*beams, *(f"--{called}={value}" for called, value in parameters.items())]
    context = script(name).command.make_context(name, words)
    assert context.obj == beams
    for called, value in parameters.items():
        assert context.params[options(name)[called].name] in (value, (value,)), called


def test_the_image_has_what_it_runs() -> None:
    text = (FOLDER / "Containerfile").read_text()
    (pipeline,) = re.findall(r"^ARG PIPELINE=(\w+)$", text, re.MULTILINE)
    (program,) = re.findall(r"^ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/(\S+)$", text, re.MULTILINE)
    for each in (pipeline, STREAM, REPLAY):
        assert (ROOT / program.replace("${PIPELINE}", each)).is_file()
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "setup.py", "dp_transforms", "pipelines"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    # The Beam of the image is one that the package takes.
    (version,) = re.findall(r"beam_python3\.11_sdk:(\d+\.\d+\.\d+)$", text, re.MULTILINE)
    (taken,) = re.findall(r'^    "apache-beam(>[^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version in SpecifierSet(taken)
    assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in text
