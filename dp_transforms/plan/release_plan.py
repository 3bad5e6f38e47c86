"""The release plan: a privacy budget turned into the plain numbers that the mechanisms run on.

Guarantee: a run that follows a plan is (epsilon, delta)-DP for adding or removing one user with all of its events, over
the whole declared schedule; with a known domain, provided the list of items is public and was not made from the log. A
plan that breaks the first part cannot be built: construction checks it again. Every rounding goes toward more noise.

`ReleasePlan` is what all plans share, and the way to make and read one. `HitsPlan` and `LooksPlan` are the two
kinds; each is in a module of its name.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from dp_transforms.checks import exact, is_whole, shown
from dp_transforms.html_tables import html_table
from dp_transforms.plan.plan_checks import as_float, check_budget, check_declared_ids
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule, format_utc

FORMAT_VERSION = 3
_WRITE_ONE = "Write one with `shh plan --output`."
DEFAULT_MODE = "looks"
DEFAULT_MAX_USERS = 10**8
DEFAULT_MAX_ITEMS = 10**9
# Module and name of the class of plans for each mode. They import this module, so they are looked up by name.
_CHARGING = ("hits_plan", "HitsPlan")
_CLASS_OF = {
    "hits": _CHARGING,
    "hits-with-counts": _CHARGING,
    "kms21": _CHARGING,
    "looks": ("looks_plan", "LooksPlan"),
}
MODES = tuple(_CLASS_OF)
_Plan = TypeVar("_Plan", bound="ReleasePlan")


@runtime_checkable
class KnownDomain(Protocol):
    """What a plan needs of an `ItemDomain`: the number of its items, and the hash of the list."""

    @property
    def size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...


class _DeclaredDomain(NamedTuple):
    size: int
    fingerprint: str


class Budget(NamedTuple):
    """What every plan is calibrated for; already checked. Names as in `ReleasePlan.calibrate`."""

    epsilon: float
    delta: float
    schedule: WindowSchedule
    domain: KnownDomain | None
    max_users: int
    max_items: int

    @property
    def domain_size(self) -> int:
        return 0 if self.domain is None else self.domain.size

    def fields(self) -> dict[str, Any]:
        """The fields of a plan that are declared, and not found."""
        declared = self._asdict()
        domain = declared.pop("domain")
        return {
            **declared,
            "domain_size": self.domain_size,
            "domain_fingerprint": "" if domain is None else domain.fingerprint,
        }


class ReleasePlan(abc.ABC):
    """One calibrated run: what is promised, and the numbers that keep the promise. Build it with `calibrate`.

    epsilon, delta: the guarantee for one user over the whole schedule.
    schedule: the declared windows; its horizon is the number of windows that may be published.
    release: the mode, one of `MODES`.
    threshold: noisy sums of at least this are reported; what is summed, the kind of plan says.
    domain_size, domain_fingerprint: of a known domain, the public list of all items; 0 and "" in an open domain.
    max_users, max_items: declared bounds on distinct ids, for hash collisions; never measured.
    delta_open, delta_sampling, delta_hash: shares of delta, for items with one holder alone (0 in a known domain), for
        the distance of the sampled noise from the exact law, and for collisions of keyed hashes. What is left pays for
        what is published; the kind of plan names it.
    """

    epsilon: float
    delta: float
    schedule: WindowSchedule
    mode: str
    threshold: int
    domain_size: int
    domain_fingerprint: str
    max_users: int
    max_items: int
    delta_open: float
    delta_sampling: float
    delta_hash: float

    DEFAULT_MODE: ClassVar[str] = DEFAULT_MODE  # of `calibrate`
    CHOICES: ClassVar[frozenset[str]]  # arguments of `calibrate` beside those of every plan
    FLOATS: ClassVar[tuple[str, ...]]  # the fields that are floats
    find: ClassVar[Callable[..., dict[str, Any]]]  # the fields of the plan of `calibrate`: of a mode and a budget

    def __init_subclass__(cls) -> None:
        cls.CHOICES = frozenset(cls.find.__kwdefaults__ or ())
        cls.FLOATS = tuple(name for name, kind in cls.__annotations__.items() if kind == "float")

    def _make_floats(self) -> None:
        for name in self.FLOATS:
            object.__setattr__(self, name, as_float(name, getattr(self, name)))

    @classmethod
    def calibrate(
        cls: type[_Plan],
        *,
        epsilon: float,
        delta: float,
        schedule: WindowSchedule,
        mode: str | None = None,
        domain: KnownDomain | None = None,
        max_users: int = DEFAULT_MAX_USERS,
        max_items: int = DEFAULT_MAX_ITEMS,
        hits_per_user: int | None = None,
        max_items_per_user: int | None = None,
        threshold: int | None = None,
        accountant: str | None = None,
        usual_looks: tuple[int, int] | None = None,
        most_looks: int | None = None,
        known_items: bool | None = None,
        forget_after: int | None = None,
        known_error: float | None = None,
        size_error: float | None = None,
        counts_for: int | None = None,
        activity_epsilon: float | None = None,
    ) -> _Plan:
        """The plan that finds most for this budget: a `HitsPlan`, or a `LooksPlan` for mode ``looks``.

        mode defaults to looks; of a `HitsPlan` to hits. domain: the public list of all items, an `ItemDomain`;
        None for an open one. None stands for the default of the mode everywhere else.

        For hits, hits-with-counts and kms21:

        hits_per_user: 3 in hits, 10 in hits-with-counts, 20 in kms21 by default. max_items_per_user: 3 by default.
        threshold defaults to the smallest safe one. A smaller one raises a ValueError that names the smallest; a larger
        one leaves more of delta to the noise. In a known domain every threshold is safe, and the default is the
        smallest at which the whole run is expected to publish at most 0.05 items that nobody holds. accountant defaults
        to the tightest one.

        For looks:

        usual_looks: most users have between so many pairs (window, item) in the whole run, by default (1, 1000), or up
        to most_looks if that is less. The noise is chosen for them; other users are served too. most_looks: a user's
        further pairs do not count, 3,000 by default. known_items: items that were named are followed down to a lower
        threshold, by default True. forget_after: until they were not named for so many windows, 168 by default.
        known_error: the probability with which noise alone names a known item in a window, 1e-5 by default; in a known
        domain as small as 0.05 false names in the whole run need. size_error: the probability that any size that the
        run states is too large, 0.01 by default. counts_for: so many of the largest named items of a window have a
        noisy count of their users, 0 by default. Users pay for counts out of the same purse, so less is named.
        Replays alone. activity_epsilon: what a noisy histogram of the same users' activity took beforehand, which the
        usual looks are from (`shh plan --from-log`); in addition to epsilon, 0 by default.

        Raises ValueError for an argument of another mode, and if the budget is too small for any noise that can
        be sampled.
        """
        mode = cls.DEFAULT_MODE if mode is None else mode
        kind = plan_class(mode)
        if not issubclass(kind, cls):
            raise ValueError(f"mode must be one of a {cls.__name__}, got {mode!r}. Use ReleasePlan.calibrate.")
        arguments = {
            "hits_per_user": hits_per_user,
            "max_items_per_user": max_items_per_user,
            "threshold": threshold,
            "accountant": accountant,
            "usual_looks": usual_looks,
            "most_looks": most_looks,
            "known_items": known_items,
            "forget_after": forget_after,
            "known_error": known_error,
            "size_error": size_error,
            "counts_for": counts_for,
            "activity_epsilon": activity_epsilon,
        }
        choices = {name: value for name, value in arguments.items() if value is not None}
        for name in choices:
            if name not in kind.CHOICES:
                others = ", ".join(other for other in MODES if name in plan_class(other).CHOICES)
                raise ValueError(f"{name} cannot be used with mode {mode!r}: it belongs to {others}. Leave it out.")
        epsilon, delta = as_float("epsilon", epsilon), as_float("delta", delta)
        check_budget(epsilon, delta, schedule)
        check_declared_ids(max_users, max_items)
        if domain is not None and not isinstance(domain, KnownDomain):
            raise ValueError(f"domain must be an ItemDomain, got a {type(domain).__name__}. Use ItemDomain.read(path).")
        budget = Budget(epsilon, delta, schedule, domain, max_users, max_items)
        plan: _Plan = cast(Any, kind)(**kind.find(mode, budget, **choices))
        return plan

    @property
    @abc.abstractmethod
    def expected_false_reports(self) -> float:
        """How many items that nobody holds the run publishes on average; rounded up. 0 in an open domain."""

    @abc.abstractmethod
    def smallest_detectable(self, probability: float = 0.95) -> int:
        """The smallest number of users from which an item is reported in a window with at least this probability."""

    @property
    def known_for(self) -> int:
        """For so many windows an item is known after it was named; 0 where known items are not followed."""
        return 0

    @property
    def pays_at_the_end(self) -> bool:
        """Whether users pay for something only when all windows are answered: such a run has one part."""
        return False

    @property
    def domain(self) -> KnownDomain | None:
        """The domain as far as the plan knows it; None for an open one."""
        return _DeclaredDomain(self.domain_size, self.domain_fingerprint) if self.domain_size else None

    @property
    def guarantee(self) -> str:
        """One sentence: what the plan promises, and for a known domain on which condition."""
        condition = ", provided the list of items is public and was not made from the log" if self.domain_size else ""
        return (
            f"Everything published is ({exact(self.epsilon)}, {exact(self.delta)})-differentially private for adding or"
            f" removing one user with all of its events, over the whole run of {self.schedule.horizon:,} windows"
            f"{condition}."
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the canonical JSON: equal for equal plans only."""
        return _fingerprint_of(self._fields(), self.FLOATS)

    def _repr_html_(self) -> str:
        """For notebooks: what the plan promises, and its numbers. Lists have many; the JSON has them all."""
        schedule = self.schedule
        declared = [
            ("start", format_utc(schedule.start_seconds * MICROS_PER_SECOND)),
            ("end", format_utc(schedule.end_seconds * MICROS_PER_SECOND)),
            ("window", f"{schedule.window_seconds:,} s"),
            ("slide", f"{schedule.slide_seconds:,} s"),
        ]
        rows = [(name, value) for name, value in self._fields().items() if not isinstance(value, (tuple, dict))]
        return html_table(self.guarantee, (), [*declared, *rows])

    def to_json(self) -> str:
        """The plan as JSON text, with a format version and its fingerprint; `from_json` reads it back.

        One line a field, and one each for the parts of an object. A list has one line.
        """
        whole = {"format_version": FORMAT_VERSION, **self._fields(), "fingerprint": self.fingerprint}
        return "{\n" + ",\n".join(f"  {json.dumps(name)}: {_written(value)}" for name, value in whole.items()) + "\n}"

    def _fields(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _field_names(type(self))}
        return {**fields, "schedule": dataclasses.asdict(self.schedule)}

    @classmethod
    def from_json(cls: type[_Plan], text: str | bytes) -> _Plan:
        """Reads `to_json` text and checks all of it again, the accountant included. Raises ValueError.

        A file is hostile input: an error shows one line and little. The fingerprint finds changes that were made by
        accident, in an editor or on the way. It is not a signature: anybody can compute it again, and so change
        anything that the other checks let pass.
        """
        fields = _parse(text)
        version = fields.pop("format_version", None)
        if not is_whole(version) or version != FORMAT_VERSION:
            raise ValueError(f"the plan must have format_version {FORMAT_VERSION}. {_WRITE_ONE}")
        kind = plan_class(fields.get("mode"))
        wrong = set(fields) ^ {"fingerprint", *_field_names(kind)}
        if wrong:
            shown_names = shown(", ".join(sorted(wrong)))[1:-1]
            raise ValueError(f"the plan has missing or unknown fields: {shown_names}. {_WRITE_ONE}")
        if fields.pop("fingerprint") != _fingerprint_of(fields, kind.FLOATS):
            raise ValueError(f"the plan was changed after `shh plan` wrote it: the fingerprint is wrong. {_WRITE_ONE}")
        try:
            schedule = WindowSchedule(**fields.pop("schedule"))
        except TypeError:
            raise ValueError("the schedule of the plan has missing or unknown fields.") from None
        plan: ReleasePlan = cast(Any, kind)(schedule=schedule, **fields)
        if not isinstance(plan, cls):
            raise ValueError(f"the plan is a {kind.__name__}, not a {cls.__name__}. Use ReleasePlan.from_json.")
        return plan

    def again(self, mode: str | None = None, **choices: Any) -> ReleasePlan | None:
        """A plan of the same budget, schedule, domain and bounds on ids: in another mode, or with other choices.

        Names as in `calibrate`. None if the budget is too small for it.
        """
        try:
            return ReleasePlan.calibrate(
                epsilon=self.epsilon,
                delta=self.delta,
                schedule=self.schedule,
                mode=mode or self.mode,
                domain=self.domain,
                max_users=self.max_users,
                max_items=self.max_items,
                **choices,
            )
        except ValueError:
            return None


def plan_class(mode: object) -> type[ReleasePlan]:
    """The class of the plans of a mode. Raises ValueError for another name."""
    if not isinstance(mode, str) or mode not in _CLASS_OF:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {shown(mode)}.")
    module, name = _CLASS_OF[mode]
    found: type[ReleasePlan] = getattr(importlib.import_module(f"dp_transforms.plan.{module}"), name)
    return found


def _field_names(kind: type[ReleasePlan]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]


def _written(value: Any) -> str:
    indent = 2 if isinstance(value, dict) else None
    return json.dumps(value, indent=indent, allow_nan=False).replace("\n", "\n  ")


def _fingerprint_of(fields: dict[str, Any], floats: Iterable[str]) -> str:
    """Hex SHA-256 of the canonical JSON of a plan's fields: equal for equal plans only."""
    as_floats = {name: as_float(name, fields[name]) for name in floats}
    canonical = {"format_version": FORMAT_VERSION, **fields, **as_floats}
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object, without what the standard parser lets pass: fields named twice, NaN, infinities."""
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except _RefusedJsonError as error:
        raise ValueError(f"the plan {error}. {_WRITE_ONE}") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"the plan is not JSON text as `shh plan` writes it. {_WRITE_ONE}")
    return fields


class _RefusedJsonError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise _RefusedJsonError(f"has the field {shown(twice)} twice")
    return fields


def _refuse(name: str) -> Any:
    raise _RefusedJsonError("contains NaN or an infinity")
