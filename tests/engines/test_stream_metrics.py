"""The numbers that `shh stream --metrics-port` serves while a real stream runs on Prism."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.engines import skip_reason

pytest.importorskip("prometheus_client", reason="the extra metrics is not installed")
START = 1_577_836_800  # 2020-01-01T00:00:00Z


@pytest.mark.skipif(skip_reason("prism") is not None, reason=skip_reason("prism") or "")
def test_a_stream_on_prism_serves_what_it_has_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").mkdir()
    rows = [json.dumps({"user": f"u{n}", "item": "a", "timestamp": START + n}) for n in range(500)]
    (tmp_path / "logs" / "0.jsonl").write_text("\n".join([*rows, '{"user": 7.5}']) + "\n")
    (tmp_path / "noise.key").write_bytes(os.urandom(32))
    (tmp_path / "noise.key").chmod(0o600)
    words = [
        *("-m", "dp_transforms.cli.main", "stream", "--folder", "logs", "--time-unit", "s", "--clock", "event"),
        *("--start", "2020-01-01", "--end", "2099-01-01", "--window", "3650d", "--epsilon", "8", "--delta", "1e-6"),
        *("--mode", "hits-with-counts", "--noise-key-file", "noise.key", "--output", "sqlite:///reports.db"),
        *("--metrics-port", "0"),
    ]
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while (found := re.search(r"http://127\.0\.0\.1:\d+/metrics", line := process.stderr.readline())) is None:
                assert line, process.wait()
            deadline, text = time.monotonic() + 300, ""
            while not re.search(r"^shh_records_read_total\{.*\} 501\.0$", text, re.MULTILINE):
                assert time.monotonic() < deadline, text
                time.sleep(0.5)
                with urllib.request.urlopen(found[0], timeout=30) as answer:
                    text = answer.read().decode()
            assert re.search(r"^shh_events_rejected_total\{.*\} 1\.0$", text, re.MULTILINE)
            assert re.search(r'^shh_clock_lag_seconds\{engine="prism",run_id="\w+",stream="events"\} \d', text, re.M)
        finally:
            for _ in range(2):  # the second one ends it at once
                process.send_signal(signal.SIGINT)
                time.sleep(1)
            process.communicate(timeout=120)
