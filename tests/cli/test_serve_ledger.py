"""``shh serve --ledger`` over HTTP: a real ledger that other processes write to, a real server, plain clients."""

import datetime
import json
import re
import shutil
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from dp_transforms.errors import UserError
from dp_transforms.runs.ledger import Caps, Ledger
from dp_transforms.runs.ledger.processes import Actor
from dp_transforms.views.serving.live_ledger import LiveLedger, short_amount
from tests.helpers.browser import WatchedPage, running_browser
from tests.helpers.ledger_runs import CAPS, part
from tests.helpers.pages import Page
from tests.helpers.served import Listener, served

EVIL = "<img src=x onerror='hacked = 1'>"


def populations(live):
    """Of the page, which must be those of the last message."""
    data = Page(live.view.page.decode()).data
    if live.view.messages:
        assert json.loads(live.view.messages[-1].decode().partition("data: ")[2]) == data["ledger"]
    found = data["ledger"]
    return found


def test_the_page_tells_what_the_ledger_says_and_a_message_what_has_changed(tmp_path):
    ledger = Ledger.open(tmp_path / "shh.db")
    verdict = ledger.reserve(part(0, 10, run_id="first"), CAPS)
    live = LiveLedger(str(tmp_path / "shh.db"), datetime.UTC)
    (news,) = populations(live)
    assert news["budgets"] == [
        {"name": "epsilon", "share": 0.125, "spent": "0.50", "most": "4.00", "left": "3.50"},
        {"name": "delta", "share": pytest.approx(0.1, rel=0.01), "spent": "1e-09", "most": "1e-08", "left": "9e-09"},
    ]
    ((run_id, stream, range_, windows, status, planned, _, _),) = news["runs"]
    assert (run_id, stream, windows, status, planned) == ("first", "events", "0 of 30", "reserved", "0.50")
    assert range_ == "2026-01-01 00:00 to 2026-01-31 00:00"
    assert news["about"].endswith("The epsilons of all runs add up, and so do their deltas (rule basic).")
    assert not live.poll(), "nothing has changed"
    before = live.view
    ledger.start(verdict)
    assert live.poll()
    assert populations(live)[0]["runs"][0][4] == "running"
    ledger.finish(verdict)
    ledger.reserve(part(run_id="second", population="readers"), Caps("1", "1e-6"))
    assert live.poll()
    news, readers = populations(live)
    assert news["runs"][0][3:5] == ["10 of 30", "finished"]
    assert [each[0] for each in readers["runs"]] == ["second"]
    assert live.view.number_of(f"{before.epoch}.0") is None, "a page that missed one loads anew"
    assert live.view.number_of(f"{before.epoch}.1") == 1


def test_a_dead_process_and_times_in_the_zone_are_told_and_no_fingerprint_is(tmp_path):
    here = Actor.here()
    ledger = Ledger.open(tmp_path / "shh.db", actor=Actor(here.who, here.place, f"{2**22 + 1}:1:boot"))
    ledger.start(ledger.reserve(part(run_id="r"), CAPS))
    live = LiveLedger(str(tmp_path / "shh.db"), ZoneInfo("Asia/Kolkata"))
    (news,) = populations(live)
    assert news["runs"][0][4] == "running, but its process has ended: see shh ledger doctor"
    told = json.dumps(news)
    asked = part()
    for secret in (asked.input_fingerprint, asked.key_fingerprint, asked.plan_fingerprint):
        assert secret not in live.view.page.decode()
    ((run, _),) = ledger.runs()
    moment = datetime.datetime.fromisoformat(run.reserved_at).astimezone(ZoneInfo("Asia/Kolkata"))
    assert f"{moment:%Y-%m-%d %H:%M}" in told
    assert "(Asia/Kolkata)" in told


def test_a_ledger_that_is_away_or_restored_is_told_and_what_is_shown_stays(tmp_path):
    place = tmp_path / "shh.db"
    ledger = Ledger.open(place)
    ledger.reserve(part(run_id="r"), CAPS)
    live = LiveLedger(str(place), datetime.UTC)
    shutil.copy(place, tmp_path / "old.db")
    ledger.reserve(part(run_id="s"), None)
    assert live.poll()
    shutil.copy(tmp_path / "old.db", place)
    assert live.poll()
    assert "older" in live.view.problem or "restored" in live.view.problem
    assert len(populations(live)[0]["runs"]) == 2
    place.chmod(0o644)
    assert live.poll()
    assert "chmod 600" in live.view.problem
    with pytest.raises(UserError, match="there is no ledger at"):
        LiveLedger(str(tmp_path / "missing.db"), datetime.UTC)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        *(("0", "0.00", "0.00"), ("4", "4.00", "4.00"), ("0.5", "0.50", "0.50"), ("1.2301", "1.24", "1.23")),
        *(("0.0100001", "0.02", "0.01"), ("0.00123456", "0.00124", "0.00123"), ("1.2345e-9", "1.24e-09", "1.23e-09")),
        *(("9.999e-3", "0.01", "0.00999"), ("12345.678", "12,345.68", "12,345.67")),
    ],
)
def test_an_amount_is_short_and_never_told_too_small_or_what_is_left_too_large(value, up, down):
    assert (short_amount(Decimal(value)), short_amount(Decimal(value), down=True)) == (up, down)


@pytest.mark.waits
def test_browsers_hear_of_it_and_the_token_rules_are_those_of_reports(tmp_path):
    ledger = Ledger.open(tmp_path / "shh.db")
    ledger.reserve(part(run_id="first"), CAPS)
    (tmp_path / "token").write_text("correct-horse-battery-staple\n")
    (tmp_path / "token").chmod(0o600)
    owner = {"Authorization": "Bearer correct-horse-battery-staple"}
    with served(None, "--ledger", tmp_path / "shh.db", "--token-file", tmp_path / "token") as server:
        page = Page(server.get("/", **owner).text)
        assert any("do not publish this page" in text for text in page.texts)
        assert page.scripts == page.styles == []
        listener = Listener(server.port, page.data["after"], **owner)
        ledger.reserve(part(run_id="second"))
        found = listener.next("ledger").data
        assert [each[0] for each in found[0]["runs"]] == ["second", "first"]
        assert server.get("/", Host="evil.example.org").status == 421
    with served(None, "--ledger", tmp_path / "shh.db") as server:
        token = re.fullmatch(r"http://[^/]+/\?token=([\w-]{43})", server.address)
        assert token is not None, "also for others on this machine"
        assert server.get().status == 401
        assert "second" in server.get("/", Authorization=f"bearer {token[1]}").text


@pytest.mark.waits
@pytest.mark.xdist_group("browser")
def test_the_page_of_a_ledger_in_a_browser(tmp_path):
    ledger = Ledger.open(tmp_path / "shh.db")
    ledger.reserve(part(run_id=EVIL, population=EVIL), CAPS)
    with running_browser() as browser, served(None, "--ledger", tmp_path / "shh.db") as server:
        playwright = pytest.importorskip("playwright.sync_api")
        watched = WatchedPage(browser, server.address)
        page = watched.wait()
        playwright.expect(page.locator("#live-state")).to_contain_text("Live", timeout=30_000)
        assert page.locator("h2").all_inner_texts() == [EVIL]
        assert page.locator("tbody th").all_inner_texts() == [EVIL]
        assert page.locator("meter").first.get_attribute("aria-label") == "epsilon: 0.50 of 4.00 spent"
        ledger.reserve(part(run_id="later", population=EVIL))
        playwright.expect(page.locator("tbody tr")).to_have_count(2, timeout=30_000)
        playwright.expect(page.locator(".budget").first).to_contain_text("1.00 of 4.00 spent, 3.00 left")
        # On a narrow screen nothing is beside what can be seen.
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.locator(".scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
        assert page.locator("img").count() == 0
        assert watched.said == []
        assert {each.split("/")[2] for each in watched.asked} == {f"127.0.0.1:{server.port}"}
        watched.context.close()
