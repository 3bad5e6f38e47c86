"""Pages in a real browser: what they show, by mouse and by keyboard, and that they run and fetch nothing else."""

import dataclasses
import datetime
import itertools
import os
import shutil
import zoneinfo

import pytest

from dp_transforms.core.window_report import BETWEEN, HeavyHitter
from dp_transforms.plan.plan import Plan
from dp_transforms.reports.trends import trends
from dp_transforms.views.page.report_page import report_page
from dp_transforms.views.report_words import local_text, shown_text
from tests.helpers.page_reports import HOSTILE, STORIES, header_of, hourly_plan, reports_of

pytestmark = pytest.mark.xdist_group("browser")  # one for all tests

PLAN = hourly_plan()
EVIL = ["</script><script>hacked = 1</script>", "<img src=x onerror='hacked = 1'>", HOSTILE, "a" * 500, "$x {{y}}"]


CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    """The Chromium of SHH_CHROMIUM or of this machine, headless. Nothing is downloaded."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")
    path = os.environ.get("SHH_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if path is None:
        pytest.skip("this machine has no Chromium (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page of stories on the hourly plan; closes it, and looks at what it said and asked for."""
    contexts, paths, said, asked = [], [], [], set()

    def open_page(held=STORIES, text=None, place="", **options):
        paths.append(tmp_path / f"page-{len(paths)}.html")
        paths[-1].write_text(text or report_page(header_of(PLAN), reports_of(PLAN, held), datetime.UTC), "utf-8")
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.add(request.url.partition("#")[0]))
        page.goto(paths[-1].as_uri() + place)
        if text is None:
            page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert asked == {path.as_uri() for path in paths}


def expect(locator):
    return pytest.importorskip("playwright.sync_api").expect(locator)


def expanded(page):
    """With all items of the window, which are cut with a sign."""
    for button in page.locator(".rest button").all():
        button.click()
    return page


def ranked(page):
    """The list of a window: name -> rank and badge, as they stand; what is gone has rank 0."""
    lines = expanded(page).evaluate(
        """() => [...document.querySelectorAll("#ranked li")].map((line) =>
            [".link", ".rank", ".badge"].map((part) => line.querySelector(part).textContent))"""
    )
    gone = page.locator("#gone button").all_inner_texts()
    return {name: (int(rank), badge) for name, rank, badge in lines} | dict.fromkeys(gone, (0, "gone"))


def rows(page):
    """The items of the picture from top to bottom."""
    return page.locator("#picture .rows button").all_inner_texts()


def test_counts_order_what_is_of_one_size(opened):
    """As in a table."""
    plan = Plan.for_hits(epsilon=2, delta=1e-9, schedule=PLAN.schedule)
    told = {"little": 40, "none": 30, "much": 165, "also": 40}
    (empty,) = reports_of(plan, {"one": {0: 1}})
    report = empty._replace(heavy_hitters=[HeavyHitter(item, BETWEEN, count) for item, count in told.items()])
    page = opened(text=report_page(header_of(plan), [report], datetime.UTC))
    page.wait_for_selector("html[data-ready]", state="attached")
    (trend,) = trends(plan, [report])
    assert list(ranked(page)) == [entry.hitter.item for entry in trend.entries] == ["much", "also", "little", "none"]


def test_a_page_of_a_run_that_goes_on_is_loaded_again_while_its_latest_window_is_watched(opened):
    page = opened(text=report_page(header_of(PLAN), reports_of(PLAN, STORIES), datetime.UTC, goes_on=True))
    page.wait_for_selector("html[data-ready]", state="attached")
    expect(page.locator("#which")).to_have_text("Now")
    page.clock.install()
    page.reload()
    page.evaluate("window.isOld = true")
    page.locator("#earlier").click()
    page.clock.run_for(130_000)
    assert page.evaluate("window.isOld")
    page.locator("#latest").click()
    page.clock.run_for(70_000)
    page.wait_for_function("window.isOld === undefined")
    expect(page.locator("#which")).to_have_text("Now")


def test_a_window_is_compared_with_the_one_before_by_keyboard(opened):
    page = opened()
    assert page.locator("#which").inner_text() == "Latest busy window"
    assert ranked(page)["first"] == (1, "▼ falling")
    page.click("#latest")
    assert page.locator("#which").inner_text() == "Latest window"
    assert ranked(page) == {"third": (1, "★ new"), "fourth": (2, "★ new"), "second": (0, "gone")}
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#which").inner_text() == "Latest busy window"
    assert page.locator("#changes").inner_text() == "3 items: 1 new, 0 rising, 1 falling, 0 gone. Times in UTC."
    page.keyboard.press("ArrowLeft")
    assert page.locator("#which").inner_text() == "Window 2 of 5"
    assert ranked(page) == {"first": (1, "▲ rising"), "second": (2, "★ new")}
    assert "≥\u00a0500" in page.locator("#ranked").inner_text()
    page.keyboard.press("Home")
    assert ranked(page) == {"first": (1, "")}
    assert "nothing to compare it with" in page.locator("#changes").inner_text()
    assert page.locator("#earlier").is_disabled()
    assert page.locator("#when").inner_text() in page.locator("#slider").get_attribute("aria-valuetext")


SHOWN = {"new": "★ new", "rising": "▲ rising", "falling": "▼ falling", "same": "", None: ""}


@pytest.mark.parametrize("is_known", [True, False], ids=["with a plan", "without one"])
def test_ranks_and_changes_are_those_of_the_other_commands(opened, is_known):
    """Of `reports.trends`, in every window, as the page shows them."""
    sizes = itertools.cycle([0, 3, 0, 2, 12, 40, 41, 62, 90, 9, 0, 5, 150, 100, 3])
    held = {f"item {n}": {w: next(sizes) for w in range(12) if (w * w + n) % 5} for n in range(5)}
    header = header_of(PLAN) if is_known else dataclasses.replace(header_of(PLAN), plan={})
    reports = [each for number, each in enumerate(reports_of(PLAN, held)) if number not in (4, 5)]
    found = list(trends(header.checked_plan(), reports))
    changes = {entry.change for each in found for entry in each.entries}
    assert changes >= {"new", "same", *(("rising", "falling") if is_known else ())}
    page = opened(text=report_page(header, reports, datetime.UTC))
    page.wait_for_selector("html[data-ready]", state="attached")
    for number, each in enumerate(found):
        window = (each.report.window_start - reports[0].window_start) // 3_600_000_000 if is_known else number
        page.locator("#slider").fill(str(window))
        expected = {entry.hitter.item: (entry.rank, SHOWN[entry.change]) for entry in each.entries}
        assert list(ranked(page))[: len(expected)] == list(expected)
        assert ranked(page) == expected | {hitter.item: (0, "gone") for hitter in each.gone}


def test_the_whole_run_has_the_largest_items_and_in_what_share_of_a_day_each_was_named(opened):
    plan = hourly_plan(3000)
    held = {f"item {n:02}": {w: 5 + n for w in range(70 * n, 70 * n + 30) if w % 7} for n in range(40)}
    reports = reports_of(plan, held)
    page = opened(text=report_page(header_of(plan), reports, datetime.UTC), viewport={"width": 1440, "height": 900})
    page.wait_for_selector("html[data-ready]", state="attached")
    assert rows(page) == sorted(held)[10:]
    assert page.locator("#shown").inner_text().startswith("The 30 largest of 40 items, in the order")
    assert "A column is 24 windows: its height is the share" in page.locator("#shown").inner_text()
    first, last = min(map(min, held.values())), max(map(max, held.values()))
    count, expected = last + 1 - first, []
    for row, item in enumerate(rows(page)):  # each has one size, so columns that touch are one if they have one share
        named = [sum((window - first) // 24 == day for window in held[item]) for day in range(-(-count // 24))]
        shares = [number / min(24, count - 24 * day) for day, number in enumerate(named)]
        end = 0
        for share, days in itertools.groupby(shares):
            start, end = end, min(end + 24 * len(list(days)), count)
            expected += [[row, start, end, round(share, 6)]] if share else []
    found = page.evaluate(
        """() => [...document.querySelectorAll("#picture .rows > li")].flatMap((line, row) =>
            [...line.querySelectorAll("rect")].map((rect) => {
                const [x, width, height] = ["x", "width", "height"].map((name) => +rect.getAttribute(name));
                return [row, x, x + width, +height.toFixed(6)];
            }))"""
    )
    assert found == expected
    page.click("#more")
    assert rows(page) == sorted(held)
    page.fill("#find", "ITEM 1")
    expect(page.locator("#picture .rows button")).to_have_count(10)
    page.fill("#find", "nothing has this name")
    expect(page.locator("#shown")).to_have_text("No item of these windows has this in its name.")


def test_a_click_opens_the_history_of_an_item_which_the_address_keeps(opened):
    page = opened()
    strip = page.locator("#picture .rows li", has_text="second").locator("svg")
    box = strip.bounding_box()
    at = (box["x"] + box["width"] * 3.5 / 5, box["y"] + box["height"] / 2)
    page.mouse.move(*at)
    assert page.locator(".tip").inner_text().splitlines()[::2] == ["second", "at least 90 users"]
    page.mouse.click(*at)
    panel = page.get_by_role("complementary", name="second")
    assert "Named in 3 windows" in panel.inner_text()
    assert panel.locator("td:nth-child(2)").all_inner_texts() == ["≥\u00a090", "≥\u00a060"]
    assert page.locator("#which").inner_text() == "Window 4 of 5"
    marked = page.locator("[aria-pressed=true]")
    assert marked.all_inner_texts() == ["second", "second"], "in the list and in the picture"
    assert page.evaluate("document.activeElement.textContent") == "second"
    address = page.url
    page.keyboard.press("Escape")
    assert not page.locator("#panel").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "second", "where it came from"
    assert "item" not in page.url
    page.evaluate("(address) => { location.hash = address.split('#')[1]; }", address)
    assert panel.is_visible()
    assert page.url == address
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("Enter")
    assert panel.is_visible(), "a button like all others"


def test_labels_that_are_code_stay_text(opened):
    page = opened({label: {0: 10, 1: 20} for label in EVIL})
    shown = {shown_text(label) for label in EVIL}
    assert set(ranked(page)) == set(rows(page)) == shown
    for label in EVIL:
        page.locator("#ranked button", has_text=shown_text(label)).first.click()
        assert page.locator("#panel h2").inner_text() == shown_text(label)
        page.reload()
        assert page.locator("#panel h2").inner_text() == shown_text(label), "out of the address"
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0


def test_the_page_writes_times_as_tables_do(opened):
    """Also from where the clock of Berlin is put forward."""
    begin = int(datetime.datetime(2026, 3, 27, tzinfo=datetime.UTC).timestamp())
    zones = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe")
    cases = [(zone, begin + days * 86_400 + 1800 * half) for zone in zones for days in range(4) for half in range(48)]
    found = opened().evaluate(
        """(cases) => {
            const report = JSON.parse(document.getElementById("report").textContent);
            return cases.map(([zone, from]) => readReport({ ...report, zone }).writeTime(from * 1000));
        }""",
        cases,
    )
    assert found == [local_text(start * 10**6, zoneinfo.ZoneInfo(zone)) for zone, start in cases]
