"""Pages in a real browser: what they show, by mouse and by keyboard, and that they run and fetch nothing else.

With SHH_SCREENSHOTS=FOLDER the pictures of the pages at three widths are kept there.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import re
import subprocess
import time
import zoneinfo

import pytest

from dp_transforms.views.page.report_page import fact_sheet, report_page
from dp_transforms.views.report_words import shown_text
from dp_transforms.views.time_axis import local_text, ticks
from tests.cli.shown_reports import HOSTILE
from tests.helpers.browser import WatchedPage, running_browser
from tests.helpers.calibrated_plans import IN_DOMAIN, short_looks_plan
from tests.helpers.page_reports import STORIES, header_of, hourly_plan, many_windows, reports_of
from tests.helpers.shh_process import python

pytestmark = pytest.mark.xdist_group("browser")  # one for all tests

PLAN = hourly_plan()
EVIL = ["</script><script>hacked = 1</script>", "<img src=x onerror='hacked = 1'>", HOSTILE, "a" * 500, "$x {{y}}"]


@pytest.fixture(scope="module")
def browser():
    with running_browser() as found:
        yield found


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page of stories on the hourly plan; closes it, and looks at what it said and asked for."""
    pages = []

    def open_page(held=STORIES, text=None, **options):
        path = tmp_path / f"page-{len(pages)}.html"
        page = text or report_page(header_of(PLAN), reports_of(PLAN, held), datetime.UTC)
        path.write_text(page, encoding="utf-8")
        pages.append((WatchedPage(browser, path, **options), path))
        return pages[-1][0].wait() if text is None else pages[-1][0].page

    yield open_page
    for watched, path in pages:
        watched.context.close()
        assert watched.said == []
        assert watched.asked == [path.as_uri()]


def cards(page):
    """Heading -> names of the items below it, as they stand."""
    found = {}
    for card in page.locator(".card").all():
        heading = card.locator("h3").inner_text()
        found[heading] = card.locator("li button").all_inner_texts()
    return found


def rows(page):
    """The items of the picture from top to bottom, by its axis."""
    texts = page.locator("#picture .role-axis-label text").all()
    placed = [(text.bounding_box()["y"], text.text_content()) for text in texts]
    return [name for _, name in sorted(placed) if name in STORIES]


def test_a_window_is_compared_with_the_one_before_by_keyboard(opened):
    page = opened()
    assert "window 5 of 5" in page.locator("#when").inner_text()
    assert cards(page) == {"New (2)": ["third", "fourth"], "Gone (1)": ["second"]}
    assert "back" in page.locator(".card", has_text="New").inner_text()
    page.locator("#slider").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "window 3 of 5" in page.locator("#when").inner_text()
    assert cards(page) == {"New (1)": ["fourth"], "Falling (1)": ["first"], "As before (1)": ["second"]}
    assert page.locator("#changes").inner_text() == "3 items: 1 new, 0 rising, 1 falling, 1 as before; 0 gone."
    page.keyboard.press("ArrowLeft")
    assert cards(page) == {"New (1)": ["second"], "Rising (1)": ["first"]}
    assert "at least 500 users (before: at least 300 users)" in page.locator(".card", has_text="Rising").inner_text()
    page.keyboard.press("Home")
    assert cards(page) == {"Named (1)": ["first"]}
    assert page.locator("#earlier").is_disabled()
    assert page.locator("#slider").get_attribute("aria-valuetext") == page.locator("#when").inner_text()


def test_items_are_found_ordered_and_followed(opened):
    page = opened()
    assert rows(page) == ["first", "second", "fourth", "third"]
    page.select_option("#order", "name")
    page.wait_for_function("document.querySelector('#picture svg') !== null")
    page.wait_for_timeout(100)
    assert rows(page) == ["first", "fourth", "second", "third"]
    page.fill("#find", "IR")
    page.wait_for_timeout(400)
    assert rows(page) == ["first", "third"]
    assert page.locator("#rows").inner_text() == "2 found of 4 items"
    page.fill("#which", "second")
    page.wait_for_function("document.querySelector('#history').textContent.startsWith('second')")
    table = page.locator("#stretches tbody tr").all_inner_texts()
    assert [line.split("\t")[2] for line in table] == ["at least 90 users", "at least 60 users"]
    start = datetime.datetime.fromtimestamp(PLAN.schedule.start_seconds + 3600, datetime.UTC)
    assert table[1].startswith(f"{start:%Y-%m-%d %H:%M}")
    page.fill("#find", "nothing has this name")
    page.wait_for_selector("#picture p")
    assert page.locator("#picture").inner_text() == "No item of these windows has this in its name."


def test_a_click_into_the_picture_chooses_item_and_window(opened):
    page = opened()
    cell = page.locator("#picture .mark-rect.role-mark path").first
    label = cell.evaluate("path => path.__data__.datum.name")
    box = cell.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + box["height"] / 2)
    assert label in page.locator(".tip").inner_text()
    page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
    page.wait_for_function(f"document.querySelector('#history').textContent.startsWith('{label}')")
    window = min(STORIES[label])
    assert f"window {window + 1} of 5" in page.locator("#when").inner_text()


def test_labels_that_are_code_stay_text(opened):
    page = opened({label: {0: 10, 1: 20} for label in EVIL})
    shown = {shown_text(label) for label in EVIL}
    assert set(page.locator(".card li button").all_inner_texts()) == shown
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img").count() == 0
    drawn = set(page.locator("#picture .role-axis-label text").all_text_contents())
    assert {name for name in shown if len(name) < 30} <= drawn


def test_the_browser_obeys_the_policy(browser, tmp_path):
    """Twin of the tests that hear no word and see no request: here both are there."""
    path = tmp_path / "page.html"
    path.write_text(report_page(header_of(PLAN), reports_of(PLAN, STORIES), datetime.UTC))
    watched = WatchedPage(browser, path)
    page = watched.wait()
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "hacked = 1";
            const picture = document.createElement("img");
            picture.src = "missing.png";
            document.body.append(script, picture);
            setTimeout(() => new Function("hacked = 1")());
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("typeof hacked") == "undefined"
    for directive in ("inline script", "string as JavaScript", "Loading the image"):
        assert any("Content Security Policy" in each and directive in each for each in watched.said), directive
    watched.context.close()


def test_a_picture_is_saved_and_colours_follow_the_screen(opened):
    page = opened(color_scheme="light")
    colours = [page.locator("#picture .mark-rect.role-mark path").first.get_attribute("fill")]
    grounds = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    with page.expect_download() as saved:
        page.click("#save")
    svg = pathlib.Path(saved.value.path()).read_text()
    assert svg.startswith("<svg")
    assert "second" in svg
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(400)
    colours.append(page.locator("#picture .mark-rect.role-mark path").first.get_attribute("fill"))
    grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == len(set(grounds)) == 2


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (800, "light"), (1280, "light")])
def test_a_page_fits_its_window_and_all_controls_have_names(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.evaluate(
        """() => [...document.querySelectorAll("#picture svg text")]
            .filter((each) => each.getBoundingClientRect().right > innerWidth).map((each) => each.textContent)"""
    )
    assert cut == []
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, output")].filter((each) =>
            !(each.labels?.length || each.ariaLabel || each.textContent.trim() || each.tagName === "OUTPUT"))
            .map((each) => each.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("h1").count() == 1
    for picture in ("#picture", "#one-picture"):
        assert page.locator(picture).get_attribute("role") == "img"
        assert "below" in page.locator(picture).get_attribute("aria-label")
    if folder := os.environ.get("SHH_SCREENSHOTS"):
        page.screenshot(path=pathlib.Path(folder) / f"page-{width}-{scheme}.png", full_page=True)


@pytest.mark.nightly
def test_the_picture_of_the_docs(browser, tmp_path):
    """docs/page.png, the page of `make demo`, which is written anew into the folder SHH_SCREENSHOTS."""
    with python("-m", "examples.demos.demo", cwd=tmp_path, stdout=subprocess.PIPE) as demo:
        printed, _ = demo.communicate()
    page_file = tmp_path / "demo" / "looks.html"
    assert printed.splitlines()[-1] == f"Open {page_file} in a browser: it needs no network."
    watched = WatchedPage(browser, page_file, viewport={"width": 1100, "height": 1330})
    picture = pathlib.Path(os.environ.get("SHH_SCREENSHOTS", tmp_path)) / "page.png"
    watched.wait().screenshot(path=picture)
    shown = (pathlib.Path(__file__).parents[2] / "docs" / "page.png").read_bytes()
    assert picture.read_bytes()[:24] == shown[:24], "the picture of the docs has the same size"
    assert watched.said == []
    watched.context.close()


def test_ten_thousand_windows_stay_fluid(browser, tmp_path):
    """Far within what a person waits for, also on a machine that works on other tests."""
    plan, reports = many_windows()
    path = tmp_path / "many.html"
    path.write_text(report_page(header_of(plan), reports, datetime.UTC))
    begun = time.monotonic()
    watched = WatchedPage(browser, path)
    page = watched.wait()
    assert time.monotonic() - begun < 60
    step = page.evaluate(
        """() => {
            const slider = document.getElementById("slider"), times = [];
            for (const window of [10, 5000, 5001, 9000, 7]) {
                const begun = performance.now();
                slider.value = window;
                slider.dispatchEvent(new Event("input"));
                times.push(performance.now() - begun);
            }
            return Math.min(...times); // others may work on this machine meanwhile
        }"""
    )
    assert "window 8 of" in page.locator("#when").inner_text()
    print(f"a step of the slider: {step:.1f} ms")
    assert step < 300, "milliseconds for a step of the slider"
    assert page.locator("#picture svg path").count() < 20_000
    assert page.locator("#span").input_value() == "2592000000"
    assert "found of 8000 items" in page.locator("#rows").inner_text()
    page.select_option("#span", "0")
    page.wait_for_function("document.querySelector('#rows').textContent === '1 to 30 of 8000 items'")
    assert watched.said == []
    watched.context.close()


def test_the_page_writes_times_and_places_ticks_as_pictures_do(opened):
    begin = int(datetime.datetime(2026, 3, 27, tzinfo=datetime.UTC).timestamp())
    zones = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe")
    lengths = (5, 400, 7200, 5 * 3600, 86_400, 4 * 86_400, 20 * 86_400, 300 * 86_400, 1000 * 86_400)
    # Also from where the clock of Berlin is put forward.
    starts = (begin, begin + 2 * 86_400 + 1800)
    cases = [(zone, start, start + length) for zone in zones for length in lengths for start in starts]
    expected = []
    for zone, start, end in cases:
        local = zoneinfo.ZoneInfo(zone)
        at = [[micros // 1000, text] for micros, text in ticks(start * 10**6, end * 10**6, local)]
        expected.append([at, local_text(start * 10**6, local)])
    found = opened().evaluate(
        """(cases) => {
            const report = JSON.parse(document.getElementById("report").textContent);
            return cases.map(([zone, from, to]) => {
                const read = readReport({ ...report, zone });
                return [read.ticksOf(from * 1000, to * 1000, 9), read.writeTime(from * 1000)];
            });
        }""",
        cases,
    )
    assert found == expected


@pytest.mark.parametrize("plan", [short_looks_plan(), IN_DOMAIN], ids=["looks", "a known domain"])
def test_a_fact_sheet_is_one_printed_page(opened, plan):
    page = opened(text=fact_sheet(plan))
    assert plan.guarantee in page.locator("body").inner_text()
    assert plan.fingerprint in page.locator("body").inner_text()
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    assert page.locator("script").count() == 0
