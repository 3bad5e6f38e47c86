"""The live page in a real browser, from a real server: windows appear, it survives a restart, 100 others listen."""

import concurrent.futures
import dataclasses
import datetime
import json
import os
import time

import pytest

from dp_transforms.monitor.window_report import RunEnded
from dp_transforms.reports.report_folder import ReportFolder
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.serving.live_report import LiveReport
from dp_transforms.views.serving.report_source import source_of
from tests.helpers.browser import WatchedPage, running_browser
from tests.helpers.page_reports import header_of, hourly_plan, many_windows, reports_of
from tests.helpers.pages import Page
from tests.helpers.served import Listener, served

pytestmark = pytest.mark.xdist_group("browser")
PLAN = hourly_plan(48)
EVIL = "<img src=x onerror='hacked = 1'>"
ITEMS = {"first": range(48), "second": range(3, 9), EVIL: range(4, 48)}
MANY = reports_of(PLAN, {item: {w: 5 * w + 1 for w in held} for item, held in ITEMS.items()})
CLIENTS = 100


@pytest.fixture(scope="module")
def browser():
    with running_browser() as found:
        yield found


def expect(locator):
    return pytest.importorskip("playwright.sync_api").expect(locator)


def state_of_page(page):
    """What the page says of its windows and items, by the part that says it."""
    parts = ("summary", "when", "which", "changes", "ranked", "gone", "shown", "picture")
    return {part: page.locator(f"#{part}").inner_text() for part in parts}


@pytest.mark.waits
def test_windows_appear_in_an_open_page_which_survives_restarts(browser, tmp_path):
    folder = tmp_path / "reports"
    writer = ReportFolder(str(folder)).open(header_of(PLAN))
    for each in MANY[:4]:
        writer.write(each)
    with served(folder) as server:
        port = server.port
        watched = WatchedPage(browser, server.address)
        page = watched.wait()
        state = page.locator("#live-state")
        expect(state).to_contain_text("Live", timeout=30_000)
        page.fill("#find", "rs")
        for each in MANY[4:6]:
            writer.write(each)
        expect(page.locator("#slider")).to_have_attribute("max", "5", timeout=30_000)
        expect(page.locator("#which")).to_have_text("Now")
        expect(state).to_have_text("Live. The latest window came less than a minute ago.")
        expect(page.locator("#summary")).to_contain_text("3 items were named in 6 windows")
        assert EVIL in page.locator("#ranked").inner_text()
        assert page.locator("img").count() == 0
        assert page.input_value("#find") == "rs"
        # What was added is what a new page shows.
        fresh = WatchedPage(browser, server.address)
        fresh.wait().fill("#find", "rs")
        for each in (fresh.page, page):
            expect(each.locator("#shown")).to_contain_text("1 item with this in the name", timeout=30_000)
        assert state_of_page(page) == state_of_page(fresh.page)
        # Who looks at an earlier window stays there.
        page.locator("#earlier").click()
        writer.write(MANY[6])
        expect(page.locator("#which")).to_have_text("Window 5 of 7", timeout=30_000)
        assert watched.said == fresh.said == []
        assert {each.split("/")[2] for each in watched.asked} == {f"127.0.0.1:{port}"}
        fresh.context.close()
        server.end()
        expect(state).to_contain_text("does not answer", timeout=30_000)
        assert page.locator("#ranked li").count() > 0
        page.locator("#latest").click()
    writer.write(MANY[7])
    with served(folder, port=port):
        expect(page.locator("#slider")).to_have_attribute("max", "7", timeout=60_000)
        expect(page.locator("#live-state")).to_contain_text("Live", timeout=30_000)
        writer.write(MANY[8])
        writer.end(RunEnded("news", 48, 9))
        expect(page.locator("#live-state")).to_have_text(
            "The run has ended. No further window will come.", timeout=30_000
        )
        expect(page.locator("#slider")).to_have_value("8", timeout=30_000)
        expect(page.locator("#live-state")).not_to_contain_text("Live")
    watched.context.close()


TITLES = {"third": "Weather", "second": "<b>Sport</b>"}
LATER = {"first": {0: 300, 9: 7000}, "second": {2: 60, 8: 90}, "third": {1: 40, 9: 40}, "fourth": {4: 30, 5: 31, 9: 30}}


@pytest.mark.parametrize("is_known", [True, False], ids=["on the grid of a plan", "without a plan"])
def test_a_page_that_is_told_of_windows_says_what_a_page_of_all_windows_says(browser, tmp_path, is_known):
    header = header_of(PLAN) if is_known else dataclasses.replace(header_of(PLAN), plan={})
    reports = reports_of(PLAN, LATER)
    folder = ReportFolder(str(tmp_path / "reports"))
    writer = folder.open(header)
    writer.write(reports[0])
    live = LiveReport(source_of([folder.path]), datetime.UTC, TITLES, 100, title="<now>")
    assert b"<h1>&lt;now&gt;</h1>" in live.view.page
    for each in reports[1:]:
        writer.write(each)
    live.poll()
    told = [json.loads(each.decode().partition("data: ")[2]) for each in live.view.messages]
    assert len(told) == len(reports) - 1
    pages = []
    for name, held in (("old", reports[:1]), ("new", reports)):
        (tmp_path / f"{name}.html").write_text(report_page(header, held, datetime.UTC, TITLES))
        pages.append(WatchedPage(browser, tmp_path / f"{name}.html"))
    old, new = (each.wait() for each in pages)
    # In another order than time, where the plan says which windows there are; and one of them twice.
    order = [*reversed(told), told[0]] if is_known else [*told, told[0]]
    assert old.evaluate("(told) => reportPage.addWindows(told)", order)
    unfit = {**told[0], "start": told[0]["start"] + 1, "end": told[0]["end"] + 1}
    assert not old.evaluate("(told) => reportPage.addWindows([told])", unfit)
    for item in ("first", "Sport"):
        for page in (old, new):
            page.locator("#latest").evaluate("button => button.disabled || button.click()")
            page.locator("#picture button", has_text=item).click()
        for part in ("when", "which", "changes", "ranked", "gone", "shown", "panel"):
            expect(old.locator(f"#{part}")).to_have_text(new.locator(f"#{part}").text_content())
    # Of two items with one title the later one has its label beside it.
    another = {**told[-1], "entries": [["x", "Weather", "named", 1]]}
    assert old.evaluate("(told) => reportPage.addWindows([told])", another)
    expect(old.locator("#ranked")).to_contain_text("Weather (x)")
    assert [each.said for each in pages] == [[], []]
    for each in pages:
        each.context.close()


def test_a_page_with_a_token_works_and_its_address_holds_none(browser, tmp_path):
    writer = ReportFolder(str(tmp_path / "reports")).open(header_of(PLAN))
    writer.write(MANY[0])
    (tmp_path / "token").write_text("correct-horse-battery-staple\n")
    (tmp_path / "token").chmod(0o600)
    with served(tmp_path / "reports", "--token-file", "token") as server:
        watched = WatchedPage(browser, server.address)
        for given in ("wrong", "correct-horse-battery-staple"):
            watched.page.fill("input", given)
            watched.page.get_by_role("button", name="Open the page").click()
            if given == "wrong":
                expect(watched.page.get_by_role("alert")).to_have_text("This is not the token.")
        page = watched.wait()
        assert page.url == server.address
        expect(page.locator("#live-state")).to_contain_text("Live", timeout=30_000)
        writer.write(MANY[1])
        expect(page.locator("#slider")).to_have_attribute("max", "1", timeout=30_000)
        assert page.evaluate("document.cookie") == ""
        assert [each for each in watched.asked if "token" in each] == watched.asked[1:3]
        assert {each for each in watched.said if "401" not in each} == set()
        watched.context.close()


def listen_and_load(server):
    """What one browser asks for, and in how many seconds it had the page."""
    begin = time.monotonic()
    page = Page(server.get("/", Accept_Encoding="gzip").text)
    took = time.monotonic() - begin
    for tag, name, value in page.values:
        if (tag, name) == ("script", "src"):
            assert server.get(f"/{value}", Accept_Encoding="gzip").status == 200
    return Listener(server.port, page.data["live"]["after"]), took


@pytest.mark.nightly
def test_a_hundred_browsers_at_once_on_ten_thousand_windows(browser, tmp_path):
    """SHH_FIRST_PAINT_SECONDS: what the first paint may take; set it to 1 on a machine that does nothing else."""
    plan, reports = many_windows()
    writer = ReportFolder(str(tmp_path / "reports")).open(header_of(plan))
    for each in reports[:-1]:
        writer.write(each)
    with served(tmp_path / "reports") as server, concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(listen_and_load, [server] * CLIENTS))
        assert len(found) == CLIENTS
        # While all of them listen, and load the page again:
        again = [pool.submit(listen_and_load, server) for _ in range(CLIENTS)]
        watched = WatchedPage(browser, server.address)
        page = watched.wait()
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        slowest = max(each.result()[1] for each in again)
        print(json.dumps({"first paint": paint, "slowest of the others": slowest, "bytes": len(server.get().body)}))
        assert paint < float(os.environ.get("SHH_FIRST_PAINT_SECONDS", "20"))
        writer.write(reports[-1])
        begin = time.monotonic()
        for listener, _ in found:
            assert listener.next("window").data["start"] == reports[-1].window_start / 1000
        expect(page.locator("#slider")).to_have_attribute("max", str(len(reports) - 1), timeout=60_000)
        print(f"all had the new window after {time.monotonic() - begin:.1f} s")
        assert watched.said == []
        watched.context.close()
