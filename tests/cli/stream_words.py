"""Words of `shh stream` that several of its tests use, the folder in which it runs, and how it runs in this process."""

import json
import os
import signal

from dp_transforms.cli.main import main

START = 1_577_836_800  # 2020-01-01T00:00:00Z
HOURS = 6
PLAN = [
    *("--start", "2020-01-01", "--end", "2020-01-01T06:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits", "--counts"),
]
FOLDER = ["--input", "logs", "--time-format", "s"]
KEY = ["--noise-key-file", "noise.key"]
# The log is older than its windows need, so that they close as soon as nothing new comes.
HISTORY = ["--clock", "event", "--out-of-order", "10m", "--idle-timeout", "1s"]
CLUSTER = [
    *("--runner=FlinkRunner", "--flink_master=localhost:8081"),
    *("--environment_type=EXTERNAL", "--environment_config=localhost:50000"),
]


def write_log_and_key(folder):
    """A log of three old files in logs/, with an item of many users in each hour but two, and noise.key."""
    (folder / "logs").mkdir()
    rows = []
    for hour in range(HOURS):
        if hour not in (2, 4):
            rows += [(f"user-{n}", f"heavy-{hour}", START + 3600 * hour + n) for n in range(300)]
            rows += [(f"user-{n}", "light", START + 3600 * hour + 60 + n) for n in range(5)]
    third = len(rows) // 3
    for part in range(3):
        lines = (json.dumps({"user": u, "item": i, "timestamp": t}) for u, i, t in rows[part * third :][:third])
        (folder / "logs" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        os.utime(folder / "logs" / f"{part}.jsonl", (START + 86_400 + part, START + 86_400 + part))
    (folder / "noise.key").write_bytes(os.urandom(32))
    (folder / "noise.key").chmod(0o600)


def run(words, capsys, command="stream"):
    """Exit code, stdout and stderr of the command, run in this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main([command, *words])
        code = 0
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    return code, out, err
