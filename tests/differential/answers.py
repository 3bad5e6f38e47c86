"""What the code in PYTHONPATH makes of generated logs and plans: one line of JSON for each case, by numbers alone.

    PYTHONPATH=TREE python tests/differential/answers.py FIRST END

Each case is a plan, a log in one of four formats with rows that cannot be read, and a way to run it without Beam: at
once, in parts that hand over what they keep, or in the order of a stream. Only names that old and new code share are
used here; what is new must be asked for elsewhere.
"""

from __future__ import annotations

import csv
import hashlib
import json
import pathlib
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms import EventFields, Plan, PublicItems, WindowSchedule, find_log_chunks
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, candidates_in_order
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.pack_contributions import MergeContributions, PackContributions
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.stage import AtOnceStep, Partitioning, Sharding, Span, StateChunk, packed_by_group
from dp_transforms.core.state_chunks import Kind
from dp_transforms.core.steps import block_reports, stages_of
from dp_transforms.logs import JoinedChunks, read_joined
from dp_transforms.plan import plan as plan_module
from dp_transforms.plan import stored
from tests.helpers.modes import plan_in_rounds

START, HOUR, MICROS = 1_767_225_600, 3600, 1_000_000
SECRET = bytes(range(40))
FORMATS = ("parquet", "avro", "csv", "jsonl")
_PLANS = 60  # different ones; each is taken again with other logs
Row = tuple[str | None, str | None, int | None]
_NEW_NAMES = {"usual_looks": "usual_contributions", "most_looks": "most_contributions"}
_OLD_FIELDS = {"contributions": "looks", "followed": "known", "usual_tests": "usual_looks", "public_items": "domain"}
_OLD_KINDS = {Kind.USER_BUDGETS: "purses", Kind.FOLLOWED: "known"}  # of what a stream keeps
_fingerprint_of = stored.fingerprint_of


def in_old_words(fields: Any) -> Any:
    """The fields of a plan as the old code stores them. They enter its fingerprint, and so the noise."""
    if not isinstance(fields, dict):
        return fields
    found = {_OLD_FIELDS.get(name, name): in_old_words(each) for name, each in fields.items()}
    if "publishes" in found:
        found["mode"] = {"names": "hits", "counts": "hits-with-counts"}[found.pop("publishes")]
        found["accountant"] = "game"
    return found | ({"format_version": 4} if "format_version" in found else {})


def _old_fingerprint_of(fields: Any) -> str:
    return _fingerprint_of(in_old_words(fields))


stored.fingerprint_of = plan_module.fingerprint_of = _old_fingerprint_of


def plan_choices(number: int) -> dict[str, Any]:
    """Arguments of `Plan.calibrate` of old code; hours: of the run. known: how many items are known, or 0."""
    draws = random.Random(f"plan {number % _PLANS}")
    kind = ("looks", "looks", "rounds", "hits", "hits-with-counts", "looks-known", "hits-known")[number % _PLANS % 7]
    hours = draws.choice((6, 9, 24, 30))
    choices: dict[str, Any] = {
        "mode": kind.split("-known")[0].replace("rounds", "looks"),
        "epsilon": draws.choice((6.0, 15.0, 40.0)),
        "delta": draws.choice((1e-3, 1e-2)),
        "hours": hours,
        "sliding": draws.choice((1, 1, 3)),
        "known": draws.choice((5, 12)) if "known" in kind else 0,
    }
    if kind.startswith("hits"):
        choices |= {"hits_per_user": draws.choice((1, 2, 4)), "max_items_per_user": draws.choice((1, 3))}
        if kind == "hits-known":
            choices["threshold"] = draws.choice((4, 9))
    else:
        low = draws.choice((1, 2, 5))
        choices |= {"usual_looks": (low, low * draws.choice((1, 4, 8)))}
        if draws.random() < 0.5:
            choices["most_looks"] = low * 30
        if kind == "looks" and draws.random() < 0.5:
            choices["forget_after"] = draws.choice((2, 4))
        if kind == "rounds":
            choices["rounds"] = True
    return choices


def plan_of(number: int) -> tuple[Plan, list[str]]:
    """And the items of its known domain."""
    choices = plan_choices(number)
    hours, sliding, known = (choices.pop(name) for name in ("hours", "sliding", "known"))
    schedule = WindowSchedule(START, START + hours * HOUR, sliding * HOUR, HOUR)
    items = [f"topic-{item}" for item in range(known)]
    choices |= {"public_items": PublicItems.of_ids(items) if known else None, "max_users": 1000, "max_items": 1000}
    mode = choices.pop("mode")
    if mode == "looks":
        choices = {_NEW_NAMES.get(name, name): choice for name, choice in choices.items()}
        if choices.pop("rounds", False):  # whatever the rule says
            choices = {name: each for name, each in choices.items() if name != "public_items"}
            return plan_in_rounds(schedule, false_names=0.65, **choices), items
        return Plan.for_contributions(schedule=schedule, use="stream", **choices), items
    return Plan.for_hits(schedule=schedule, counts=mode == "hits-with-counts", **choices), items


def rows_of(number: int, hours: int) -> list[Row]:
    """Topics that shift, odd items, users with much, rows that are outside, and rows that lack something."""
    draws = random.Random(f"rows {number}")
    crowd, topics, rows = draws.choice((40, 90, 200)), draws.choice((3, 8)), list[Row]()
    for _ in range(crowd * hours * 2):
        at = draws.randrange(-HOUR, hours * HOUR + HOUR) if draws.random() < 0.05 else draws.randrange(hours * HOUR)
        shift = at // HOUR // 4
        item = f"topic-{(shift + min(int(draws.expovariate(1)), topics)) % (topics + 4)}"
        item = f"odd {draws.randrange(40)}" if draws.random() < 0.15 else item
        user = f"busy-{draws.randrange(2)}" if draws.random() < 0.1 else f"user-{draws.randrange(crowd)}"
        rows.append((user, item, START + at))
    for _ in range(draws.randrange(6)):
        rows[draws.randrange(len(rows))] = draws.choice(
            ((None, "topic-0", START), ("user-1", None, START), ("user-1", "topic-1", None), ("", "topic-1", START))
        )
    rows.append(("user-0", "long" * 4097, START))
    return rows


def write_log(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """In the format of its ending."""
    users, items, times = zip(*rows, strict=True)
    micros = [None if time is None else time * MICROS for time in times]
    if path.suffix == ".parquet":
        table = pa.table({"user": users, "item": items, "timestamp": pa.array(micros, pa.timestamp("us", "UTC"))})
        pq.write_table(table, path, row_group_size=300)
    elif path.suffix == ".avro":
        kinds = {"user": "string", "item": "string", "timestamp": {"type": "long", "logicalType": "timestamp-micros"}}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
        schema = fastavro.parse_schema({"type": "record", "name": "Event", "fields": fields})
        records = ({"user": u, "item": i, "timestamp": t} for u, i, t in zip(users, items, micros, strict=True))
        with path.open("wb") as file:
            fastavro.writer(file, schema, records, sync_interval=4000, sync_marker=bytes(range(16)))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("user", "item", "timestamp"))
            writer.writerows(rows)
            file.write("one cell\n")
    else:
        lines = [json.dumps({"user": user, "item": item, "timestamp": time}) for user, item, time in rows]
        path.write_text("\n".join([*lines, "{no row", "[]"]))


class _Known:
    """The items of a known domain, for a stage."""

    def __init__(self, items: Sequence[str]) -> None:
        self._labels = PublicItems.of_ids(items).labels

    def table(self, keys: Any) -> ItemTable:
        return ItemTable.of_labels(self._labels, keys.hash_items)[0]


class Answers:
    """A case at work. What it publishes, and what a part hands over, goes into one digest."""

    def __init__(self, number: int) -> None:
        self.plan, items = plan_of(number)
        self.run = PlannedRun(plan=self.plan, stream="events", run_id=f"run {number}")
        self.domain = _Known(items) if items else None
        self.rows = rows_of(number, self.plan.schedule.horizon)
        self.counts: Counter[str] = Counter()
        self.told: list[Any] = [in_old_words(json.loads(self.plan.to_json()))]

    def read(self, number: int) -> Any:
        """All rows that can be read, as one batch; the others are told."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, f"log.{FORMATS[number % len(FORMATS)]}")
            write_log(path, self.rows)
            fields = EventFields(time_unit="s" if path.suffix in (".csv", ".jsonl") else None)
            batches = []
            for joined in (JoinedChunks((chunk,)) for chunk in find_log_chunks([str(path)], fields)):
                for block in read_joined(joined, fields):
                    batches.append(block.batch)
                    for rejected in block.rejected:
                        self.told.append([rejected.reason, sorted(int(each) for each in rejected.positions)])
            return batches

    def at_once(self, batches: Sequence[Any], part: RunPart | None = None) -> None:
        stages = stages_of(self.run, self.domain, is_replay=part is None, is_part=part is not None)
        pays_tests = self.plan.contributions is not None
        cuts = Partitioning.of(self.plan.schedule, pays_tests=pays_tests, shards=3, part=part)
        packing = PackContributions(self.plan.schedule, cuts.users, part)
        keys = IdKeys(SECRET)
        domain = None if self.domain is None else self.domain.table(keys)
        groups = _grouped(each for batch in batches for each in packing.pack(batch, keys, domain, self.counts))
        if self.plan.rounds is not None:
            merge = MergeContributions().start(SECRET)
            groups = _grouped(each for group in groups for each in merge(group, self.counts))
        named: list[list[bytes]] = []
        rounds = list(stages.in_rounds())
        for number, (_, users, items) in enumerate(rounds, 1):
            is_last = number == len(rounds)
            to = Sharding((cuts.windows if is_last else cuts.users).windows_per_range, 1)
            add = AtOnceStep(users, cuts.users, cuts.users, part)
            sent = self._step(add, groups, named)
            if items.public_items is not None or (part is not None and items.step.KIND is not None):
                windows = cuts.users.windows_per_range
                whole = part or RunPart.whole(self.plan.schedule)
                window_ranges = range(whole.first // windows, -(-whole.end // windows))
                sent += [
                    ((window_range, shard), b"") for window_range in window_ranges for shard in range(cuts.users.shards)
                ]
            find = AtOnceStep(items, cuts.users, to, part)
            found = self._step(find, _grouped(sent), named)
            if number == 1 and self.plan.rounds is not None:
                whole = part or RunPart.whole(self.plan.schedule)
                self._reported(list(block_reports(self.run, whole, NamedItems.of_messages(blob for _, blob in found))))
            keeps = 1 if self.plan.rounds is not None else 0
            named = [*named[:keeps], [blob for _, blob in found]]
        if self.plan.hits is not None:  # users are charged in windows that come in order
            charged = _Charged(self.run, (part or RunPart.whole(self.plan.schedule)).first)
            self._reported(charged.close([blob for _, blob in found if blob]))
            self.told.append(charged.told())
        else:
            named = NamedItems.of_messages(blob for _, blob in found)
            self._reported(list(named.window_reports(self.plan, self.run.stream)))

    def in_order(self, batches: Sequence[Any]) -> None:
        """Window after window, with all that each step keeps."""
        stages = stages_of(self.run, self.domain)
        schedule, cut = self.plan.schedule, Sharding(1, 3)
        packing = PackContributions(schedule, cut)
        keys = IdKeys(SECRET)
        domain = None if self.domain is None else self.domain.table(keys)
        packed = dict(_grouped(each for batch in batches for each in packing.pack(batch, keys, domain, self.counts)))
        charged = None if self.plan.hits is None else _Charged(self.run, 0)
        works = [stage.start(SECRET) for stage in stages]
        shards = [3, 3, 1]
        states = [[work.restore((), 0) for _ in range(3)] for work in works]
        reports = []
        for window in range(schedule.horizon):
            sent = [(shard, blob) for shard in range(3) for blob in packed.get((window, shard), [])]
            for step, work in enumerate(works):
                came = defaultdict(list)
                for shard, blob in sent:
                    came[shard].append(blob)
                sent = []
                for shard in range(shards[step]):
                    if not came[shard] and not work.runs_on_empty:
                        continue
                    span = Span(window, window + 1, shard, shards[step])
                    columns = work.TAKES.of_messages(came[shard])
                    advanced = work.process(states[step][shard], columns, span, self.counts)
                    for (_, to), blobs in packed_by_group(advanced, Sharding(1, shards[step + 1])):
                        sent += [(to, blob) for blob in blobs]
            blobs = [blob for _, blob in sent]
            if charged is None:
                named = NamedItems.of_messages(blobs).window_reports(self.plan, self.run.stream)
                reports += [report for _, report in named]
            elif blobs:
                reports += charged.close(blobs)
        self._reported(reports)
        if charged is not None:
            self.told.append(charged.told())
        for work, of_shards in zip(works, states, strict=True):
            if work.state_kind is not None:
                for state in of_shards:
                    chunks = [(_OLD_KINDS[kind], _digest(chunk)) for kind, chunk in work.chunks(state)]
                    self.told.append(sorted(chunks))

    def _step(self, step: AtOnceStep, groups: Sequence[Any], named: Sequence[Any]) -> list[Any]:
        work, found, kept = step.start(SECRET), list[Any](), list[str]()
        for key, blobs in groups:
            for output in work((key, blobs, *named), self.counts):
                if isinstance(output, StateChunk):
                    kept.append(_digest(output.packed))
                else:
                    found.append(output)
        if kept:
            self.told.append(sorted(kept))
        return found

    def _reported(self, found: Sequence[Any]) -> None:
        reports = sorted(each[1] if isinstance(each[0], int) else each for each in found)
        self.told += [_fields(report) for report in reports]

    def line(self, number: int) -> str:
        told = {name: count for name, count in sorted(self.counts.items()) if count}
        kinds = Counter(each["found"] for each in self.told if isinstance(each, dict) and "found" in each)
        named = sum(found * times for found, times in kinds.items())
        mode = self.told[0]["hits"]["mode"] if "hits" in self.told[0] else "looks"
        digest = _digest([self.told, told])
        return json.dumps({"case": number, "mode": mode, "named": named, "digest": digest})


class _Charged:
    """The last step where users pay for hits, with what it keeps."""

    def __init__(self, run: PlannedRun, first: int) -> None:
        self._monitor = HeavyHitterMonitor(run.plan, run.stream_keys(SECRET))
        self._state = MonitorState(first)

    def close(self, blobs: Sequence[bytes]) -> list[Any]:
        candidates = candidates_in_order([ItemHolders.from_bytes(blob) for blob in blobs])
        return [report for _, report in self._monitor.close_windows(candidates, self._state)]

    def told(self) -> Any:
        return [self._state.hit_bound, sorted(map(_digest, self._state.budgets.chunks()))]


def _fields(report: Any) -> dict[str, Any]:
    """Of a report, without what it does not say."""
    fields = {**report._asdict(), "found": len(report.heavy_hitters)}
    fields["heavy_hitters"] = [
        {name: value for name, value in each._asdict().items() if value not in (None, ())}
        for each in report.heavy_hitters
    ]
    return fields


def _grouped(packed: Any) -> list[tuple[Any, list[bytes]]]:
    groups: dict[Any, list[bytes]] = defaultdict(list)
    for key, blob in packed:
        groups[key].append(blob)
    return sorted(groups.items())


def _digest(value: Any) -> str:
    data = value if isinstance(value, (bytes, memoryview)) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def answers(numbers: range) -> Iterator[str]:
    for number in numbers:
        case = Answers(number)
        batches = case.read(number)
        way = (number // _PLANS + number) % 3
        if way == 0 or (way == 2 and case.plan.rounds is not None):
            case.at_once(batches)
        elif way == 1:
            case.at_once(batches, RunPart(0, case.plan.schedule.horizon // 2))
        else:
            case.in_order(batches)
        yield case.line(number)


if __name__ == "__main__":
    for line in answers(range(int(sys.argv[1]), int(sys.argv[2]))):
        print(line, flush=True)
