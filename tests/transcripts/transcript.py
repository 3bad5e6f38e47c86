"""What a run left as lines of text; the runs that left the same, as data/ stores them; the first line that differs."""

from __future__ import annotations

import hashlib
import itertools
import json
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dp_transforms import ReportHeader
from tests.transcripts.cases import READERS
from tests.transcripts.drivers import DRIVERS, Left, prepared

DATA = pathlib.Path(__file__).parent / "data"
Member = tuple[str, str]  # driver, reader
Lines = Mapping[str, list[str]]  # of each aspect that a driver shows


def members() -> list[Member]:
    """Parts read what a replay reads: with one reader."""
    return [*(("replay-1", reader) for reader in READERS), ("parts", READERS[0])]


def ran(mode: str, member: Member) -> Lines:
    driver, reader = member
    with tempfile.TemporaryDirectory() as folder:
        return lines_of(DRIVERS[driver](prepared(pathlib.Path(folder), mode, reader)))


def lines_of(left: Left) -> Lines:
    """Nothing is masked: a report has no time at which it was made."""
    found = {
        "report": [_line(_as_dict(window)) for window in left.reports],
        "header": [] if left.header is None else list(_flat(_stored(left.header), "")),
        "dead letter": [f"{file} {position}: {reason}" for file, position, reason in left.bad],
        "counts": [f"{name}: {count}" for name, count in sorted(left.counts.items())],
        "bytes of the report": [hashlib.sha256(left.files).hexdigest()] if left.files else [],
    }
    return {aspect: lines for aspect, lines in found.items() if lines}


def _stored(header: ReportHeader) -> dict[str, Any]:
    fields = json.loads(header.to_json())
    del fields["version"]
    return fields


def _as_dict(window: Any) -> dict[str, Any]:
    return {**window._asdict(), "heavy_hitters": [hitter._asdict() for hitter in window.heavy_hitters]}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=int)


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: {_line(inner)}"


def grouped(found: Mapping[Member, Lines]) -> dict[str, list[dict[str, Any]]]:
    """By aspect the different answers, each with who gave it."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for aspect in dict.fromkeys(itertools.chain.from_iterable(found.values())):
        answers: list[tuple[list[str], list[Member]]] = []
        for member, lines in found.items():
            if aspect in lines:
                same = [who for answer, who in answers if answer == lines[aspect]]
                same[0].append(member) if same else answers.append((lines[aspect], [member]))
        groups[aspect] = [{"of": _by_driver(who), "lines": answer} for answer, who in answers]
    return groups


def _by_driver(who: Iterable[Member]) -> dict[str, str]:
    return {driver: ", ".join(reader for _, reader in of) for driver, of in itertools.groupby(who, lambda one: one[0])}


def write(mode: str, found: Mapping[Member, Lines]) -> None:
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{mode}.json"
    path.write_text(json.dumps(grouped(found), ensure_ascii=False, indent=1) + "\n")


def stored(mode: str) -> dict[Member, dict[str, list[str]]]:
    """What `write` was given."""
    found: dict[Member, dict[str, list[str]]] = {}
    for aspect, groups in json.loads((DATA / f"{mode}.json").read_text()).items():
        for group in groups:
            for driver, readers in group["of"].items():
                for reader in readers.split(", "):
                    found.setdefault((driver, reader), {})[aspect] = group["lines"]
    return found


def difference(expected: Lines, found: Lines) -> str | None:
    """The first line of the first aspect that is another one, with both sides; None where all is as stored."""
    for aspect in dict.fromkeys([*expected, *found]):
        pairs = itertools.zip_longest(expected.get(aspect, []), found.get(aspect, []))
        for number, (before, now) in enumerate(pairs, 1):
            if before != now:
                return f"{aspect}, line {number}\n  stored: {before}\n  now:    {now}"
    return None
