"""The Chromium of this machine, for tests that look at pages. Nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium_path() -> str:
    """Of SHH_CHROMIUM or the path. Skips the test where there is none."""
    found = os.environ.get("SHH_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("this machine has no Chromium (Debian: apt-get install chromium)")
    return found


@contextlib.contextmanager
def running_browser() -> Iterator[Any]:
    """A headless Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is missing")
    path = chromium_path()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """A page that is open from a file or an address, and everything that it says or asks for.

    said: messages of its console and errors. asked: addresses of all requests.
    """

    def __init__(self, browser: Any, place: pathlib.Path | str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(place.as_uri() if isinstance(place, pathlib.Path) else place)

    def wait(self) -> Any:
        """The page once all of it is drawn."""
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        return self.page
