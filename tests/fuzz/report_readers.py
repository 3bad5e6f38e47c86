"""Readers of what shh itself writes for people and for its next run: reports, their folders, plans, lists of items."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import click
import pyarrow.compute as pc

from dp_transforms.beam.workers import KeyFile
from dp_transforms.cli import show
from dp_transforms.cli.plan_options import read_plan
from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.core.public_items import PublicItems
from dp_transforms.core.window_report import ABOVE, HeavyHitter
from dp_transforms.errors import StreamError, UserError
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportFileError, ReportHeader, read_report_file
from dp_transforms.reports.files import report_file_bytes
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from tests.fuzz import avro_mutators, format_mutators
from tests.fuzz.reader import FaultError, Reader, Sample, place_file
from tests.helpers.pages import Page
from tests.helpers.report_samples import COUNTS, HEADER, LABELS, NAMES, NAMES_HEADER, REPORTS, report
from tests.helpers.small_runs import small_plan

_BIG_HEADER = ReportHeader("run-1", "news", "Each user", json.loads(small_plan().to_json()))


@functools.cache
def report_samples() -> list[Sample]:
    many = [report(hour, *(HeavyHitter(f"item {n}", ABOVE, None) for n in range(hour % 4))) for hour in range(9)]
    mutators = {"avro": avro_mutators.CONTAINER, "json": format_mutators.JSON}
    kinds = {"none": (HEADER, []), "four": (HEADER, REPORTS), "nine": (_BIG_HEADER, many)}
    kinds["names"] = (NAMES_HEADER, [NAMES])
    return [
        Sample(f"{form}, {name}", report_file_bytes(header, held, form), f".{form}", mutators[form])
        for form in mutators
        for name, (header, held) in kinds.items()
    ]


def _read_report(_sample: Sample, path: str) -> Any:
    """What is read could have been written: the same comes back from each format."""
    header, reports = read_report_file(path)
    held = list(reports)
    for form in ("json", "avro"):
        copy = f"{path}.copy.{form}"
        with open(copy, "wb") as file:
            file.write(report_file_bytes(header, held, form))
        found, again = read_report_file(copy)
        again = list(again)
        os.unlink(copy)
        if found != header or sorted(map(repr, again)) != sorted(map(repr, held)):
            raise FaultError("again", f"a report that is another one when written as {form}")
    return [repr(header), repr(held)]


_FORBIDDEN = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]")

# fmt: off
_TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "h2", "h3", "p", "noscript", "main",
    "section", "aside", "div", "label", "input", "select", "option", "span", "button", "ol", "ul", "li",
    "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "details", "summary", "pre", "footer",
    "code", "script",
}
# fmt: on


def _show(_sample: Sample, path: str) -> Any:
    """``shh show`` with its table, its JSON and its page: nothing that a terminal or a browser would obey."""
    outputs = []
    try:
        for words in ([], ["--html", f"{path}.html"], ["--json"]):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                show.command.main(args=[path, *words], standalone_mode=False)
            outputs.append(out.getvalue())
        with open(f"{path}.html", encoding="utf-8") as file:
            text = file.read()
    except click.UsageError as error:
        raise FaultError("uncaught", type(error).__name__) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"{path}.html")
    for shown in (*outputs, text):
        if found := _FORBIDDEN.search(shown):
            raise FaultError("terminal", f"{found[0]!r} is shown")
    for line in outputs[2].splitlines():
        json.loads(line)
    if not outputs[2].isascii():
        raise FaultError("terminal", "JSON that is not ASCII")
    page = Page(text)
    if page.tags - _TAGS or len(page.scripts) != 3 or [name for name in page.attributes if name.startswith("on")]:
        raise FaultError("page", "a tag, a script or a handler that is not ours")
    return outputs


# The folder of a stream


@functools.cache
def _folder_files() -> dict[str, bytes]:
    """The files that a run of two windows writes."""
    with tempfile.TemporaryDirectory() as folder:
        writer = ReportFolder(f"{folder}/r").open(HEADER)
        for one in (LABELS, COUNTS, NAMES):
            writer.write(one)
        writer.end(RunEnded("news", 12, 3))
        return {path.name: path.read_bytes() for path in pathlib.Path(folder, "r").iterdir()}


@functools.cache
def _folder_samples() -> list[Sample]:
    others = _folder_files()
    return [Sample(f"jsonl, {name}", data, name, format_mutators.JSON, others) for name, data in sorted(others.items())]


def _place_folder(folder: str, name: str, sample: Sample, data: bytes) -> str:
    path = pathlib.Path(folder, name)
    path.mkdir()
    for file, content in {**sample.context, sample.ending: data}.items():
        (path / file).write_bytes(content)
    return str(path)


def _read_folder(_sample: Sample, path: str) -> Any:
    try:
        header, reports, ended = ReportFolder(path).read()
        if header is None:
            raise StreamError("no run has begun there")
        found = [repr(header), repr(reports), repr(ended)]
        # A run goes on in a folder that can be read.
        ReportFolder(path).open(header)
        return found
    finally:
        shutil.rmtree(path)


# Plans


@functools.cache
def _plan_samples() -> list[Sample]:
    plans = [
        small_plan(),
        small_plan(mode="hits"),
        small_plan(sliding=2, hits_per_user=1),
        small_plan(domain=("a", "b"), threshold=5),
    ]
    return [
        Sample(f"plan {index}", plan.to_json().encode(), ".json", format_mutators.PLAN)
        for index, plan in enumerate(plans)
    ]


def _read_plan(_sample: Sample, path: str) -> Any:
    """A plan that is accepted is one: it can be shown, used and read again."""
    plan = read_plan(path)
    if Plan.from_json(plan.to_json()) != plan:
        raise FaultError("again", "a plan that is another one when written")
    if not plan.guarantee.isprintable() or len(plan.epsilon_after_hits) != plan.most_keys * plan.hits_per_user:
        raise FaultError("plan", "not what a plan promises")
    plan.smallest_detectable()
    return plan.fingerprint


# Items and keys


@functools.cache
def _domain_samples() -> list[Sample]:
    lines = ["apple", "pear", "Ünï", "7", "a b", "x" * 200, "\u2028", "apple"]
    return [
        Sample("lines", "\n".join(lines).encode() + b"\n", ".txt"),
        Sample("mark, CRLF", b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode(), ".txt"),
        Sample("long", b"y" * MAX_ID_BYTES + b"\nz\n", ".txt"),
    ]


def _read_domain(_sample: Sample, path: str) -> Any:
    domain = PublicItems.read(path)
    domain.labels.validate(full=True)
    labels = domain.labels.to_pylist()
    if labels != sorted(set(labels), key=str.encode) or not 1 <= domain.size == len(labels):
        raise FaultError("domain", "labels out of order, or twice")
    if not pc.min(pc.binary_length(domain.labels)).as_py() >= 1:
        raise FaultError("domain", "an empty label")
    return domain.fingerprint


@functools.cache
def _key_samples() -> list[Sample]:
    return [
        Sample(f"{size} bytes", bytes(n * 37 % 251 for n in range(size)), ".key") for size in (32, 33, 64, 1000, 65536)
    ]


def _place_key(folder: str, name: str, sample: Sample, data: bytes) -> str:
    path = place_file(folder, name, sample, data)
    os.chmod(path, 0o600)
    return path


def _read_key(_sample: Sample, path: str) -> Any:
    key = KeyFile(path).get_secret_bytes()
    if not 32 <= len(key) <= 65536 or not any(key):
        raise FaultError("key", "too short, too long, or of zero bytes alone")
    return key


def report_readers() -> list[Reader]:
    public: dict[str, Any] = {"marks": ()}
    return [
        Reader("report", report_samples, (ReportFileError,), place_file, _read_report, cost=0.3, **public),
        Reader("show", report_samples, (UserError, ReportFileError, StreamError), place_file, _show, cost=1, **public),
        Reader("report-folder", _folder_samples, (StreamError,), _place_folder, _read_folder, cost=0.6, **public),
        Reader("plan", _plan_samples, (UserError,), place_file, _read_plan, cost=0.7, **public),
        Reader("domain", _domain_samples, (ValueError,), place_file, _read_domain, cost=0.3, **public),
        Reader("key", _key_samples, (ValueError,), _place_key, _read_key, cost=0.3, **public),
    ]
