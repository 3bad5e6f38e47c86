"""Files in stores: whole or not at all, one version, and only the ranges that are needed; on a real server of S3.

Google Cloud Storage and Azure run through the same code of obstore."""

import io
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from dp_transforms.stores import remote_files
from dp_transforms.stores.remote_files import FileChangedError, RemoteFileError, StoredFile, UrlError
from tests.helpers.s3_server import SECRET

pytestmark = pytest.mark.xdist_group("s3")
ROOT = pathlib.Path(__file__).parents[2]


ODD = "a b/ü+%20&=#é'.csv"


def names_below(root, source):
    return [file.url.removeprefix(root + "/") for file in remote_files.find_files(source)]


def test_a_file_appears_whole_and_replaces_none(bucket):
    url = f"{bucket}/reports/one.avro"
    assert not remote_files.exists(url)
    remote_files.put_new(url, b"first")
    second = io.BytesIO()
    second.write(b"second")  # and it stands at its end
    for content in (b"second", second):
        with pytest.raises(FileExistsError):
            remote_files.put_new(url, content)
    assert remote_files.read_stored(url, 100) == b"first"
    assert remote_files.read_stored(url, 3) == b"firs", "one byte more than asked for shows that it is larger"
    remote_files.put_over(url, second)
    assert remote_files.read_stored(url, 100) == b"second"
    for _ in range(2):
        remote_files.remove(url)
        assert not remote_files.exists(url)
    with pytest.raises(FileNotFoundError):
        remote_files.look_at(url)


def test_files_are_found_by_name_folder_and_glob(bucket):
    names = [
        *("logs/2026-01-01/a.csv", "logs/2026-01-01.csv", "logs/2026-01-01/b.jsonl", "logs/2026-01-02/a.csv"),
        *("logs/_temporary/c.csv", "logs/.hidden/d.csv", "logs/_SUCCESS", "logs/2026-01-02/.e.csv", "logsother.csv"),
        f"logs/{ODD}",
    ]
    for name in names:
        remote_files.put_new(f"{bucket}/{name}", b"" if name.endswith("_SUCCESS") else name.encode())
    visible = ["logs/2026-01-01.csv", "logs/2026-01-01/a.csv", "logs/2026-01-01/b.jsonl", "logs/2026-01-02/a.csv"]
    every = sorted([*visible, f"logs/{ODD}"])
    of_days = ["logs/2026-01-01/a.csv", "logs/2026-01-02/a.csv"]
    for source, found in {
        "logs": every,
        "logs/": every,
        "logs/2026-01-01/a.csv": ["logs/2026-01-01/a.csv"],
        f"logs/{ODD}": [f"logs/{ODD}"],
        "logs/2026-*": visible,
        "logs/2026-*/a.csv": of_days,
        "logs/**/?.csv": [*of_days, "logs/_temporary/c.csv"],
        "logs/2026-01-0[!1]/*": ["logs/2026-01-02/a.csv"],
        "logs*": sorted([*every, "logsother.csv"]),
        "logs/none*": [],
        "none": [],
    }.items():
        assert names_below(bucket, f"{bucket}/{source}") == found, source


def test_only_what_is_asked_for_is_read_of_one_version(bucket):
    url, content = f"{bucket}/logs/large.bin", bytes(range(256)) * 1000
    remote_files.put_new(url, content)
    file = remote_files.open_stored(remote_files.look_at(url), ahead=10)
    assert file.seek(-20, io.SEEK_END) == len(content) - 20
    assert file.read(5) + file.read() + file.read(1) == content[-20:]
    file.seek(300)
    assert file.read(700) == content[300:1000]
    assert remote_files.open_stored(remote_files.look_at(url)).read() == content
    remote_files.put_over(url, content[::-1])
    file.seek(5000)
    with pytest.raises(FileChangedError, match="was changed or removed while it was read"):
        file.read(10)
    remote_files.remove(url)
    with pytest.raises(FileChangedError):
        file.read(10)
    remote_files.put_new(url, b"")
    assert remote_files.open_stored(remote_files.look_at(url)).read() == b""


WRITER = """
import sys
from dp_transforms.stores import remote_files
url, content = sys.argv[1], sys.argv[2].encode() * 1000
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
try:
    remote_files.put_new(url, content)
    print("won")
except FileExistsError:
    print("lost")
"""


def test_of_two_processes_that_write_at_once_one_comes_first(bucket):
    """And what it wrote stays."""
    for number in range(3):
        url = f"{bucket}/report-{number}.avro"
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, url, name],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in "ab"
        ]
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        ends = [writer.communicate()[0].strip() for writer in writers]
        assert sorted(ends) == ["lost", "won"]
        assert remote_files.read_stored(url, 10_000) == b"ab"[ends.index("won") :][:1] * 1000


ASKED = {
    "look": remote_files.look_at,
    "read": lambda url: remote_files.open_stored(StoredFile(url, 7, '"v"')).read(),
    "list": lambda url: list(remote_files.list_beginning(url)),
    "put new": lambda url: remote_files.put_new(url, b"content"),
    "put over": lambda url: remote_files.put_over(url, b"content"),
    "remove": remote_files.remove,
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_a_store_refuses_is_said_in_words_of_ours_alone(s3, bucket, asked):
    s3.refuses = 403, "SignatureDoesNotMatch"
    with pytest.raises(RemoteFileError, match="the store answers with status 403: check the name") as raised:
        ASKED[asked](f"{bucket}/a.bin")
    assert raised.value.filename == f"{bucket}/a.bin"
    assert SECRET not in str(raised.value)


def test_what_is_absent(s3, bucket):
    for asked, url, error, said in (
        ("read", f"{bucket}/a", remote_files.FileChangedError, "it was changed or removed while it was read"),
        ("look", f"{bucket}/a", FileNotFoundError, "there is no such file in the store"),
        ("list", "s3://absent-bucket/a", FileNotFoundError, "there is no such bucket: check its name, the region"),
        ("put new", "s3://absent-bucket/a", FileNotFoundError, "there is no such bucket"),
        ("put over", "s3://absent-bucket/a", FileNotFoundError, "there is no such bucket"),
    ):
        with pytest.raises(error, match=said) as raised:
            ASKED[asked](url)
        assert raised.value.filename == url
    remote_files.remove(f"{bucket}/a")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"s3://user:{SECRET}@bucket/a.csv", "holds a password or a signature"),
        (f"azfs://{SECRET}@host/a.csv", "holds a password or a signature"),
        (f"https://bucket.example/a.csv?X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"s3://bucket/a.csv?X-Amz-Credential=a&X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"https://{SECRET}.example/a.csv", "must begin with one of s3://BUCKET, gs://BUCKET, azfs://ACCOUNT, not"),
        (f"hdfs://{SECRET}:9870/a.csv", "Copy files of another store, or mount it"),
        ("S3://bucket/a.csv", "not with S3://"),
        ("s3:///a.csv", "must begin with one of s3://BUCKET"),
    ],
)
def test_urls_that_are_refused_are_not_repeated(url, words):
    with pytest.raises(UrlError, match=re.escape(words)) as raised:
        remote_files.is_remote(url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("path", ["a.csv", "/tmp/a.csv", "./s3:/a", "1://a", "a b://c", "C:\\x", pathlib.Path("s3:/b")])
def test_paths_are_no_urls(path):
    assert not remote_files.is_remote(path)


@pytest.mark.parametrize(
    ("pattern", "meant", "not_meant"),
    [
        ("a[!x]c*[[]1].csv", ["abcd[1].csv"], ["a/c[1].csv", "axc[1].csv"]),
        ("**/?.csv", ["a.csv", "x/y/b.csv"], [".x/a.csv", "x//a.csv", ".a.csv", "ab.csv"]),
        ("x*", ["x", "xy/z", "xy/z/a"], ["xy/.z", "xy/_z", "a/x", "xy//z", "xy/"]),
        ("*/b", ["/b", "a/b", "a/b/c"], [".a/b", "b", "a/c/b"]),
        (".x/*", [".x/a"], [".x/.a", "x/a"]),
        ("a/**", ["a", "a/b", "a/_b/c"], ["a/.b", "b"]),
    ],
)
def test_what_a_glob_means(pattern, meant, not_meant):
    for name in (*meant, *not_meant):
        assert remote_files.is_meant(name.split("/"), pattern.split("/")) == (name in meant), name


def test_names_that_obstore_cannot_have_are_an_error_and_marks_of_folders_none(s3, bucket):
    """A list that ended at such a name would leave out rows of a log."""
    backend = pytest.importorskip("moto.s3.models").s3_backends["123456789012"]["aws"]
    name = bucket.removeprefix("s3://")
    for key in ("logs/a.parquet/", "logs/a.parquet/part", "logs/a.parquet-b/part", "logs/empty"):
        backend.put_object(name, key, b"x" if key.endswith("part") else b"")
    found = [file.url.removeprefix(f"{bucket}/") for file in remote_files.find_files(f"{bucket}/logs")]
    assert found == ["logs/a.parquet-b/part", "logs/a.parquet/part", "logs/empty"]
    for key in ("logs/x//b", "logs/./b", "logs/b\nc"):
        backend.put_object(name, key, b"x")
        with pytest.raises(RemoteFileError, match="a name there has an empty part, or a line end"):
            list(remote_files.find_files(f"{bucket}/logs"))
        backend.delete_object(name, key)


def test_an_answer_that_breaks_is_asked_for_again(s3, bucket):
    content = os.urandom(300_000)
    remote_files.put_new(f"{bucket}/a.bin", content)
    s3.cut_after = [100, 0, 299_000]
    found = remote_files.look_at(f"{bucket}/a.bin")
    with remote_files.open_stored(found, ahead=1) as reader:
        assert reader.read() == content
    assert len(s3.reads("a.bin")) == 4
    assert {read.condition for read in s3.reads("a.bin")} == {found.version}, "always the same version"


def test_a_store_without_versions_or_without_ranges_is_refused(s3, bucket):
    """Else a change would not be seen; and a large file would be held in memory again for each range."""
    url = f"{bucket}/a.bin"
    remote_files.put_new(url, bytes(10_000))
    found = remote_files.look_at(url)
    s3.ignores_ranges = True
    with (
        remote_files.open_stored(found, ahead=1) as file,
        pytest.raises(RemoteFileError, match="does not answer as it should"),
    ):
        file.read(100)
    s3.gives_versions = False
    with pytest.raises(RemoteFileError, match="gives its files no ETag, so a change would not be seen"):
        remote_files.look_at(url)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_write_whose_answer_was_lost_has_succeeded(s3, bucket, is_over):
    """obstore tries again, and is told that the name is taken: by what it wrote itself."""
    s3.forget()
    s3.lost_answers = 1
    (remote_files.put_over if is_over else remote_files.put_new)(f"{bucket}/a.avro", b"content")
    writes = [one.condition for one in s3.requests if one.method == "PUT"]
    assert writes == ["" if is_over else "*"] * 2
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"content"
    with pytest.raises(FileExistsError):
        remote_files.put_new(f"{bucket}/a.avro", b"Content")


def test_where_every_answer_is_lost_the_write_is_looked_for(s3, bucket, monkeypatch):
    monkeypatch.setattr(remote_files, "_RETRIES", {"max_retries": 0})
    remote_files._open_store.cache_clear()
    s3.lost_answers = 1
    remote_files.put_new(f"{bucket}/a.avro", b"content")
    s3.lost_answers = 1
    with pytest.raises(RemoteFileError, match="the store cannot be reached"):
        remote_files.put_over(f"{bucket}/a.avro", b"another")
    remote_files._open_store.cache_clear()


def test_without_credentials_the_error_says_where_they_come_from(bucket, monkeypatch):
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(remote_files, "_RETRIES", {"max_retries": 0})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RemoteFileError, match="there are no credentials for the store: set AWS_ACCESS_KEY_ID and AWS"):
        remote_files.look_at(f"{bucket}/a.csv")


def test_a_bucket_that_is_no_name_and_a_store_that_is_away(bucket, monkeypatch):
    with pytest.raises(RemoteFileError, match="check the name of the bucket"):
        list(remote_files.find_files("s3://a bucket/*.csv"))
    with pytest.raises(RemoteFileError, match="check the name of the account"):
        remote_files.look_at("azfs://account")
    monkeypatch.setattr(remote_files, "_RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteFileError, match="cannot be reached"):
        remote_files.look_at(f"{bucket}/a.csv")
    for name in ("AWS_ENDPOINT_URL", "AWS_CONDITIONAL_PUT"):
        monkeypatch.setenv(name, "a-secret-by-mistake")
        with pytest.raises(RemoteFileError, match="its settings cannot be used: check the endpoint") as refused:
            remote_files.look_at(f"{bucket}/a.csv")
        assert "mistake" not in str(refused.value)
        monkeypatch.delenv(name)


@pytest.mark.parametrize("answer", [("another version", bytes(100)), ("v", bytes(99))])
def test_a_store_that_heeds_no_condition_is_refused(answer, monkeypatch):
    """Else two versions would be read as one file."""
    monkeypatch.setattr(remote_files, "ask", lambda *_, **__: answer)
    reader = remote_files.StoredReader(StoredFile("s3://bucket/a.bin", 100, "v"), 1)
    with pytest.raises(remote_files.FileChangedError, match="changed while it was read"):
        reader.read(100)


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
    remote_files.exists(f"{bucket}/a.csv")
    child = os.fork()
    if not child:
        try:
            remote_files.exists(f"{bucket}/a.csv")
        except RemoteFileError as error:
            os._exit(0 if "this process was forked" in error.strerror else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
