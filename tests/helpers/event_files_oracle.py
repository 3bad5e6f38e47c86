"""Reading logs in plain Python, for comparison, and what every reader must hold to. Writers: log_files.py."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.logs import EventFields, LogChunk, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import ReadBlock

Event = tuple[str, str, int]
SECRET = "s3cr3t-cell-4711"


def read_all(
    sources: str | Sequence[str], fields: EventFields | None = None
) -> tuple[list[Event], dict[str, list[int]]]:
    """Events and rejected positions by reason; checks on the way what holds for every block."""
    fields = fields or EventFields()
    chunks = find_log_chunks([sources] if isinstance(sources, str) else sources, fields)
    return read_chunks(chunks, fields)


def read_chunks(chunks: Iterable[LogChunk], fields: EventFields) -> tuple[list[Event], dict[str, list[int]]]:
    read: list[ReadBlock] = []
    for chunk in chunks:
        blocks = list(read_log_chunk(chunk, fields))
        assert chunk.events in (None, sum(block.rows for block in blocks))
        assert {part.source for block in blocks for part in block.rejected} <= {chunk.path}
        read += blocks
    return found_in(read)


def found_in(blocks: Iterable[ReadBlock]) -> tuple[list[Event], dict[str, list[int]]]:
    """As `read_all`."""
    events: list[Event] = []
    rejected: dict[str, list[int]] = {}
    for block in blocks:
        for column in (block.batch.user, block.batch.item):
            assert column.type == pa.dictionary(pa.int32(), pa.string())
            assert column.null_count == 0
            column.validate(full=True)
            labels = column.dictionary.to_pylist()
            assert len(set(labels)) == len(labels)
            assert "" not in labels
            assert len(pc.unique(column.indices)) == len(labels)
        for part in block.rejected:
            assert SECRET not in part.reason
            rejected.setdefault(part.reason, []).extend(part.positions)
        columns = block.batch.user.to_pylist(), block.batch.item.to_pylist(), block.batch.time_micros.tolist()
        events += zip(*columns, strict=True)
    return events, {reason: sorted(positions) for reason, positions in rejected.items()}


def expected(
    rows: Iterable[Sequence[Any]], unit: str | None = None, first: int = 1
) -> tuple[list[Event], dict[str, list[int]]]:
    """What (user, item, time) rows must give. first: the position of the first one."""
    events: list[Event] = []
    rejected: dict[str, list[int]] = {}
    for position, (user, item, time) in enumerate(rows, first):
        micros = oracle_micros(time, unit)
        reason = (
            _id_fault("user", user)
            or _id_fault("item", item)
            or ("missing time" if time in (None, "") else None)
            or ("time has the wrong type" if isinstance(time, (bool, list, dict)) else None)
            or ("bad time" if micros is None else None)
        )
        if reason:
            rejected.setdefault(reason, []).append(position)
        else:
            assert micros is not None
            events.append((_text(user), _text(item), micros))
    return events, rejected


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _id_fault(role: str, value: Any) -> str | None:
    if value is None:
        return f"missing {role}"
    if isinstance(value, (bool, float, list, dict)):
        return f"{role} has the wrong type"
    if value in ("", b""):
        return f"empty {role}"
    try:
        value.decode() if isinstance(value, bytes) else str(value).encode()
    except UnicodeError:
        return f"{role} is not valid UTF-8 (of Latin-1: iconv -f latin1 -t utf-8)"
    return None


def oracle_micros(time: Any, unit: str | None) -> int | None:
    if isinstance(time, datetime.datetime):
        moment = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
        micros = (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(0, 0, 1)
    elif isinstance(time, str) and unit in (None, "iso"):
        if "\0" in time:  # Python passes over one at the end
            return None
        try:
            return oracle_micros(datetime.datetime.fromisoformat(time.replace("Z", "+00:00")), None)
        except ValueError:
            return None
    elif isinstance(time, (bool, list, dict)) or unit in (None, "iso") or time is None:
        return None
    else:
        factor = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
        if isinstance(time, int) or (isinstance(time, str) and time.removeprefix("-").isdigit()):
            micros = int(time) * factor
        else:
            try:
                number = float(time)
            except ValueError:
                return None
            if not math.isfinite(number) or abs(number) > 1e18:
                return None
            # Also the product is a float: this is what is documented for times that are floats.
            micros = int(decimal.Decimal(number * factor).to_integral_value(decimal.ROUND_FLOOR))
    return micros if -62_135_596_800_000_000 <= micros < 253_402_300_800_000_000 else None
