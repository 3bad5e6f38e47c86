"""The flex templates of Dataflow: parameters are options of the commands, and the documents launch them correctly."""

from __future__ import annotations

import json
import pathlib
import re
import shlex

import click
import pytest
from packaging.specifiers import SpecifierSet

from dp_transforms.cli.replay import command as replay
from dp_transforms.cli.stream import command
from runners.dataflow.main import command_line

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "runners" / "dataflow"
COMMANDS = {"stream": command, "replay": replay}
METADATA = {
    "stream": json.loads((FOLDER / "metadata.json").read_text()),
    "replay": json.loads((FOLDER / "metadata_replay.json").read_text()),
}
ALL = {name: {parameter["name"]: parameter for parameter in found["parameters"]} for name, found in METADATA.items()}
PARAMETERS = ALL["stream"]
REQUIRED = {
    "stream": {"epsilon", "delta", "window", "start", "end", "output_topic", "noise_key_secret"},
    "replay": {"log", "epsilon", "delta", "window", "start", "end", "output", "noise_key_secret"},
}
# What a value of each parameter can look like; each must pass its regex and, as an option, be parsed.
EXAMPLES = {
    "kafka": "b-1.internal:9092,b-2.internal:9092",
    "topic": "clicks",
    "pubsub_subscription": "projects/p/subscriptions/s",
    "kafka_config": "/etc/kafka.properties",
    "epsilon": "0.5",
    "delta": "1e-9",
    "window": "90m",
    "slide": "30m",
    "start": "2026-01-01T00:00:00Z",
    "end": "2026-02-01",
    "hits_per_user": "3",
    "max_items_per_user": "3",
    "threshold": "500",
    "producer_times": "true",
    "allowed_lateness": "0s",
    "out_of_order": "10s",
    "max_ahead": "5m",
    "idle_timeout": "1m",
    "output_topic": "trends",
    "output_kafka": "b:9092",
    "output_kafka_config": "/etc/kafka.properties",
    "noise_key_secret": "projects/p/secrets/s/versions/12",
    "run_id": "run 1",
    "log": "gs://bucket/clicks/2026-*.parquet",
    "domain_file": "gs://bucket/items.txt",
    "output": "gs://bucket/reports/january.avro",
    "dead_letter": "s3://bucket/bad.jsonl",
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_metadata_has_the_form_that_dataflow_reads(name: str) -> None:
    metadata = METADATA[name]
    of_streams = ("supportsAtLeastOnce", "supportsExactlyOnce") if name == "stream" else ()
    assert set(metadata) == {*("name", "description", "streaming", "parameters"), *of_streams}
    assert metadata["streaming"] is (name == "stream")
    assert len(ALL[name]) == len(metadata["parameters"])
    known = {"name", "label", "helpText", "isOptional", "paramType", "regexes", "enumOptions", "defaultValue"}
    for called, parameter in ALL[name].items():
        assert re.fullmatch(r"[a-z][a-z_]*", called)
        assert {"name", "label", "helpText", "isOptional", "paramType"} <= set(parameter) <= known
        assert isinstance(parameter["isOptional"], bool)
        assert parameter["paramType"] in ("TEXT", "ENUM", "PUBSUB_SUBSCRIPTION")
        assert ("enumOptions" in parameter) == (parameter["paramType"] == "ENUM")
        assert ("regexes" in parameter) == (parameter["paramType"] != "ENUM")
    assert {called for called, parameter in ALL[name].items() if not parameter["isOptional"]} == REQUIRED[name]


@pytest.mark.parametrize(
    ("command_name", "name"), [(of, name) for of in COMMANDS for name in sorted(ALL[of]) if name != "log"]
)
def test_every_parameter_is_an_option_and_takes_what_the_option_takes(command_name: str, name: str) -> None:
    its_command = COMMANDS[command_name]
    options = {
        option: parameter
        for parameter in its_command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    option = options["--" + name.replace("_", "-")]
    parameter = ALL[command_name][name]
    if parameter["paramType"] == "ENUM":
        assert isinstance(option.type, click.Choice)
        assert [choice["value"] for choice in parameter["enumOptions"]] == list(option.type.choices)
        return
    default = None if option.default is None else str(option.default)
    if "defaultValue" in parameter:
        assert parameter["defaultValue"] == default
    example = EXAMPLES.get(name, default)
    assert example is not None
    for regex in parameter["regexes"]:
        assert re.fullmatch(regex, example)
        assert not re.fullmatch(regex, "")
        assert not re.fullmatch(regex, " x")
    option.type_cast_value(click.Context(its_command), example)


def test_the_template_and_the_documents_say_which_release_modes_read_pubsub() -> None:
    """As the command has it: test_names_on_pubsub_are_refused_with_a_remedy."""
    for name in ("pubsub_subscription", "release"):
        assert "labels, counts or kms21" in PARAMETERS[name]["helpText"], name
    (text,) = re.findall(
        r"^\*\*Pub/Sub\*\*.*?\n\n", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert "The command refuses `names`" in text
    assert "--release labels`, `counts` or `kms21`" in text


def test_an_option_without_a_value_is_there_or_not() -> None:
    for value, expected in (("true", True), ("false", None)):
        found = command_line(["--kafka=b:9092", f"--producer_times={value}", "--region=r"])
        split = found.index("--")
        assert found[split + 1 :] == ["--region=r"]
        assert command.make_context("stream", found[1:split], obj=[]).params["producer_times"] is expected


def test_regexes_refuse_what_the_option_would_refuse() -> None:
    for name, value in (
        ("kafka", "localhost"),
        ("window", "1"),
        ("idle_timeout", "0s"),
        ("noise_key_secret", "projects/p/secrets/s/versions/latest"),
        ("epsilon", "-1"),
        ("producer_times", "yes"),
        ("start", "tomorrow"),
    ):
        assert not any(re.fullmatch(regex, value) for regex in PARAMETERS[name]["regexes"]), name


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_launch_line_of_the_documents_is_a_command_line(name: str) -> None:
    text = (ROOT / "docs" / "deploy.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^ *(gcloud dataflow flex-template run .*)$", text, re.MULTILINE)
    (line,) = (line for line in lines if ("shh-replay.json" in line) == (name == "replay"))
    parameters = dict(
        pair.split("=", 1)
        for word in shlex.split(line)
        if word.startswith("--parameters=")
        for pair in word.partition("=")[2].split(",")
    )
    assert set(parameters) <= set(ALL[name])
    for called, parameter in ALL[name].items():
        assert parameter["isOptional"] or called in parameters
        for regex in parameter.get("regexes", ()):
            assert called not in parameters or re.fullmatch(regex, parameters[called]), called
    beam = [
        "--project=p",
        "--region=r",
        "--temp_location=gs://bucket/tmp",
        "--template_location=gs://bucket/job",
        "--job_name=j",
    ]
    ours = [f"--{called}={value}" for called, value in parameters.items()]
    found = command_line([*beam[:2], *ours, *beam[2:]], name)
    split = found.index("--")
    log = [parameters["log"]] if name == "replay" else []
    assert found[: 4 + len(log)] == [name, *log, "--engine", "dataflow", "--detach"]
    assert found[split + 1 :] == beam
    context = COMMANDS[name].make_context(name, found[1:split], obj=[])
    assert context.params["noise_key_secret"] == parameters["noise_key_secret"]
    for called in ("kafka", "output"):
        assert context.params.get(called) == parameters.get(called)
    assert context.params["detach"]


def test_the_image_has_what_it_runs() -> None:
    text = (FOLDER / "Containerfile").read_text()
    assert re.search(r"^ARG COMMAND=stream\nENV SHH_COMMAND=\$\{COMMAND\}$", text, re.MULTILINE)
    (program,) = re.findall(r"^ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/template/(\S+)$", text, re.MULTILINE)
    assert (ROOT / program).is_file()
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "setup.py", "dp_transforms", "runners"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    # The Beam of the image is one that the package takes.
    (version,) = re.findall(r"beam_python3\.11_sdk:(\d+\.\d+\.\d+)$", text, re.MULTILINE)
    (taken,) = re.findall(r'^    "apache-beam([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version in SpecifierSet(taken)
    assert 'ENTRYPOINT ["/opt/apache/beam/boot"]' in text
