"""``shh serve`` over HTTP: a real server in a process of its own, a folder that grows, plain clients."""

import re
import signal
import socket
import subprocess
import time

import pytest

from dp_transforms.cli.serve import bound
from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports import write_report_file
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.runs.ledger import Ledger
from tests.helpers import forked, shh_here
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, reports_of
from tests.helpers.pages import Page, policy_hash, told
from tests.helpers.served import Listener, Served, served

PLAN = hourly_plan(48)
HEADER = header_of(PLAN)
MANY = reports_of(PLAN, {f"item-{number}": {w: 5 * w + number for w in range(48)} for number in range(3)})
pytestmark = pytest.mark.xdist_group("serve")  # one server for all tests that change nothing
TOKEN = "correct-horse-battery-staple"


def folder_of(path, windows):
    writer = ReportFolder(str(path)).open(HEADER)
    for each in MANY[:windows]:
        writer.write(each)
    return writer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Of a folder with four windows, which nobody changes."""
    folder = tmp_path_factory.mktemp("serve") / "reports"
    folder_of(folder, 4)
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The same with a token."""
    place = tmp_path_factory.mktemp("guarded")
    folder_of(place / "reports", 4)
    write_private(place / "token", TOKEN + "\n")
    with served(place / "reports", "--token-file", "token", "--name", "News.example.org") as found:
        yield found


def shows(server, words):
    """The page says so soon."""
    deadline = time.monotonic() + 30
    while words not in server.get().text:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_page_waits_for_a_stream_that_has_not_begun(tmp_path, is_there):
    folder = tmp_path / "live"
    if is_there:
        folder.mkdir()
    command = ("-m", "dp_transforms.cli.main", "serve", folder, "--port", 0)
    with forked.python(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        waits = process.stderr.readline()
        assert "holds no reports yet: neither header.json of a stream nor report files. The page is there" in waits
        folder_of(folder, 2)
        server = Served(process.stdout.readline().split()[1], process)
        shows(server, "3 items were named in 2 windows")  # not before the second file is there
        server.end(signal.SIGINT)
        assert "holds no reports yet" not in process.communicate()[1]


def test_nobody_is_let_in_before_there_is_a_page():
    """A browser is refused while `shh serve` waits for a stream; it does not hang."""
    with bound("127.0.0.1", 0) as early, pytest.raises(ConnectionRefusedError):
        socket.create_connection(early.getsockname(), timeout=10)


@pytest.mark.waits
def test_a_folder_of_the_files_of_a_run_is_served_and_grows(tmp_path):
    folder = tmp_path / "nights"
    folder.mkdir()
    write_report_file(folder / "1.avro", HEADER, MANY[:2])
    with served(folder) as server:
        text = server.get().text
        assert "3 items were named in 2 windows" in text
        assert Page(text).data["live"]["goes_on"] is False, "what is latest is not now"
        write_report_file(tmp_path / "2.avro", HEADER, MANY[2:5])
        (tmp_path / "2.avro").rename(folder / "2.avro")
        shows(server, "3 items were named in 5 windows")


def write_private(path, text):
    path.write_text(text)
    path.chmod(0o600)


def events(page):
    return str(page.data["live"]["after"])


@pytest.mark.waits
def test_windows_appear_as_they_close_and_the_end_is_told(tmp_path):
    folder = tmp_path / "reports"
    writer = folder_of(folder, 2)
    with served(folder) as server:
        page = Page(server.get().text)
        assert page.data["live"]["goes_on"] is True
        assert {label for _, _, label, _ in told(page.data["columns"])} == {"item-0", "item-1", "item-2"}
        listener = Listener(server.port, events(page))
        begun = listener.next()
        assert (begun.kind, begun.data["state"]) == ("status", "")
        found = []
        for each in MANY[2:5]:
            writer.write(each)
            found.append(listener.next("window"))
        assert [(each.data["start"], each.data["end"]) for each in found] == [
            (each.window_start / 1000, each.window_end / 1000) for each in MANY[2:5]
        ]
        assert [entry[2] for entry in found[0].data["entries"]] == [
            f"at least {hitter.at_least_users} users" for hitter in MANY[2].heavy_hitters
        ]
        late = Listener(server.port, "", Last_Event_ID=found[0].event_id)
        assert [late.next().event_id for _ in range(2)] == [each.event_id for each in found[1:]]
        writer.end(RunEnded("news", 24, 5))
        ended = listener.next("status").data
        assert "This part has ended: 24 of the run's 48 windows are closed." in ended["summary"]
        assert ended["state"] == "This part has ended. No further window will come."
        again = Listener(server.port, events(Page(server.get().text)))
        assert again.next("status").data["state"] == ended["state"]
        code, seconds = server.end(signal.SIGINT)
        assert code == 130
        assert seconds < 10, "it does not wait for browsers"
        assert server.process.communicate()[1].endswith("shh: stopped.\n")


@pytest.mark.waits
def test_a_restart_of_the_server_makes_pages_load_anew_and_a_new_stream_is_followed(tmp_path):
    folder = tmp_path / "reports"
    folder_of(folder, 2)
    with served(folder) as server:
        port, after = server.port, events(Page(server.get().text))
        listener = Listener(port, after)
        server.end(signal.SIGTERM)
        with pytest.raises(EOFError):
            listener.next("window")
    with served(folder, port=port) as server:
        assert Listener(port, after).next().kind == "reload"
        listener = Listener(port, events(Page(server.get().text)))
        folder_of(folder, 3)  # the stream is resumed: it writes what is there once more, and goes on
        assert listener.next("window").data["start"] == MANY[2].window_start / 1000
        folder.rename(tmp_path / "old")
        assert "holds no reports yet" in listener.next("status").data["problem"]
        folder_of(folder, 4)
        assert listener.next("window").data["start"] == MANY[3].window_start / 1000
        assert listener.next("status").data["problem"] == ""


def test_all_answers_say_what_a_browser_may_do(server):
    for path, status in (("/", 200), ("/assets/missing.js", 404), ("/alive", 200), ("/nothing", 404), ("/../x", 404)):
        answer = server.get(path)
        assert answer.status == status
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy.pop("script-src") == policy.pop("style-src") == policy.pop("connect-src") == "'self'"
        assert set(policy.values()) == {"'none'"}
        assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_nothing_can_be_changed_and_heads_have_an_end(server):
    for path in ("/", "/alive", "/events?after=x"):
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert server.get(path, method).status == 405
        head = server.get(path, "HEAD")
        assert (head.status, head.body) == (200, b"")


def test_files_have_names_of_their_content_and_may_be_kept(server):
    page = Page(server.get(Accept_Encoding="gzip, br").text)
    scripts = [value for tag, name, value in page.values if (tag, name) == ("script", "src")]
    hashes = [value for tag, name, value in page.values if (tag, name) == ("script", "integrity")]
    assert len(scripts) == 5
    for path, digest in zip(scripts, hashes, strict=True):
        whole, packed = server.get(f"/{path}"), server.get(f"/{path}", Accept_Encoding="gzip")
        assert whole.body == packed.body
        assert f"'{digest}'" == policy_hash(whole.text)
        assert "immutable" in whole.headers["cache-control"]
        assert whole.headers["content-type"].startswith("text/javascript")
    assert page.scripts == page.styles == []
    assert re.fullmatch(r"assets/live-[0-9a-f]{16}\.js", scripts[-1])


OURS = ("localhost", "LOCALHOST:80", "127.0.0.1:1234", "[::1]:80", "203.0.113.7")
NOT_OURS = ("evil.example.org", "localhost.evil.example.org:8765", "127.0.0.1.evil.example.org")
NOT_OURS += ("localhost@evil.example.org", "[::1", "")


def test_only_names_of_ours_are_answered(server):
    for path in ("/", "/events?after=x", "/alive"):
        for hosts, status in ((OURS, 200), (NOT_OURS, 421)):
            for host in hosts:
                assert server.get(path, Host=host).status == status, host


def test_other_sites_may_open_the_page_and_ask_for_nothing_else(server):
    for site in ("cross-site", "same-site"):
        assert server.get(Sec_Fetch_Site=site).status == 200
        assert server.get("/events?after=x", Sec_Fetch_Site=site).status == 403
    assert server.get("/alive", Sec_Fetch_Site="same-origin").status == 200


def test_nothing_is_told_without_the_token(guarded):
    wrong = ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é" * 28)
    asset = Page(guarded.get(Authorization=f"Bearer {TOKEN}").text).values
    script = next(value for tag, name, value in asset if (tag, name) == ("script", "src"))
    for path in ("/", f"/{script}", "/events?after=x", "/alive", f"/alive?token={TOKEN}", f"/?token={TOKEN}&token=x"):
        assert guarded.get(path).status == 401
        for each in wrong:
            given = each.encode().decode("latin-1")
            assert guarded.get(path, Authorization=f"Bearer {given}").status == 401
            assert guarded.get(path, Cookie=f"shh-{guarded.port}={given}").status == 401
    for each in wrong[:-1]:
        assert guarded.get(f"/?token={each}").status == 401
    assert "item-0" not in guarded.get("/").text
    form = guarded.get("/?token=x", Accept="text/html")
    assert (form.status, "This is not the token." in form.text) == (401, True)
    assert "form-action 'self'" in form.headers["content-security-policy"]
    assert "form-action 'none'" in guarded.get("/alive", Accept="text/html").headers["content-security-policy"]
    assert "item-0" not in form.text


def test_the_token_becomes_a_cookie_that_other_sites_and_scripts_cannot_use(guarded):
    answer = guarded.get(f"/?token={TOKEN}")
    assert answer.status == 200
    assert TOKEN not in answer.text + str(answer.headers)
    cookie, *rest = answer.headers["set-cookie"].split("; ")
    assert {each.lower() for each in rest} == {"httponly", "samesite=strict", "path=/"}
    assert Page(answer.text).values[0] == ("meta", "http-equiv", "refresh")
    found = guarded.get("/", Cookie=f"other=1; {cookie}; last=2")
    assert "item-0" in found.text
    assert TOKEN not in found.text
    assert Listener(guarded.port, events(Page(found.text)), Cookie=cookie).next().kind == "status"
    assert guarded.get("/alive", Cookie=cookie.replace(str(guarded.port), "1")).status == 401
    assert guarded.get("/", Cookie=cookie, Host="news.example.org").status == 200
    assert guarded.get("/", Cookie=cookie, Host="other.example.org").status == 421
    assert guarded.address.endswith(f":{guarded.port}/"), "what is printed holds no token from a file"


def test_beyond_loopback_a_token_is_made_and_printed_once(tmp_path):
    write_report_file(tmp_path / "report.avro", HEADER, reports_of(PLAN, STORIES))
    with served(tmp_path / "report.avro", "--host", "0.0.0.0") as server:
        token = re.fullmatch(r"http://[^/]+/\?token=([\w-]{43})", server.address)
        assert token is not None
        assert server.get().status == 401
        answer = server.get("/", Authorization=f"bearer {token[1]}")
        assert {label for _, _, label, _ in told(Page(answer.text).data["columns"])} == set(STORIES)
        assert server.get("/", Authorization=f"bearer {token[1]}", Host=socket.gethostname()).status == 200
        server.end(signal.SIGTERM)
        out, err = server.process.communicate()
        assert "not encrypted" in err
        assert token[1] not in out + err, "it was printed once"
        assert [path.name for path in tmp_path.iterdir()] == ["report.avro"], "it is written nowhere"


def test_a_name_is_for_others_so_a_token_is_asked_for_behind_a_proxy_too(tmp_path):
    write_report_file(tmp_path / "report.avro", HEADER, reports_of(PLAN, STORIES))
    with served(tmp_path / "report.avro", "--name", "news.example.org") as server:
        token = re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{43})", server.address)
        assert token is not None
        for host in ("news.example.org", "localhost"):
            assert server.get(Host=host).status == 401
            assert server.get(Host=host, Authorization=f"Bearer {token[1]}").status == 200
    operator = ["--flink-master", "localhost:8081", "--name", "news.example.org"]
    assert "exact numbers of the log, and --name news.example.org" in refused("report.avro", *operator, cwd=tmp_path)


def test_the_file_of_the_token_is_for_its_owner_alone_and_is_not_changed(tmp_path):
    write_report_file(tmp_path / "report.avro", HEADER, reports_of(PLAN, STORIES))
    write_private(tmp_path / "token", TOKEN + "\n")
    for mode in (0o644, 0o640, 0o602, 0o610):
        (tmp_path / "token").chmod(mode)
        said = refused("report.avro", "--port", 0, "--token-file", "token", cwd=tmp_path)
        assert f"mode {mode:04o}). Close it with: chmod 600 token" in said
        assert TOKEN not in said
    (tmp_path / "token").chmod(0o400)
    with served(tmp_path / "report.avro", "--token-file", "token") as server:
        assert server.get("/", Authorization=f"Bearer {TOKEN}").status == 200
        server.end(signal.SIGTERM)
        assert TOKEN not in "".join(server.process.communicate())
    assert (tmp_path / "token").read_text() == TOKEN + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.avro", "token"]


def refused(*words, cwd):
    ended = shh_here.shh("serve", *words, cwd=cwd)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert re.fullmatch(r"shh: [^\n]+\n", ended.stderr), ended.stderr
    return ended.stderr


def test_what_cannot_be_served_is_said_in_a_line_with_a_remedy(tmp_path):
    folder_of(tmp_path / "reports", 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.jsonl").write_text("{}\n")
    write_private(tmp_path / "short", "too-short\n")
    for missing in ("missing.avro", "missing/reports"):
        assert "--output folder" in refused(missing, cwd=tmp_path)
    assert "several reports must be files of one run" in refused("reports", "other.jsonl", "--port", 0, cwd=tmp_path)
    assert "other.jsonl" in refused("other.jsonl", "--port", 0, cwd=tmp_path)
    assert "a database is not followed" in refused("sqlite:///reports.db", "--port", 0, cwd=tmp_path)
    Ledger.open(tmp_path / "shh.db")
    for words in ([], ["reports", "--ledger", "shh.db"]):
        assert "give one of both" in refused(*words, cwd=tmp_path)
    assert "there is no ledger at" in refused("--ledger", "missing.db", "--port", 0, cwd=tmp_path)
    for words in (["missing"], ["short"], ["empty"]):
        assert "--token-file" in refused("reports", "--token-file", *words, cwd=tmp_path)
    assert "--host nowhere.invalid" in refused("reports", "--host", "nowhere.invalid", cwd=tmp_path)
    assert "--titles" in refused("reports", "--titles", "missing.csv", "--port", 0, cwd=tmp_path)
    for option in ("--run-id", "--kafka-config"):
        assert f"{option} is for a topic" in refused("reports", option, "x", cwd=tmp_path)
    for address in ("localhost/reports", "localhost:9092", "me:secret@localhost:9092/reports", "localhost:9092/a/b"):
        said = refused(f"kafka://{address}", "--port", 0, cwd=tmp_path)
        assert "kafka://HOST:PORT/TOPIC" in said
        assert "secret" not in said
    said = refused("kafka://localhost:9/reports", "--port", 0, "--kafka-config", "missing", cwd=tmp_path)
    assert "missing: the file of Kafka client settings cannot be read" in said
    operator = ["reports", "--flink-master", "localhost:8081"]
    assert "exact numbers" in refused(*operator, "--host", "0.0.0.0", cwd=tmp_path)
    assert "HOST:PORT" in refused("reports", "--flink-master", "localhost", cwd=tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port 0" in refused("reports", "--port", taken.getsockname()[1], cwd=tmp_path)


def test_without_its_extra_it_says_what_to_install():
    code = (
        "import importlib.util, sys; from dp_transforms.cli.main import main;"
        "found = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'uvicorn' else found(name, *rest);"
        "main(['serve', 'reports'])"
    )
    done = forked.run_python("-c", code)
    assert (done.returncode, "pip install '.[serve]'" in done.stderr) == (1, True)
