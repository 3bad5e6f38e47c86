"""What ``shh doctor`` reads of a log, what it cannot read, and the command that makes CSV of an access log."""

import csv
import gzip
import io
import os
import pathlib
import re
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli.log_sample import sample_file
from tests.cli.printed_commands import replayed, roles_of
from tests.helpers.shh_here import shh


def test_files_that_are_converted_first_or_are_damaged_are_named(tmp_path):
    for name, content, said in [
        ("a.csv", b"user,item,timestamp\nM\xfcller,i,2026-01-01\nu,i,2026-01-01\n", "iconv -f latin1 -t utf-8"),
        ("b.jsonl", b'{"user": "M\xfc", "item": "i", "timestamp": "2026-01-01"}\n', "iconv -f latin1 -t utf-8"),
        ("c.json", b'[{"user": "u", "item": "i", "timestamp": "2026-01-01"}]', "jq -c '.[]'"),
        ("d.csv", "user,item,timestamp\nu,i,2026-01-01\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("e.jsonl", b"u,i,2026-01-01\n" * 9, "9 of 9 rows that were looked at: no JSON object. Write one per line"),
        ("f.parquet", b"PAR1", "it is damaged, or not in Parquet format"),
        ("g.csv.gz", b"user,item", "it is damaged, or not in CSV format"),
        (
            "h.log",
            b'{"user": "u", "item": "i", "timestamp": "2026-01-01"}\n',
            "Let its name say so: cat h.log > access.jsonl",
        ),
        ("i.log", b"nothing that is known\n", "it cannot be read as it is"),
    ]:
        (tmp_path / name).write_bytes(content)
        looked = shh("doctor", name, cwd=tmp_path)
        assert said in looked.stdout + looked.stderr, name


REQUEST = '"GET /page HTTP/1.1" 200 1 "https://s.example/?q=caf\xe9" "agent/1.0"'
CLOCK = "20/Feb/2026:08:{:02}:00 +0000"
W3C = "#Version: 1.0\r\n#Fields: date time s-ip cs-uri-stem c-ip sc-status\r\n"
HAPROXY = "Feb  6 12:14:14 lb haproxy[143]: 198.51.100.{}:33317 [06/Feb/2026:12:{:02}:14.655] in s/1 10/0 {{a}}"
BALANCER = "http 2026-02-20T22:{1:02}:00.186641Z app/lb/5 198.51.100.{0}:2817 10.0.0.1:80 0.0 200"
ACCESS_LOGS = {
    "combined": ("", f"198.51.100.{{}} - an na [{CLOCK}] {REQUEST}\n"),
    "virtual host first": ("", f"www.example.org:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n"),
    "virtual host by address": ("", f"192.0.2.1:443 198.51.100.{{}} - - [{CLOCK}] {REQUEST}\n"),
    "blank before the clock": ("", f"198.51.100.{{}} - - [20/Feb/2026 08:{{:02}}:00] {REQUEST}\n"),
    "names of hosts": ("", f"pc{{}}.example.org - - [{CLOCK}] {REQUEST}\n"),
    "HAProxy": ("", f"{HAPROXY} {REQUEST}\n"),
    "load balancer": ("", f"{BALANCER} {REQUEST}\n"),
    "Squid": ("", "17715744{1:02}.586    921 198.51.100.{0} TCP_MISS/200 507 GET /page - DIRECT/192.0.2.7 text/html\n"),
    "IIS": (W3C, "2026-02-20 08:{1:02}:00 10.0.0.1 /page 198.51.100.{0} 200\r\n"),
    "CloudFront": (W3C, "2026-02-20\t08:{1:02}:00\t10.0.0.1\t/page\t198.51.100.{0}\t200\n"),
}


@pytest.mark.parametrize("form", ACCESS_LOGS)
def test_the_line_that_makes_csv_of_an_access_log_does_in_every_locale_with_any_bytes(tmp_path, form):
    head, line = ACCESS_LOGS[form]
    scan = b'10.0.0.1 - - [01/Mar/2026:10:59:00 +0100] "\x16\x03\xff" 400 0 "-" "-"\n'
    log = (head + "".join(line.format(n % 250, n % 60) for n in range(300))).encode("latin1") + scan * (not head)
    (tmp_path / "logs").mkdir()
    for name, content in (("site.log", log), ("logs/old one.log.gz", gzip.compress(log))):
        (tmp_path / name).write_bytes(content)
        said = shh("doctor", name.split("/")[0], cwd=tmp_path).stderr
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        subprocess.run(["bash", "-c", said[said.index("(echo") :]], cwd=tmp_path, check=True, env=environment)
        looked = shh("doctor", "access.csv", cwd=tmp_path)
        assert roles_of(looked.stdout).startswith("address path time"), looked.stdout
        assert ("address seems to be an address of the network" in looked.stdout) or form == "names of hosts"
        rows = list(csv.DictReader(io.StringIO((tmp_path / "access.csv").read_text())))
        assert [row["path"] for row in rows] == ["/page"] * 300
        assert len({row["address"] for row in rows}) == 250
    assert replayed(tmp_path, looked.stdout) == {"/page"}


def test_a_look_reads_little_of_a_large_log(tmp_path):
    """Of a Parquet file of one large row group, and of a text file."""
    rows = 400_000
    numbers = np.arange(rows)
    columns = {
        "user": numbers % 77_777,
        "item": pa.array(np.char.add("a long label of an item ", (numbers % 9999).astype(str))),
        "timestamp": pa.array(1_767_225_600_000 + numbers * 1000, pa.timestamp("ms", "UTC")),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet", row_group_size=rows, use_dictionary=False)
    line = b"user-%07d,item,2026-01-01T00:00:00Z\n"
    (tmp_path / "log.csv").write_bytes(b"user,item,timestamp\n" + b"".join(line % n for n in range(rows)))
    sample_file(str(tmp_path / "log.parquet"))  # what is imported first is read from files too
    for name in ("log.parquet", "log.csv"):
        before = _bytes_read()
        sample = sample_file(str(tmp_path / name))
        assert _bytes_read() - before < min(6 << 20, (tmp_path / name).stat().st_size // 2), name
        assert 1000 <= sample.rows <= 2000


def _bytes_read():
    """Of this process, from files, by the kernel's count."""
    (count,) = re.findall(r"^rchar: (\d+)$", pathlib.Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(count)
