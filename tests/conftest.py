"""What holds for all tests: a slow machine fails none, and commands print no colours that the shell asks for."""

from __future__ import annotations

import collections
import functools
import gc
import os
import signal
import sys
import uuid
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.chosen_cases import marks_of_case
from tests.helpers.named_randomness import IS_FRESH, RANDOMNESS
from tests.helpers.process_state import logs_as_before
from tests.helpers.s3_server import S3Server, environment, make_bucket, s3_server

NIGHTLY = ("ledger",)  # folders whose long tests are all nightly
WHOLE = ("conformance", "engines", "fuzz", "transcripts")  # suites that say themselves which cases are long
QUICK = ("tests", "unit", "ledger")  # folders with tests whose cases take a tenth of a second on average

settings.register_profile("shh", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not IS_FRESH)
settings.load_profile("shh")
if not IS_FRESH:
    RANDOMNESS.install()


def pytest_sessionstart() -> None:
    """mutmut forks a process for each mutant from one that has run the tests. What functions remember from there would
    hide the mutant: the changed code would not run."""
    if os.environ.get("MUTANT_UNDER_TEST"):
        gc.unfreeze()  # what `pytest_collection_finish` froze in the process that forked
        for function in gc.get_objects():
            if isinstance(function, functools._lru_cache_wrapper):
                function.cache_clear()


@pytest.hookimpl(tryfirst=True)  # before what is long is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs when (`chosen_cases`). Tests that wait for seconds come first, beside others that work: at the end they
    would wait alone."""
    cases: dict[str, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        if item.path.parent.name in NIGHTLY and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.nightly)
        test, has_cases, _ = item.nodeid.partition("[")
        if has_cases and item.path.parent.name not in WHOLE:
            cases[test].append(item)
    for of_test in cases.values():
        for place, item in enumerate(of_test):
            is_quick = item.path.parent.name in QUICK and not item.get_closest_marker("long")
            for mark in marks_of_case(place, len(of_test), is_quick=is_quick):
                item.add_marker(mark)
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: nobody looks through millions of objects again and again whether they do.

    Nor does Beam look at the same functions for each pipeline.
    """
    gc.collect()
    gc.freeze()
    if "apache_beam" in sys.modules:
        from tests.helpers import quick_beam

        quick_beam.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    file, _, name = item.location  # xdist adds groups to the node id
    with logs_as_before(), RANDOMNESS.of(f"{file} {name}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What several tests share does not depend on which of them comes first."""
    with RANDOMNESS.of(f"{fixturedef.baseid} {fixturedef.argname} {request.node.nodeid}"):
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def _no_colours_of_the_shell() -> Iterator[None]:
    """rich takes a pipe for a terminal where one of these is set, also in the processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_is_heard() -> Iterator[None]:
    """A shell starts what runs in its background without SIGINT, and so does every process that such a test starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    """One server for all tests of this process that ask for a bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server, which boto3 finds by the environment."""
    for name, value in environment(s3_process).items():
        monkeypatch.setenv(name, value)
    s3_process.reset()
    return s3_process


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """The URL of a new bucket on it."""
    return make_bucket(s3, f"test-{uuid.uuid4().hex}")
