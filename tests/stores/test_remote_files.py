"""Files in stores: whole or not at all, one version, and only the ranges that are needed; on a real server of S3.

Google Cloud Storage and Azure run through the same code of obstore."""

import contextlib
import io
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dp_transforms.stores import files, remote_files
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile, StoredReader, UrlError, look_at, put
from tests.helpers.s3_server import SECRET

pytestmark = pytest.mark.xdist_group("s3")
ROOT = pathlib.Path(__file__).parents[2]
ODD = "a b/ü+%20&=#é'.csv"


@pytest.fixture
def no_retries(monkeypatch):
    monkeypatch.setattr(remote_files, "_RETRIES", {"max_retries": 0})
    remote_files._open_store.cache_clear()
    yield
    remote_files._open_store.cache_clear()


def test_a_file_appears_whole_and_replaces_none(bucket):
    url = f"{bucket}/reports/one.avro"
    files.check_output(url)
    assert not files.exists(url)
    files.write_file(url, lambda file: file.write(b"first"))
    with pytest.raises(FileExistsError):
        put(url, b"second")
    assert files.read_file(url, 100) == b"first"
    assert files.read_file(url, 3) == b"firs", "one byte more than asked for shows that it is larger"
    files.write_file(url, lambda file: file.write(b"second"), replaces=True)
    assert files.read_file(url, 100) == b"second"
    assert [file.url for file in remote_files.list_beginning(bucket)] == [url], "the probe is gone"
    with pytest.raises(FileNotFoundError):
        look_at(f"{url}.gz")


def test_of_two_that_write_at_once_one_comes_first(bucket):
    """And what it wrote stays."""
    together = threading.Barrier(2)

    def write(url, content):
        together.wait()
        with contextlib.suppress(FileExistsError):
            put(url, content)
            return content
        return None

    with ThreadPoolExecutor(2) as pool:
        for number in range(5):
            url = f"{bucket}/report-{number}.avro"
            written = [*pool.map(write, (url, url), (b"a" * 1000, b"b" * 1000))]
            assert written.count(None) == 1
            assert files.read_file(url, 10_000) in written


def test_files_are_found_by_name_folder_and_glob(bucket):
    names = [
        *("logs/2026-01-01/a.csv", "logs/2026-01-01.csv", "logs/2026-01-01/b.jsonl", "logs/2026-01-02/a.csv"),
        *("logs/_temporary/c.csv", "logs/.hidden/d.csv", "logs/_SUCCESS", "logs/2026-01-02/.e.csv", "logsother.csv"),
        f"logs/{ODD}",
    ]
    for name in names:
        put(f"{bucket}/{name}", name.encode())
    of_days = ["logs/2026-01-01/a.csv", "logs/2026-01-02/a.csv"]
    visible = ["logs/2026-01-01.csv", of_days[0], "logs/2026-01-01/b.jsonl", of_days[1]]
    every = sorted([*visible, f"logs/{ODD}"])
    for source, found in {
        "": [*every, "logsother.csv"],
        "logs": every,
        "logs/": every,
        "logs/_temporary": ["logs/_temporary/c.csv"],
        "logs/2026-01-01/a.csv": of_days[:1],
        f"logs/{ODD}": [f"logs/{ODD}"],
        "logs/2026-*": visible,
        "logs/2026-*/?.csv": of_days,
        "logs/*/[!b].csv": of_days,
        "logs/2026-01-0[!1]/*": of_days[1:],
        "logs*": [*every, "logsother.csv"],
        "*/.e.csv": [],
        "*/*/.e.csv": ["logs/2026-01-02/.e.csv"],
        "logs/none*": [],
        "none": [],
    }.items():
        found_names = [file.url.removeprefix(f"{bucket}/") for file in remote_files.find_files(f"{bucket}/{source}")]
        assert found_names == found, source
    with pytest.raises(UrlError, match=r"cannot hold \*\*: a folder stands for all below it"):
        remote_files.find_files(f"{bucket}/logs/**/*.csv")


def test_only_what_is_asked_for_is_read_of_one_version(bucket):
    url, content = f"{bucket}/logs/large.bin", bytes(range(256)) * 1000
    put(url, content)
    file = StoredReader(look_at(url), ahead=10)
    assert file.seek(-20, io.SEEK_END) == len(content) - 20
    assert file.read(5) + file.read() + file.read(1) == content[-20:]
    file.seek(300)
    assert file.read(700) == content[300:1000]
    assert StoredReader(look_at(url)).read() == content
    put(url, content[::-1], replaces=True)
    file.seek(5000)
    with pytest.raises(RemoteFileError, match="was changed or removed while it was read"):
        file.read(10)
    put(url, b"", replaces=True)
    assert StoredReader(look_at(url)).read() == b""
    with pytest.raises(RemoteFileError, match="was changed or removed while it was read"):
        StoredReader(StoredFile(f"{bucket}/removed", 7, '"v"')).read()


@pytest.mark.parametrize(
    "asked",
    [
        look_at,
        lambda url: StoredReader(StoredFile(url, 7, '"v"')).read(),
        remote_files.list_beginning,
        lambda url: put(url, b"content"),
        lambda url: put(url, b"content", replaces=True),
    ],
    ids=["look", "read", "list", "put", "replace"],
)
def test_a_store_that_refuses_is_told_in_words_of_ours_alone(s3, bucket, asked):
    s3.refuses = 403, "SignatureDoesNotMatch"
    with pytest.raises(RemoteFileError, match="the store answers with status 403: check the name") as raised:
        asked(f"{bucket}/a.bin")
    assert raised.value.filename == f"{bucket}/a.bin"
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"s3://user:{SECRET}@bucket/a.csv", "holds a password or a signature"),
        (f"azfs://{SECRET}@host/a.csv", "holds a password or a signature"),
        (f"https://bucket.example/a.csv?X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"s3://bucket/a.csv?X-Amz-Credential=a&X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"https://{SECRET}.example/a.csv", "must begin with s3://BUCKET, gs://BUCKET or azfs://ACCOUNT/CONTAINER"),
        ("s3:///a.csv", "must begin with s3://BUCKET"),
        ("s3://a bucket/*.csv", "must begin with s3://BUCKET"),
        ("azfs://account", "must begin with s3://BUCKET"),
    ],
)
def test_urls_that_are_refused_are_not_repeated(url, words):
    with pytest.raises(UrlError, match=re.escape(words)) as raised:
        remote_files.is_remote(url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("path", ["a.csv", "./s3:/a", "1://a", "a b://c", "C:\\x", pathlib.Path("s3:/b")])
def test_paths_are_no_urls(path):
    assert not remote_files.is_remote(path)


def test_names_that_obstore_cannot_have_are_an_error_and_marks_of_folders_none(s3, bucket):
    """A list that ended at such a name would leave out rows of a log."""
    backend = pytest.importorskip("moto.s3.models").s3_backends["123456789012"]["aws"]
    name = bucket.removeprefix("s3://")
    for key in ("logs/a.parquet/", "logs/a.parquet/part", "logs/a.parquet-b/part", "logs/empty"):
        backend.put_object(name, key, b"x" if key.endswith("part") else b"")
    found = [file.url.removeprefix(f"{bucket}/") for file in remote_files.find_files(f"{bucket}/logs")]
    assert found == ["logs/a.parquet-b/part", "logs/a.parquet/part", "logs/empty"]
    for key in ("logs/x//b", "logs/b\nc"):
        backend.put_object(name, key, b"x")
        with pytest.raises(RemoteFileError, match="no name there has an empty part or a line end"):
            remote_files.find_files(f"{bucket}/logs")
        backend.delete_object(name, key)


def test_an_answer_that_breaks_is_asked_for_again(s3, bucket):
    content = os.urandom(300_000)
    put(f"{bucket}/a.bin", content)
    s3.cut_after = [100, 0, 299_000]
    found = look_at(f"{bucket}/a.bin")
    assert StoredReader(found, ahead=1).read() == content
    assert len(s3.reads("a.bin")) == 4
    assert {read.condition for read in s3.reads("a.bin")} == {found.version}, "always the same version"


def test_a_store_without_versions_or_without_ranges_is_refused(s3, bucket):
    """Else a change would not be seen; and a large file would be held in memory again for each range."""
    url = f"{bucket}/a.bin"
    put(url, bytes(10_000))
    found = look_at(url)
    s3.ignores_ranges = True
    with pytest.raises(RemoteFileError, match="the store cannot be reached"):
        StoredReader(found, ahead=1).read(100)
    s3.ignores_ranges, s3.gives_versions = False, False
    with pytest.raises(RemoteFileError, match=r"no version \(ETag\)"):
        look_at(url)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "a-secret-by-mistake", "http://[bad", "ftp://host"])
def test_an_endpoint_that_is_none_is_told_in_one_line(endpoint, capfd, monkeypatch):
    """obstore aborts with fifty."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(RemoteFileError, match="AWS_ENDPOINT_URL must begin with https://") as refused:
        look_at("s3://bucket/a.csv")
    assert endpoint not in str(refused.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("answer", [("another version", bytes(100)), ("v", bytes(99))])
def test_a_store_that_heeds_no_condition_is_refused(answer, monkeypatch):
    """Else two versions would be read as one file."""
    url = "s3://bucket/a.bin"
    monkeypatch.setattr(remote_files, "_ask", lambda *_: (StoredFile(url, 100, answer[0]), answer[1]))
    with pytest.raises(RemoteFileError, match="changed or removed while it was read"):
        StoredReader(StoredFile(url, 100, "v"), 1).read(100)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_write_whose_answer_was_lost_has_succeeded(s3, bucket, is_over):
    """obstore tries again, and is told that the name is taken: by what it wrote itself."""
    s3.forget()
    s3.lost_answers = 1
    put(f"{bucket}/a.avro", b"content", replaces=is_over)
    assert [one.condition for one in s3.requests if one.method == "PUT"] == ["" if is_over else "*"] * 2
    assert files.read_file(f"{bucket}/a.avro", 100) == b"content"
    with pytest.raises(FileExistsError):
        put(f"{bucket}/a.avro", b"Content")


def test_where_every_answer_is_lost_the_write_is_looked_for(s3, bucket, no_retries):
    s3.lost_answers = 1
    put(f"{bucket}/a.avro", b"content")
    s3.lost_answers = 1
    with pytest.raises(RemoteFileError, match="the store cannot be reached"):
        put(f"{bucket}/a.avro", b"another", replaces=True)


def test_a_store_is_away_until_the_environment_is_set_right(bucket, monkeypatch, no_retries):
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(RemoteFileError, match="cannot be reached: check the name, the network"):
            look_at(f"{bucket}/a.csv")
    assert not files.exists(f"{bucket}/a.csv")


def test_ctrl_c_ends_the_wait_for_a_store_that_does_not_answer(bucket, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        program = "import sys; from dp_transforms.stores.remote_files import look_at; look_at(sys.argv[1])"
        command = [sys.executable, "-c", program, f"{bucket}/a"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as asking:
            silent.accept()
            asking.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in asking.communicate(timeout=30)[1]


def test_in_a_forked_child_a_store_is_refused(bucket):
    """obstore would wait for ever there."""
    files.exists(f"{bucket}/a.csv")
    child = os.fork()
    if not child:
        try:
            files.exists(f"{bucket}/a.csv")
        except RemoteFileError as error:
            os._exit(0 if "this process was forked" in error.strerror else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
