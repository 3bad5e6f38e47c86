"""JSON lines in files: one object per line; `json_decoder` says which lines are events.

Blank lines are not events. Positions are numbers of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from dp_transforms.checks import on_one_line
from dp_transforms.logs import id_columns, text_spans, times
from dp_transforms.logs.json_decoder import Integer, LineParser, decode_lines
from dp_transforms.logs.line_blocks import BLANKS, UTF8_MARK, LineBlock, line_blocks
from dp_transforms.logs.log_chunk import (
    EventFields,
    LogChunk,
    ReadBlock,
    damaged_error,
    time_unit_error,
)
from dp_transforms.logs.log_input import log_size
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.text_files import NOT_UTF8_TEXT, ByteShares, read_head
from dp_transforms.stores.remote_files import StoredFile

_BLOCK_BYTES = 4 << 20  # a broken line of 2 bytes takes 100 in memory; larger blocks are not faster
_LOOKED_AT_LINES = 100
JSON_ARRAY = "it is a JSON array. Write one object per line: jq -c '.[]' OLD.json > NEW.jsonl"


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk. It is not opened: an error must not depend on its lines, which are users'."""
    del fields
    return [LogChunk(path, "json", None, None, log_size(path, stored), stored=stored)]


def cut_chunk(chunk: LogChunk, fields: EventFields, parts: int) -> list[LogChunk]:
    """At ends of lines, unless the file is packed: each line is an event, or not, by itself."""
    del fields
    return text_spans.cut_chunk(chunk, parts)


def hint(path: str, fields: EventFields, stored: StoredFile | None = None) -> str | None:
    """A reason why all lines of a file may be rejected, found in its first lines. For the operator."""
    head, is_whole = read_head(path, stored)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(0) > len(head):
        return f"{on_one_line(path)}: it looks like UTF-16 text. Convert it to UTF-8."
    if is_array(head):
        return f"{on_one_line(path)}: {JSON_ARRAY}"
    lines = [line.strip(BLANKS) for line in head.split(b"\n")]
    if not is_whole:
        lines.pop()
    lines = [line for line in lines if line][:_LOOKED_AT_LINES]
    parser = LineParser(fields)
    events = [event for event in map(parser.parse, lines) if event is not None]
    where = f"{on_one_line(path)}: none of its first {len(lines)} lines"
    if not events:
        return f"{where} is a JSON object. Write one object per line." if lines else None
    for name in fields.names:
        if all(name not in event for event in events):
            return f"{where} has a field {name!r}. Name it with {fields.flag(name)}."
    moments = [event[fields.time] for event in events if event.get(fields.time) is not None]
    is_number = [isinstance(moment, (Integer, float)) for moment in moments]
    if not _are_utf8(lines):
        return f"{on_one_line(path)}: {NOT_UTF8_TEXT}"
    if fields.time_unit not in times.MICROS_PER_UNIT and is_number and all(is_number):
        return str(time_unit_error(path, fields))
    return None


def is_array(head: bytes) -> bool:
    """Whether a file that begins so is one JSON array of objects."""
    return re.match(rb"\s*\[\s*(?:\{|$)", head.removeprefix(UTF8_MARK)[:1024]) is not None


def _are_utf8(lines: list[bytes]) -> bool:
    try:
        return b"\n".join(lines).decode() is not None
    except UnicodeDecodeError:
        return False


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The lines, in blocks of about 4 MB."""
    shares = ByteShares(chunk.bytes)
    lines_read = 0
    try:
        with text_spans.open_text(chunk) as text:
            for block in line_blocks(text.stream, _BLOCK_BYTES):
                lines_read = block.first_line - 1
                yield text.number(_read_block(chunk.path, block, fields, shares.up_to(text.bytes_read())))
    except (pa.ArrowException, OSError):
        raise damaged_error(chunk.path, "gzip", None if chunk.span else lines_read) from None
    yield ReadBlock(id_columns.empty_batch(), (), 0, shares.rest())


def _read_block(path: str, block: LineBlock, fields: EventFields, byte_share: int) -> ReadBlock:
    unparsed = [RejectedEvents(path, block.too_long, id_columns.LINE_TOO_LONG)] if block.too_long else []
    read = decode_lines(block, fields)
    broken = read.broken()
    if len(broken):
        unparsed.append(RejectedEvents(path, tuple(broken.tolist()), id_columns.BROKEN_LINE))
    return id_columns.assemble_block(path, read.columns, lambda rows: read.numbers()[rows], byte_share, unparsed)
