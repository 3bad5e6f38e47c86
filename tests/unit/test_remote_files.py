"""Files in stores: whole or not at all, one version, and only the ranges that are needed. On a real S3 server."""

from __future__ import annotations

import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from dp_transforms.stores import remote_files
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile, UrlError, glob_expression, store_of
from dp_transforms.stores.remote_files.kinds import S3Store
from dp_transforms.stores.remote_files.stored_file import is_stored
from tests.helpers.gcs_server import gcs_server
from tests.helpers.s3_server import S3Server
from tests.helpers.store_contract import CONTRACT

pytestmark = pytest.mark.xdist_group("s3")

SECRET = "kL8secret"


@pytest.mark.parametrize("holds", [*CONTRACT[::-1]], ids=lambda holds: holds.__name__)
def test_on_s3(bucket: str, holds: Callable[[str], None]) -> None:
    holds(bucket)


@pytest.fixture(scope="module")
def google() -> Iterator[str]:
    with gcs_server() as where:
        yield where


def test_on_google_cloud_storage(google: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google)
    for number, holds in enumerate(CONTRACT):
        store_of("gs://emulated")._client.create_bucket(f"bucket-{number}")
        holds(f"gs://bucket-{number}")
    with pytest.raises(FileNotFoundError, match="there is no such bucket"):
        list(remote_files.find_files("gs://absent/*.csv"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"s3://user:{SECRET}@bucket/a.csv", "holds a password or a signature"),
        (f"azfs://{SECRET}@host/a.csv", "holds a password or a signature"),
        (f"https://bucket.example/a.csv?X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"s3://bucket/a.csv?X-Amz-Credential=a&X-Amz-Signature={SECRET}", "holds a password or a signature"),
        (f"https://{SECRET}.example/a.csv", "URLs https://... are not known. Use s3://, gs://, azfs:// or a path"),
        (f"hdfs://{SECRET}:9870/a.csv", "URLs hdfs://... are not known. Use s3://, gs://, azfs:// or a path: copy"),
        ("S3://bucket/a.csv", "must begin with s3:// and then name a bucket"),
        ("s3:///a.csv", "must begin with s3:// and then name a bucket"),
    ],
)
def test_urls_that_are_refused_are_not_repeated(url: str, words: str) -> None:
    with pytest.raises(UrlError, match=re.escape(words)) as raised:
        remote_files.is_remote(url)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("path", ["a.csv", "/tmp/a.csv", "./s3:/a", "1://a", "a b://c", "C:\\x", pathlib.Path("s3:/b")])
def test_paths_are_no_urls(path: str | pathlib.Path) -> None:
    assert not remote_files.is_remote(path)


def test_a_class_of_a_glob_matches_no_slash() -> None:
    wanted = glob_expression("s3://b/a[!x]c*[[]1].csv")
    assert wanted.fullmatch("s3://b/abcd[1].csv")
    assert not wanted.fullmatch("s3://b/a/c[1].csv")
    assert not wanted.fullmatch("s3://b/axc[1].csv")


def test_an_answer_that_breaks_is_asked_for_again(s3: S3Server, bucket: str) -> None:
    content = os.urandom(300_000)
    remote_files.put_new(f"{bucket}/a.bin", content)
    s3.cut_after = [100, 0, 299_999]
    found, pauses = remote_files.look_at(f"{bucket}/a.bin"), list[float]()
    reader = remote_files.RangeReader(remote_files.store_of(bucket), found, ahead=1, sleep=pauses.append)
    assert reader.read() == content
    assert pauses == sorted(pauses) != []
    assert len(s3.reads("a.bin")) == 4
    assert {read.condition for read in s3.reads("a.bin")} == {reader.file.version}, "always the same version"


def test_an_answer_that_always_breaks_is_an_error(s3: S3Server, bucket: str) -> None:
    remote_files.put_new(f"{bucket}/a.bin", bytes(1000))
    s3.cut_after = [10] * 50
    found, pauses = remote_files.look_at(f"{bucket}/a.bin"), list[float]()
    reader = remote_files.RangeReader(remote_files.store_of(bucket), found, ahead=1, sleep=pauses.append)
    with pytest.raises(RemoteFileError, match="the connection to the store broke: try again"):
        reader.read()
    assert len(s3.reads("a.bin")) == 4 == len(pauses) + 1


def test_an_answer_of_another_length_is_asked_for_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the store: such an answer ends in good order, and its library says nothing."""
    remote_files.put_new(f"{bucket}/a.bin", b"content")
    store, answers = remote_files.store_of(bucket), [b"", b"conten", b"content and more"]
    whole = store.read_range
    monkeypatch.setattr(store, "read_range", lambda *asked: answers.pop(0) if answers else whole(*asked))
    pauses = list[float]()
    reader = remote_files.RangeReader(store, remote_files.look_at(f"{bucket}/a.bin"), ahead=1, sleep=pauses.append)
    assert reader.read() == b"content"
    assert len(pauses) == 3
    answers[:] = [b"short"]
    with pytest.raises(RemoteFileError, match="the connection to the store broke: try again"):
        is_stored(store, f"{bucket}/a.bin", b"content")


def test_ranges_are_kept_as_far_as_is_said(s3: S3Server, bucket: str) -> None:
    remote_files.put_new(f"{bucket}/a.bin", bytes(10_000))
    found = remote_files.look_at(f"{bucket}/a.bin")
    for keep, asked in ((2_500, 2), (0, 3)):
        s3.forget()
        with remote_files.open_stored(found, ahead=1_000, keep=keep) as reader:
            for position in (0, 5_000, 200):
                reader.seek(position)
                assert reader.read(100) == bytes(100)
        assert len(s3.reads()) == asked
        assert sum(read.sent for read in s3.reads()) == asked * 1_000


def test_a_write_whose_answer_was_lost_has_succeeded(s3: S3Server, bucket: str) -> None:
    """boto3 tries again, and is told that the name is taken: by what it wrote itself."""
    s3.forget()
    s3.lost_answers = 1
    remote_files.put_new(f"{bucket}/a.avro", b"content")
    assert [one.condition for one in s3.requests if one.method == "PUT"] == ["*", "*"]
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"content"
    with pytest.raises(FileExistsError):
        remote_files.put_new(f"{bucket}/a.avro", b"Content")


def test_a_write_that_never_gets_an_answer_is_looked_for(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dp_transforms.stores.remote_files.kinds._S3_ATTEMPTS", 1)
    s3.lost_answers = 1
    S3Store().put(f"{bucket}/a.avro", b"content", only_new=True)
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"content"
    s3.lost_answers = 1
    with pytest.raises(RemoteFileError, match="the store cannot be reached"):
        S3Store().put(f"{bucket}/a.avro", b"other", only_new=True)
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"content"


def test_a_store_without_conditional_writes_is_not_written_to(s3: S3Server, bucket: str) -> None:
    s3.refuse_writes_with = "501 NotImplemented"
    with pytest.raises(RemoteFileError, match=r"does not know conditional writes.*: use another store"):
        remote_files.put_new(f"{bucket}/a.avro", b"content")
    assert not remote_files.exists(f"{bucket}/a.avro")


def test_a_conflict_is_tried_again(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.refuse_writes_with = "409 ConditionalRequestConflict"

    def settle(seconds: float) -> None:
        s3.refuse_writes_with = ""

    monkeypatch.setattr("dp_transforms.stores.remote_files.kinds.time.sleep", settle)
    remote_files.put_new(f"{bucket}/a.avro", b"content")
    assert remote_files.read_stored(f"{bucket}/a.avro", 10) == b"content"


def test_without_credentials_the_error_says_where_they_come_from(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RemoteFileError, match="there are no credentials for the store: set AWS_PROFILE, or AWS_ACC"):
        remote_files.look_at(f"{bucket}/a.csv")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(RemoteFileError, match="there are no credentials for the store"):
        remote_files.look_at(f"{bucket}/a.csv")


def test_a_bucket_that_is_missing_and_a_store_that_is_away(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such bucket: check its name"):
        list(remote_files.find_files("s3://absent-bucket/*.csv"))
    with pytest.raises(RemoteFileError, match="check the name of the bucket"):
        list(remote_files.find_files("s3://a bucket/*.csv"))
    monkeypatch.setattr("dp_transforms.stores.remote_files.kinds._S3_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteFileError, match="cannot be reached: check the network, and AWS_ENDPOINT_URL"):
        remote_files.look_at(f"{bucket}/a.csv")


def test_errors_and_versions_travel_between_processes(bucket: str) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        remote_files.look_at(f"{bucket}/a.csv")
    assert pickle.loads(pickle.dumps(raised.value)).strerror == raised.value.strerror  # noqa: S301
    file = StoredFile("s3://b/a", 1, '"v"')
    assert pickle.loads(pickle.dumps(file)) == file  # noqa: S301


def test_each_process_has_its_own_connections(bucket: str) -> None:
    mine = remote_files.store_of(bucket)
    assert remote_files.store_of(bucket) is mine
    found = list[object]()
    thread = threading.Thread(target=lambda: found.append(remote_files.store_of(bucket)))
    thread.start()
    thread.join()
    assert found == [mine]
    child = os.fork()
    if not child:
        os._exit(0 if remote_files.store_of(bucket) is not mine else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_libraries_of_stores_are_not_loaded_for_local_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,timestamp\nu,i,2026-01-01T00:00:00Z\n")
    code = (
        "import sys; from dp_transforms.logs import EventFields, find_log_chunks\n"
        f"assert len(find_log_chunks([{str(tmp_path)!r}], EventFields())) == 1\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pyarrow" in loaded
    assert not {"boto3", "botocore", "google", "azure", "moto"} & set(loaded)
