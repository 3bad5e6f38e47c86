"""What holds for all tests: a slow machine fails none, and commands print no colours that the shell asks for."""

from __future__ import annotations

import gc
import signal
import uuid
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import apache_beam as beam
import objsize
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import core, userstate
from hypothesis import HealthCheck, settings

from tests.helpers.s3_server import S3Server, environment, make_bucket, s3_server
from tests.helpers.shh_here import logs_as_before

# Beam weighs each state that it keeps, and first looks through what all modules hold: here there are thousands.
objsize.default_settings.update(exclude_modules_globals=False)


def _remember_what_beam_looks_up_at_each_step() -> None:
    """The states of a class of DoFns, and the arguments of its methods, from their signatures; and one group of a
    pipeline's options, by a parser that is made anew: almost half of what a small pipeline costs."""
    find, view_as, views = userstate.get_dofn_specs, PipelineOptions.view_as, weakref.WeakKeyDictionary[Any, Any]()
    ask = core.get_function_arguments
    of_class: dict[type, Any] = {}
    of_method: dict[tuple[type, str], Any] = {}

    def found(do_fn: beam.DoFn) -> Any:
        kind = type(do_fn)
        if not kind.__module__.startswith("dp_transforms."):  # a class of Beam may stand for many
            return find(do_fn)
        if kind not in of_class:
            of_class[kind] = find(do_fn)
        return of_class[kind]

    def asked(do_fn: Any, method: str) -> Any:
        kind = type(do_fn)
        if method in getattr(do_fn, "__dict__", ()) or hasattr(kind, f"_inspect_{method}"):  # of this one alone
            return ask(do_fn, method)
        if (kind, method) not in of_method:
            of_method[kind, method] = ask(do_fn, method)
        names, defaults = of_method[kind, method]
        return [*names], [*defaults]

    def seen(options: PipelineOptions, group: type) -> Any:
        known = views.setdefault(options, {})
        if group not in known:
            known[group] = view_as(options, group)
        return known[group]

    userstate.get_dofn_specs, core.get_function_arguments, PipelineOptions.view_as = found, asked, seen


_remember_what_beam_looks_up_at_each_step()

# A test says how many examples it takes only where each of them is dear.
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("shh", deadline=None, suppress_health_check=_CHECKS, derandomize=True, max_examples=50)
settings.register_profile("fresh", settings.get_profile("shh"), derandomize=False, max_examples=300)  # of the night
settings.load_profile("shh")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for seconds come first, one after the other in one process: the others have the cores then. At
    the end they would wait alone, and in several processes at once nobody would work. Those that share what is made
    once for a module share a process, too: else each process would make it."""
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        if item.get_closest_marker("waits"):
            item.add_marker(pytest.mark.xdist_group("waits"))
        elif isinstance(item, pytest.Function) and _is_for_a_module(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def _is_for_a_module(item: pytest.Function) -> bool:
    fixtures = (found[-1] for found in item._fixtureinfo.name2fixturedefs.values())
    return any(fixture.scope == "module" for fixture in fixtures)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: nobody looks through millions of objects again and again whether they do."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    with logs_as_before():
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
    """A real S3 server, which obstore finds by the environment."""
    for name, value in environment(s3_process).items():
        monkeypatch.setenv(name, value)
    s3_process.reset()
    return s3_process


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """The URL of a new bucket on it."""
    return make_bucket(s3, f"test-{uuid.uuid4().hex}")
