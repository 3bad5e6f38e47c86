"""The fingerprints that bind a run to its log and key."""

import pytest

from dp_transforms.logs import ending_of_log
from dp_transforms.runs.fingerprints import input_fingerprint, input_key, key_fingerprint, sealing_key
from dp_transforms.runs.records import StateError
from tests.helpers.small_runs import SECRET


def test_the_fingerprint_of_a_log_is_that_of_its_content_how_it_is_read_and_the_key(tmp_path):
    for name, content in (("a", b"1"), ("b", b"2"), ("copy of a", b"1")):
        (tmp_path / name).write_bytes(content)

    def text(*names, read_as="csv", reading=("user", "item"), key=None):
        return input_fingerprint([(str(tmp_path / name), read_as) for name in names], reading, key)

    assert text("a", "b") == text("b", "a", "a") == text("copy of a", "b")
    different = [
        *(text("a"), text("a", "b"), text("a", "copy of a"), text("b"), text()),
        *(text("a", reading=reading) for reading in (("item", "user"), ("us", "er"), ("use", "r"))),
        # The same bytes are other rows in another format, or if they are uncompressed first.
        *(text("a", read_as=ending_of_log(f"log.{name}")) for name in ("tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz")),
        # Without the key nobody can try guesses of the log.
        *(text("a", key=input_key(secret)) for secret in (SECRET, SECRET + b"x")),
    ]
    assert len(set(different)) == len(different)
    assert text("a", key=input_key(SECRET)) == different[-2]
    assert ending_of_log("log.CSV.GZ") == ending_of_log("log.csv.gz")


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StateError, match="cannot be read"):
        input_fingerprint([(str(tmp_path / "log"), "")], [])


def test_the_fingerprint_of_a_key_is_no_key_of_the_run():
    found = key_fingerprint(SECRET)
    assert len(found) == 64
    assert found != key_fingerprint(SECRET + b"x")
    assert SECRET.hex() not in found
    assert len({found, sealing_key(SECRET).hex(), input_key(SECRET).hex()}) == 3
