"""An engine that dies between any two steps, and whatever a pipeline is made of runs on it.

It walks the graph of a pipeline, and does to its DoFns what Flink does at its worst: it delivers messages to a step
with state in any order, and gives bags back in any order, and twice what a step carries on, dies between any two
bundles, goes back to the newest snapshot that is complete, with or without the process, and calls finalizers when a
snapshot is complete, also those of bundles that ended behind it. What has reached the end stays there.

It knows ParDo, with state, timers and bundle finalizers, Impulse and Flatten; a grouping it refuses.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.pipeline import PipelineVisitor
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.windowed_value import WindowedValue

from tests.helpers.do_fn_state import Bag, Cell, Timer

Key = tuple[str, Any]  # label of a step, key of its state


@dataclasses.dataclass
class Step:
    """A ParDo. outputs: its PCollections, by tag; None is the main one. more: arguments of `process`."""

    label: str
    original: beam.DoFn
    more: dict[str, Any]
    outputs: dict[str | None, Any]
    do_fn: beam.DoFn | None = None

    def start(self) -> None:
        """As a new process does."""
        self.do_fn = copy.deepcopy(self.original)
        self.do_fn.setup()

    @property
    def has_state(self) -> bool:
        return any(isinstance(default, _STATE | _TIMER) for default in defaults_of(self.original.process).values())


_STATE = type(beam.DoFn.StateParam(BagStateSpec("any", beam.coders.BytesCoder())))
_TIMER = beam.DoFn.TimerParam


def defaults_of(method: Callable[..., Any]) -> dict[str, Any]:
    return _defaults_of(getattr(method, "__func__", method))


@functools.cache
def _defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters.items()
    return {name: parameter.default for name, parameter in found if parameter.default is not parameter.empty}


class Graph(PipelineVisitor):
    """steps: by label. readers: of each PCollection. begin: what an Impulse makes."""

    def __init__(self, pipeline: beam.Pipeline) -> None:
        self.steps: dict[str, Step] = {}
        self.begin: list[Any] = []
        self._readers: dict[Any, list[Step]] = {}
        self._joined: dict[Any, list[Any]] = {}
        pipeline.visit(self)

    def visit_transform(self, applied: Any) -> None:
        transform, outputs = applied.transform, applied.outputs
        if isinstance(transform, beam.ParDo):
            assert not applied.side_inputs
            names = [*inspect.signature(transform.fn.process).parameters][1:]
            more = {**transform.kwargs, **dict(zip(names, transform.args, strict=False))}
            step = Step(applied.full_label, transform.fn, more, dict(outputs))
            self.steps[step.label] = step
            self._readers.setdefault(applied.inputs[0], []).append(step)
        elif isinstance(transform, beam.Impulse):
            self.begin += outputs.values()
        elif isinstance(transform, beam.Flatten):
            for joined in applied.inputs:
                self._joined.setdefault(joined, []).extend(outputs.values())
        else:
            raise AssertionError(f"this engine does not know {applied.full_label}")

    def readers_of(self, collection: Any) -> Iterator[Step]:
        yield from self._readers.get(collection, [])
        for joined in self._joined.get(collection, []):
            yield from self.readers_of(joined)


class InAnyOrder(Bag):
    def read(self) -> Iterator[Any]:
        return iter(random.Random(len(self.content)).sample(self.content, len(self.content)))


class TwiceInAnyOrder(InAnyOrder):
    def add(self, value: Any) -> None:
        self.content += [value, value]


class Ends:
    """A restriction that is claimed once."""

    start = 0

    def current_restriction(self) -> Ends:
        return self

    def try_claim(self, position: int) -> bool:
        return True

    def defer_remainder(self, delay: Any) -> None:
        return


@dataclasses.dataclass
class Held:
    """All that a snapshot holds: states with their timers, and messages under way. told: by the test, beside them."""

    states: dict[Key, dict[str, Any]]
    messages: list[tuple[str, Any]]
    told: dict[Any, Any]

    def copied(self) -> Held:
        """Values may be in both: nobody changes one."""
        states = {key: {name: _copied(held) for name, held in named.items()} for key, named in self.states.items()}
        return Held(states, [*self.messages], {**self.told})


def _copied(held: Any) -> Any:
    found = copy.copy(held)
    if isinstance(found, Bag):
        found.content = [*found.content]
    return found


class DyingEngine:
    """see: is called with each output of a step: label, tag, value and what is held. It may keep things in `told`."""

    def __init__(
        self,
        pipeline: beam.Pipeline,
        source: random.Random,
        *,
        see: Callable[[str, str | None, Any, dict[Any, Any]], None],
        new_process: Callable[[], None],
        pass_time: Callable[[], None],
    ) -> None:
        self._graph, self._source, self._see = Graph(pipeline), source, see
        self._new_process, self._pass_time = new_process, pass_time
        self._held, self._finalizers, self.deaths = Held({}, [], {}), [], 0
        self._callbacks: dict[Key, Callable[..., Any]] = {}  # of timers, by step and name
        self._start()
        for collection in self._graph.begin:
            self._send(collection, b"")
        self._complete, self._taken = self._held.copied(), None

    def _start(self, *, is_new_process: bool = True) -> None:
        if is_new_process:
            self._new_process()
        for step in self._graph.steps.values():
            step.start()

    # --- one bundle

    def _send(self, collection: Any, value: Any) -> None:
        """Steps without state are fused with what is before them."""
        for step in self._graph.readers_of(collection):
            if step.has_state:
                self._held.messages.append((step.label, value))
            else:
                self._bundle(step, lambda step=step: self._process(step, None, value))

    def _bundle(self, step: Step, run: Callable[[], Iterable[Any] | None]) -> None:
        for outputs in (step.do_fn.start_bundle, run, step.do_fn.finish_bundle):
            for output in outputs() or ():
                tag = output.tag if isinstance(output, beam.pvalue.TaggedOutput) else None
                value = output.value if tag is not None else output
                value = value.value if isinstance(value, TimestampedValue | WindowedValue) else value
                self._see(step.label, tag, value, self._held.told)
                main = None if None in step.outputs else next(iter(step.outputs))
                self._send(step.outputs[tag if tag is not None else main], value)

    def _process(self, step: Step, key: Any, element: Any) -> Iterable[Any] | None:
        return self._call(step, step.do_fn.process, key, element, **step.more)

    def _call(self, step: Step, method: Callable[..., Any], key: Any, *given: Any, **more: Any) -> Iterable[Any] | None:
        defaults = defaults_of(method)
        arguments = {name: self._argument(step, default, key) for name, default in defaults.items() if name not in more}
        return method(*given, **more, **{name: value for name, value in arguments.items() if value is not _UNKNOWN})

    def waiting(self) -> int:
        """How many states have messages that wait for the turn of their window."""
        found = [(name, cell) for state in self._held.states.values() for name, cell in state.items()]
        waiting = [bool(cell.content) for name, cell in found if name.startswith("pending")]
        assert waiting, "no state has these names"
        return sum(waiting)

    def _argument(self, step: Step, default: Any, key: Any) -> Any:
        if isinstance(default, _STATE):
            name, is_bag = default.state_spec.name, isinstance(default.state_spec, BagStateSpec)
            kind = Cell if not is_bag else TwiceInAnyOrder if name == "cells" else InAnyOrder
            return self._state(step, key, name, kind)
        if isinstance(default, _TIMER):
            self._callbacks[step.label, default.timer_spec.name] = default.timer_spec._attached_callback
            return self._state(step, key, default.timer_spec.name, Timer)
        if default is beam.DoFn.BundleFinalizerParam:
            return self
        if default is beam.DoFn.KeyParam:
            return key
        if isinstance(getattr(default, "restriction_provider", None), RestrictionProvider):
            return Ends()
        return _UNKNOWN

    def _state(self, step: Step, key: Any, name: str, kind: type) -> Any:
        return self._held.states.setdefault((step.label, key), {}).setdefault(name, kind())

    def register(self, finalizer: Callable[[], None]) -> None:
        """As a bundle finalizer."""
        self._finalizers.append(finalizer)

    # --- what happens to it

    def _deliver(self) -> None:
        messages = self._held.messages
        if not messages:
            self._fire()
            return
        label, element = messages.pop(self._source.randrange(len(messages)))
        step = self._graph.steps[label]
        self._bundle(step, lambda: self._process(step, element[0], element))

    def _fire(self) -> None:
        timers = self._timers()
        if not timers:
            return
        label, key, name = self._source.choice(timers)
        step = self._graph.steps[label]
        self._held.states[label, key][name].at = None
        bound = self._callbacks[label, name].__get__(step.do_fn)
        self._bundle(step, lambda: self._call(step, bound, key))

    def _timers(self) -> list[tuple[str, Any, str]]:
        return [
            (label, key, name)
            for (label, key), state in self._held.states.items()
            for name, held in state.items()
            if isinstance(held, Timer) and held.at is not None
        ]

    def _checkpoint(self) -> None:
        """Takes a snapshot, or completes the one that was taken."""
        if self._taken is None:
            self._taken = self._held.copied()
            return
        self._complete, self._taken = self._taken, None
        called, self._finalizers = self._finalizers, []
        for confirmed in called:
            confirmed()

    def _die(self) -> None:
        self.deaths += 1
        self._held, self._taken, self._finalizers = self._complete.copied(), None, []
        self._start(is_new_process=self._source.random() < 0.5)  # else the process lives, and its DoFns are new

    def run(self, most_deaths: int = 12) -> None:
        actions = (self._deliver, self._fire, self._checkpoint, self._die, self._pass_time)
        for _ in range(60_000):
            weights = (60, 20, 5, 3 if self.deaths <= most_deaths else 0, 6)
            (action,) = self._source.choices(actions, weights)
            action()
            if not self._held.messages and not self._timers():
                if self._source.random() < 0.5 or self.deaths > most_deaths:
                    return
                self._die()  # what was written must be what comes again
        raise AssertionError("the run did not end")


_UNKNOWN = object()
