"""Reports and texts above the bounds are neither written nor read, and sizes are never told too small."""

from __future__ import annotations

import json

import pytest

from dp_transforms.monitor.window_report import ABOVE, HeavyHitter
from dp_transforms.reports import ReportFileError
from tests.helpers.report_samples import ENDINGS, LABELS, read_all, refusal, report, written


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_report_of_more_heavy_hitters_than_the_bound_is_neither_written_nor_read(tmp_path, monkeypatch, ending):
    from dp_transforms.reports import avro, parquet, records

    path = written(tmp_path, ending)
    for module in (avro, parquet, records):
        monkeypatch.setattr(module, "MAX_HEAVY_HITTERS", 1)
    assert "heavy hitters, got more. Run with a higher threshold" in refusal(path)
    (tmp_path / "new").mkdir()
    with pytest.raises(ReportFileError, match=r"<= 1 heavy hitters, got more\. Run with a higher threshold"):
        written(tmp_path / "new", ending)
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_report_of_more_bytes_than_the_bound_is_neither_written_nor_read(tmp_path, monkeypatch, ending):
    from dp_transforms.reports import parquet, records

    path = written(tmp_path, ending)
    for module in (parquet, records):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 600)
    refusal(path)
    (tmp_path / "new").mkdir()
    with pytest.raises(ReportFileError, match=r"<= 600 bytes as JSON\. Run with a higher threshold"):
        written(tmp_path / "new", ending)
    assert not list((tmp_path / "new").iterdir())


def test_a_text_that_many_windows_share_is_made_and_measured_once_for_a_batch(tmp_path, monkeypatch):
    """In Parquet a text of megabytes in each of very many windows takes a few bytes."""
    from dp_transforms.reports import parquet, records

    reports = [report(hour, HeavyHitter("a" * 100, ABOVE, None), stream="s" * 200) for hour in range(200)]
    path = written(tmp_path, "parquet", reports)
    measured = []
    monkeypatch.setattr(parquet, "json_bytes", lambda text: measured.append(text) or records.json_bytes(text))
    for most_bytes in (1_000, records.MAX_RECORD_BYTES):  # read window by window, and a batch at once
        for module in (parquet, records):
            monkeypatch.setattr(module, "MAX_RECORD_BYTES", most_bytes)
        assert read_all(path)[1] == reports
        assert len(measured) == 2 * -(-len(reports) // parquet._BATCH_WINDOWS)
        measured.clear()


def test_texts_of_a_parquet_report_are_not_held_beyond_the_size_of_a_report(tmp_path, monkeypatch):
    from dp_transforms.reports import parquet, records

    reports = [report(hour, HeavyHitter(f"{hour}" * 100, ABOVE, None)) for hour in range(60)]
    path = written(tmp_path, "parquet", reports)
    for module in (parquet, records):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 1_000)
    held = []
    text_of = parquet._Texts.of
    monkeypatch.setattr(
        parquet._Texts,
        "of",
        lambda texts, *column: (text_of(texts, *column), held.append(sum(map(len, texts._made.values()))))[0],
    )
    assert read_all(path)[1] == reports
    assert 500 < max(held) < 2_000


def test_the_size_of_a_report_is_never_told_too_small():
    from dp_transforms.reports import encode_report, records

    label = '\0\x1f\\"\U0001f600é' * 50
    for heavy_hitter in (
        HeavyHitter(label, "between", -(1 << 63)),
        HeavyHitter("", None, None),
        HeavyHitter(label, None, None, (1 << 63) - 1, (1 << 63) - 1),
    ):
        one = LABELS._replace(heavy_hitters=[heavy_hitter] * 100, stream=label, epsilon_spent=1.2345678901234567e-300)
        bound = records._RECORD_FRAME_BYTES + records.json_bytes(label)
        bound += 100 * (records._HEAVY_HITTER_FRAME_BYTES + records.json_bytes(heavy_hitter.item))
        assert len(encode_report(one).encode()) <= bound


def test_values_of_json_are_counted_outside_of_texts_alone(monkeypatch):
    from dp_transforms.reports import records

    held = ['"[{,' * 40_000, "\\", '\\"{', "[" * 140_000]
    monkeypatch.setattr(records, "MAX_HEAVY_HITTERS", 0)
    for piece in (999, 1 << 20):
        monkeypatch.setattr(records, "_COUNTED_BYTES", piece)
        records._check_json_size(json.dumps(held).encode())
        with pytest.raises(ReportFileError, match="heavy hitters"):
            records._check_json_size(json.dumps([*held, [[]] * 66_000]).encode())
