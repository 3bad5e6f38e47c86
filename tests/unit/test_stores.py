"""Files in stores: whole or not at all, one version, and only the ranges that are needed. One contract, tried on a real
server of each kind of store; faults of a store on S3."""

import os
import pathlib
import pickle
import re
import threading
import uuid

import pytest

from dp_transforms.reports import read_report_file
from dp_transforms.stores import remote_files
from dp_transforms.stores.remote_files import FileStore, RangeReader, RemoteFileError, StoredFile, UrlError
from dp_transforms.stores.store_clients import S3Client, Said, StoreClient, fault
from examples.engines.engine_process import EngineError
from tests.helpers import gcs_server
from tests.helpers.azurite_server import AzuriteServer
from tests.helpers.replay_logs import BUDGET, write_log
from tests.helpers.shh_here import shh
from tests.helpers.store_contract import CONTRACT

pytestmark = pytest.mark.xdist_group("s3")
SECRET = "kL8secret"


@pytest.fixture(scope="module")
def google():
    with gcs_server.gcs_server() as where:
        yield where


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    pytest.importorskip("azure.storage.blob", reason="azure-storage-blob is not installed")
    try:
        server = AzuriteServer(tmp_path_factory.mktemp("azurite"))
    except EngineError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(params=["s3", "gs", "azfs"])
def root(request, monkeypatch):
    """The URL of what a store calls a bucket, new and empty, on a server of each kind."""
    name = f"test-{uuid.uuid4().hex}"
    if request.param == "s3":
        made = request.getfixturevalue("bucket")
        return made
    if request.param == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", where := request.getfixturevalue("google"))
        return gcs_server.make_bucket(where, name)
    server = request.getfixturevalue("azure")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string)
    return server.make_container(name)


@pytest.mark.parametrize("holds", CONTRACT, ids=lambda holds: holds.__name__)
def test_what_every_store_holds(root, holds):
    holds(root)


def test_an_account_of_azure(azure, monkeypatch, tmp_path):
    """It needs a connection string of its own; a replay from it and into it runs."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string)
    box = azure.make_container("replayed")
    with pytest.raises(RemoteFileError, match="AZURE_STORAGE_CONNECTION_STRING is of another account"):
        remote_files.look_at("azfs://another/replayed/a.csv")
    write_log(tmp_path / "a.parquet")
    remote_files.put_new(f"{box}/logs/a.parquet", (tmp_path / "a.parquet").read_bytes())
    result = shh("replay", f"{box}/logs", *BUDGET, "--output", f"{box}/one.avro", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    _, reports = read_report_file(f"{box}/one.avro")
    assert [hitter.item for report in reports for hitter in report.heavy_hitters] == [
        f"heavy-{hour}" for hour in (0, 1, 3, 5)
    ]


class Scripted(StoreClient):
    """A client that answers as it is told to: with bytes, or with an error that says something."""

    login = "log in"

    def __init__(self, *answers):
        self.answers = list(answers)

    def _next(self):
        answer = self.answers.pop(0)
        if isinstance(answer, bytes):
            return answer
        raise LookupError(answer)

    def head(self, at):
        return len(self._next()), "v"

    def get(self, at, version, begin, length):
        data = self._next()
        return data

    def list(self, at):
        yield at.key, len(self._next()), "v"

    def put(self, at, content, size, only_new):
        self._next()

    def delete(self, at):
        self._next()

    def said(self, error):
        said = error.args[0]
        return said

    def _status(self, error):
        raise NotImplementedError


URL, FILE = "s3://b/a", StoredFile("s3://b/a", 7, "v")
ASKED = {
    "look": lambda store: store.look(URL),
    "read": lambda store: store.read_range(FILE, 0, 7),
    "list": lambda store: list(store.list_below(URL)),
    "put new": lambda store: store.put(URL, b"content", only_new=True),
    "put over": lambda store: store.put(URL, b"content", only_new=False),
    "remove": lambda store: store.remove(URL),
}
ABSENT, OTHER, CONFLICT, BROKE = Said
MEANINGS = {
    ("look", (ABSENT,)): None,
    ("look", (b"content",)): FILE,
    ("look", (BROKE,)): "the connection to the store broke: try again",
    ("look", ("why",)): "why",
    ("read", (b"content",)): b"content",
    ("read", (b"",)): "the connection to the store broke: try again",
    (
        "read",
        (b"content and more",),
    ): "the store answers with more than the range that was asked for: use another store",
    ("read", (ABSENT,)): "it was changed or removed while it was read: use files that nobody writes to any more",
    ("read", (OTHER,)): "it was changed or removed while it was read: use files that nobody writes to any more",
    ("list", (ABSENT,)): "there is no such bucket: check its name, the region and the endpoint",
    ("list", ("why",)): "why",
    ("put new", (b"",)): None,
    ("put new", (OTHER, b"content", b"Content")): "a file of this name exists in the store",
    ("put new", (OTHER, b"contents")): "a file of this name exists in the store",
    ("put new", (OTHER, b"content", b"content")): None,  # it is there: the answer was lost
    ("put new", (OTHER, b"content", ABSENT)): "it was changed or removed while it was read: use files that nobody"
    " writes to any more",  # nobody knows
    ("put new", (BROKE, b"content", b"content")): None,
    ("put new", (BROKE, ABSENT)): "the connection to the store broke: try again",
    ("put new", (BROKE, "why")): "the connection to the store broke: try again",
    ("put new", (CONFLICT, CONFLICT, b"")): None,
    ("put new", (CONFLICT,) * 4): "the store answered with an error (somebody else was writing or removing the same"
    " key): try again, or ask its operator",
    ("put new", (ABSENT,)): "there is no such bucket: check its name, the region and the endpoint",
    ("put over", (BROKE,)): "the connection to the store broke: try again",
    ("put over", (CONFLICT, b"")): None,
    ("remove", (b"",)): None,
    ("remove", (ABSENT,)): None,
    ("remove", ("why",)): "why",
}


@pytest.mark.parametrize(("asked", "answers"), MEANINGS, ids=str)
def test_what_follows_from_an_answer(asked, answers):
    """Whatever the store: an answer means one thing of a file that is read, another of one that is written."""
    client, expected, pauses = Scripted(*answers), MEANINGS[asked, answers], list[float]()
    store = FileStore(client, pauses.append)
    if isinstance(expected, str):
        with pytest.raises(OSError, match=re.escape(expected)) as raised:
            ASKED[asked](store)
        assert raised.value.strerror == expected
        assert raised.value.filename == URL
    else:
        assert ASKED[asked](store) == expected
    assert not client.answers
    assert len(pauses) == min(answers.count(CONFLICT), 3)


def test_what_the_answers_of_s3_say(s3):
    """By their code where it says more than the status, and in words of ours alone."""
    exceptions, client = pytest.importorskip("botocore.exceptions"), S3Client()
    for status, code, said in (
        (404, "NoSuchBucket", ABSENT),
        (404, "404", ABSENT),
        (409, "OperationAborted", CONFLICT),
        (412, "PreconditionFailed", OTHER),
        (416, "InvalidRange", OTHER),
        (400, "ExpiredToken", "the session of the credentials has expired"),
        (403, "AccessDenied", "the store denies the access: check the rights"),
        (403, "InvalidAccessKeyId", "the store does not know the access key: set AWS_PROFILE"),
        (403, "SignatureDoesNotMatch", "the store refuses the signature of the secret key: set AWS_PROFILE"),
        (403, "InvalidObjectState", "it is in an archive: restore it first"),
        (401, "Unauthorized", "the store does not accept the credentials: set AWS_PROFILE"),
        (501, "NotImplemented", "the store does not know conditional writes"),
        (503, "SlowDown", "the store answered with an error (ClientError 503): try again, or ask its operator"),
    ):
        answer = {"Error": {"Code": code, "Message": SECRET}, "ResponseMetadata": {"HTTPStatusCode": status}}
        found = client.said(exceptions.ClientError(answer, "GetObject"))
        assert found is said or (isinstance(found, str) and found.startswith(str(said)) and SECRET not in found), code
    assert client.said(exceptions.ReadTimeoutError(endpoint_url=SECRET)) is BROKE


def test_what_a_client_finds_out_by_itself_is_passed_on():
    class Own(Scripted):
        def _next(self):
            raise fault(URL, "it is too large")

        def said(self, error):
            return BROKE

    for asked in ("look", "list", "put over", "remove"):
        with pytest.raises(RemoteFileError, match="it is too large"):
            ASKED[asked](FileStore(Own()))


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


def test_an_answer_that_breaks_is_asked_for_again(s3, bucket):
    content = os.urandom(300_000)
    remote_files.put_new(f"{bucket}/a.bin", content)
    s3.cut_after = [100, 0, 299_999]
    found, pauses = remote_files.look_at(f"{bucket}/a.bin"), list[float]()
    reader = RangeReader(FileStore(S3Client(), pauses.append), found, ahead=1)
    assert reader.read() == content
    assert pauses == sorted(pauses) != []
    assert len(s3.reads("a.bin")) == 4
    assert {read.condition for read in s3.reads("a.bin")} == {reader.file.version}, "always the same version"


def test_a_store_without_versions_or_without_ranges_is_refused(s3, bucket):
    """Else a change would not be seen; and a large file would be held in memory again for each range."""
    url = f"{bucket}/a.bin"
    remote_files.put_new(url, bytes(10_000))
    found = remote_files.look_at(url)
    s3.ignores_ranges = True
    with remote_files.open_stored(found, ahead=1) as file, pytest.raises(RemoteFileError, match="more than the range"):
        file.read(100)
    s3.gives_versions = False
    with pytest.raises(RemoteFileError, match="gives its files no ETag, so a change would not be seen"):
        remote_files.look_at(url)


def test_ranges_are_kept_as_far_as_is_said(s3, bucket):
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


def test_a_write_whose_answer_was_lost_has_succeeded(s3, bucket):
    """boto3 tries again, and is told that the name is taken: by what it wrote itself."""
    s3.forget()
    s3.lost_answers = 1
    remote_files.put_new(f"{bucket}/a.avro", b"content")
    assert [one.condition for one in s3.requests if one.method == "PUT"] == ["*", "*"]
    assert remote_files.read_stored(f"{bucket}/a.avro", 100) == b"content"
    with pytest.raises(FileExistsError):
        remote_files.put_new(f"{bucket}/a.avro", b"Content")


def test_without_credentials_the_error_says_where_they_come_from(bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RemoteFileError, match="there are no credentials for the store: set AWS_PROFILE, or AWS_ACC"):
        remote_files.look_at(f"{bucket}/a.csv")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(RemoteFileError, match="there are no credentials for the store"):
        remote_files.look_at(f"{bucket}/a.csv")


def test_a_bucket_that_is_missing_and_a_store_that_is_away(bucket, monkeypatch):
    with pytest.raises(RemoteFileError, match="check the name of the bucket"):
        list(remote_files.find_files("s3://a bucket/*.csv"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(RemoteFileError, match="cannot be reached: check the network, and AWS_ENDPOINT_URL"):
        FileStore(S3Client(attempts=1)).look(f"{bucket}/a.csv")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(RemoteFileError, match="its settings cannot be used: check AWS_ENDPOINT_URL"):
        remote_files.look_at(f"{bucket}/a.csv")


def test_errors_and_versions_travel_between_processes(bucket):
    with pytest.raises(FileNotFoundError) as raised:
        remote_files.look_at(f"{bucket}/a.csv")
    assert pickle.loads(pickle.dumps(raised.value)).strerror == raised.value.strerror  # noqa: S301
    file = StoredFile("s3://b/a", 1, '"v"')
    assert pickle.loads(pickle.dumps(file)) == file  # noqa: S301


def test_each_process_has_its_own_connections(bucket):
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
