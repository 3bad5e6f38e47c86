"""Rows of x' in text formats: what breaks the reading of lines, cells, quotes, numbers and times, if anything can.

Each case is the rows that x' writes, in their order. None of them holds ``\\n``: whoever writes a log for many users
must not let one of them end a row. A lone CR is not such an end everywhere, so it is in here; what stands behind it
names no other user.
"""

from __future__ import annotations

from tests.neighbours.logs import ADDED_USER, NOW

MB = 1 << 20
_T = NOW.encode()
_ME = ADDED_USER.encode()
BOM = b"\xef\xbb\xbf"

_TIMES = (
    *("9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0000-00-00T00:00:00Z"),
    *("9223372036854775807", "-9223372036854775808", "99999999999999999999999", "1e400", "-1e400", "nan", "inf", "-"),
    *("2023-02-30T00:00:00Z", "2023-11-14T22:14:30.", "1970-01-01", "١٢٣٤", "2023-11-14T22:14:30+99:99", "\x00"),
)


def _csv() -> dict[str, list[bytes]]:
    def row(item: bytes, time: bytes = _T, user: bytes = _ME) -> bytes:
        return b",".join([user, item, time])

    return {
        "well formed": [row(b"A"), row(b"mine")],
        "quote opens a row": [b'"' + row(b"A")],
        "quote opens a cell": [row(b'"A')],
        "quote opens the last cell": [row(b"A", b'"' + _T)],
        "quote inside a cell": [row(b'A"B')],
        "quote closes and goes on": [row(b'"A"B')],
        "three quotes open a cell": [row(b'"""A')],
        "quotes alone": [b'"', b'""', b'"""'],
        "a quote opens, later one closes": [b'"' + row(b"A"), row(b"A") + b'"'],
        "a last cell opens, a first one closes": [row(b"A", b'"' + _T), b'",' + row(b"A")],
        "cells open and close in turn": [row(b'"A'), row(b'A"'), row(b'"A'), row(b'A"'), row(b'"A')],
        "quotes of all sorts": [b'"' * count + row(b"A" + b'"' * (count // 2)) for count in range(1, 9)],
        "backslash and quote": [row(b'"A\\"B"'), row(b'A\\"'), row(b"A\\"), b"\\"],
        "line end in a quoted cell, as CR": [row(b'"A\rB"'), row(b'"A\r')],
        "NUL": [row(b"A\0B"), b"\0", b"\0" * 100, row(b"A", user=b"x'\0")],
        "byte order mark": [BOM + row(b"A"), BOM, row(b"A") + BOM],
        "marks of UTF-16 and UTF-32": [b"\xff\xfe" + row(b"A"), b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"],
        "UTF-16": [row(b"A").decode().encode("utf-16-le")],
        "lone CR": [row(b"A") + b"\r" + row(b"B"), b"\r", b"\r\r\r", row(b"A") + b"\r\r"],
        "CR inside a cell": [row(b"A\rB"), _ME + b",A\r," + _T],
        "line ends of Unicode": [
            row(end.encode() + b"A") + end.encode() for end in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c")
        ],
        "invalid UTF-8": [row(b"\xff\xfe\xc0\x80"), row(b"A", user=b"\xed\xa0\x80"), row(b"A", b"\xff"), b"\x80"],
        "too few cells": [_ME, _ME + b",A", b"x", b" "],
        "blanks": [b"", b"  ", b"\t", b" \t "],
        "too many cells": [row(b"A") + b',\xff,"', row(b"A") + b",more", b"," * 50, b"," * 5000, row(b"A,A,A,A")],
        "empty cells": [b",,", row(b""), row(b"A", b""), row(b"A", user=b"")],
        "the header again": [b"user,item,timestamp", b"timestamp,item,user", b"user,user,user"],
        "other separators": [row(b"A").replace(b",", b";"), row(b"A").replace(b",", b"\t"), row(b"A|B")],
        "times": [row(b"A", time.encode()) for time in _TIMES],
        "long names": [row(b"A" * 16_384), row(b"A" * 16_385), row(b"A", user=b"x'" * 9_000)],
        "cells of 1 MB": [row(b"A" * MB), row(b'"' + b"A" * MB + b'"')],
        "1 MB of commas": [b"," * MB],
        "a row of 1 MB without a comma": [b"A" * MB],
        "1 MB of quotes": [b'"' * MB, b'"' * (MB + 1)],
        "many rows": [row(b"A")] * 1_000,
        "many rows of one cell": [_ME] * 1_000,
    }


CSV = _csv()
CSV_LARGE = {
    "a cell of 9 MB": [_ME + b"," + b"A" * (9 * MB) + b"," + _T],
    "a row of 17 MB without a comma": [b"A" * (17 * MB)],
    "an open quote and 9 MB": [_ME + b',"' + b"A" * (9 * MB) + b"," + _T],
    "120,000 rows": [_ME + b",A," + _T] * 120_000,
    "20,000 rows of one cell": [_ME] * 20_000,
}


def _json() -> dict[str, list[bytes]]:
    rest = b'"item": "A", "timestamp": "' + _T + b'"}'
    me = b'{"user": "x\'", '
    whole = me + rest
    return {
        "well formed": [whole, whole.replace(b'"A"', b'"mine"')],
        "no item": [me + b'"timestamp": "' + _T + b'"}'],
        "no field of ours": [b'{"other": 1}', b"{}"],
        "other types": [
            me + b'"item": %s, "timestamp": %s}' % (value, value)
            for value in (b"null", b"true", b"1", b"1.5", b"[]", b"{}", b'""', b"1e400", b"-0", b"1" * 400)
        ],
        "a user of another type": [
            b'{"user": %s, ' % value + rest for value in (b"null", b"7", b"7.5", b"[]", b"{}", b'""', b"false")
        ],
        "times": [whole.replace(_T, time.encode()) for time in _TIMES if time != "\x00"],
        "keys twice": [
            me + b'"user": "x\'", ' + rest,
            b'{"item": "B", ' + whole[1:],
            me + b'"a": {"user": "u1", "user": "u2"}, ' + rest,
            me + b'"us\\u0065r": "x\'", ' + rest,
        ],
        "nested": [me + b'"a": {"user": "u1", "item": "A"}, ' + rest, b'{"user": {"user": "u1"}, ' + rest],
        "deep": [b"[" * 300, me + b'"a": ' + b"[" * 300 + b"]" * 300 + b", " + rest, b'{"a":' * 300],
        "very deep": [b"[" * 100_000, me + b'"a": ' + b"[" * 100_000 + b"]" * 100_000 + b", " + rest],
        "no object": [b"7", b'"A"', b"null", b"[]", b"[" + whole + b"]", b"user,item,timestamp"],
        "broken": [b"{", b"}", b"}{", b"{{", b"]", b'"', b"'", b"\\", b":", b",", whole[:-1], whole + b"}", whole[1:]],
        "several in a line": [whole + whole, whole + b" " + whole, whole + b"," + whole, whole + b"}{" + whole],
        "open texts": [b'{"user": "x\'', b'{"user": "x\', "item": "A", "a": "}', whole + b'"', b'"' + whole],
        "brackets in texts": [me + b'"a": "}", ' + rest, me + b'"a": "}{", ' + rest, me + b'"a": "{[", ' + rest],
        "no JSON": [whole.replace(b'"', b"'"), me + b'"a": NaN, ' + rest, me + b'"a": Infinity, ' + rest, b"NaN"],
        "trailing comma": [whole[:-1] + b",}", me + b"," + rest],
        "NUL": [whole + b"\0", b"\0" + whole, b"\0", me + b'"a": "\0", ' + rest, me + b'"a": "\\u0000", ' + rest],
        "byte order mark": [BOM + whole, BOM, whole + BOM, BOM + BOM + whole],
        "marks of UTF-16 and UTF-32": [b"\xff\xfe" + whole, b"\xfe\xff", b"\xff\xfe\0\0", b"\0\0\xfe\xff"],
        "UTF-16": [whole.decode().encode("utf-16-le"), whole.decode().encode("utf-16-be")],
        "lone CR": [whole + b"\r" + whole, b"\r", b"\r\r", b"{\r" + whole[1:]],
        "line ends of Unicode": [
            me + b'"a": "' + end.encode() + b'", ' + rest + end.encode() for end in ("\u2028", "\u2029", "\x85")
        ],
        "invalid UTF-8": [me + b'"a": "\xff", ' + rest, b"\xff", b'{"user": "\xed\xa0\x80", ' + rest],
        "surrogates": [me + b'"a": "\\ud800", ' + rest, b'{"user": "\\udfff", ' + rest, b'{"user": "\\ud83d", ' + rest],
        "blank": [b"", b" ", b"\t \t"],
        "long names": [b'{"user": "%s", ' % (b"x'" * 9_000) + rest, me + b'"%s": 1, ' % (b"k" * 99_999) + rest],
        "a text of 1 MB": [me + b'"a": "' + b"A" * MB + b'", ' + rest],
        "a row of 1 MB": [b"A" * MB, b"{" * MB, b'"' * MB, b"\\" * MB],
        "blanks of 1 MB": [b" " * MB + whole, whole + b" " * MB, b" " * MB],
        "many rows": [whole] * 1_000,
        "many broken rows": [b"{"] * 1_000,
    }


JSON = _json()
_REST = b'"item": "A", "timestamp": "' + _T + b'"}'
JSON_LARGE = {
    "a text of 9 MB": [b'{"user": "x\'", "a": "' + b"A" * (9 * MB) + b'", ' + _REST],
    "an item of 20 MB, twice": [b'{"user": "x\'", "b": "' + b"A" * (20 * MB) + b'", ' + _REST] * 2,
    "deeper than a stack": [b"[" * 1_000_000, b'{"a":' * 1_000_000],
    "120,000 rows": [b'{"user": "x\'", ' + _REST] * 120_000,
    "20,000 broken rows": [b"{"] * 20_000,
}
