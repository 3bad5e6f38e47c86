"""Many linear queries from one budget: the largest error against their number, beside one noisy answer for each."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.report import Figure, show_figures, show_table, write_results
from dp_transforms.accounting.composition import (
    optimal_composition_delta,
    smallest_safe_argument,
)
from dp_transforms.mechanisms.papers.multiplicative_weights import (
    OfflineMultiplicativeWeights,
    OnlineMultiplicativeWeights,
    offline_records_needed,
    online_records_needed,
)
from dp_transforms.mechanisms.papers.noise_source import Halted, SecretNoise
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.synthetic_data import SmallDatabase, small_database_records_needed
from dp_transforms.views.line_plot import line_plot_svg

_EPSILON, _DELTA = 1.0, 1e-6
_ATTRIBUTES, _RECORDS, _UPDATES = 9, 10_000, 20
_TINY_ATTRIBUTES, _TINY_RECORDS, _TINY_UPDATES, _TINY_SIZE = 4, 300, 4, 6
_PLOT = Path(__file__).parents[1] / "docs" / "linear_queries.svg"
_ADVANCED, _OPTIMAL = "Laplace, advanced composition", "Laplace, optimal composition"
_ONLINE, _OFFLINE, _UNIFORM = "online mult. weights", "offline mult. weights", "uniform, no data seen"
_SMALL = "small database"


@dataclasses.dataclass(frozen=True, eq=False)
class _Data:
    """Records with yes-or-no attributes, and as queries all conjunctions of attributes and negated attributes.

    updates: how many multiplicative weights may make; chosen on data of another seed.
    """

    histogram: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int8]  # [n_queries, 2^d]
    updates: int

    @classmethod
    def simulated(cls, attributes: int, records: int, updates: int, seed: int = 8) -> _Data:
        """Two kinds of records, which make all attributes depend on each other."""
        random = np.random.default_rng(seed)
        kinds = np.array([np.linspace(0.95, 0.7, attributes), np.linspace(0.8, 0.97, attributes)])
        bits = random.random((records, attributes)) < kinds[(random.random(records) < 0.3).astype(int)]
        histogram = np.bincount(bits @ (1 << np.arange(attributes)), minlength=1 << attributes)
        values = np.arange(1 << attributes)
        literals = [[np.ones_like(values), values >> i & 1, 1 - (values >> i & 1)] for i in range(attributes)]
        weights = np.array([np.prod(chosen, axis=0) for chosen in itertools.product(*literals)], dtype=np.int8)
        return cls(histogram, random.permutation(weights), updates)

    def first(self, queries: int) -> _Data:
        return dataclasses.replace(self, weights=self.weights[:queries])

    @property
    def records(self) -> int:
        return int(self.histogram.sum())

    def queries(self) -> list[LinearQuery]:
        return [LinearQuery(row) for row in self.weights]

    def answers(self) -> npt.NDArray[np.float64]:
        return (self.weights @ self.histogram) / self.records

    def largest_error(self, answers: npt.ArrayLike) -> float:
        return float(np.abs(np.clip(answers, 0, 1) - self.answers()).max())


_Method = Callable[[_Data], float]  # the largest error of all answers


def run(*, quick: bool = False) -> list[Figure]:
    rounds = 1 if quick else 5
    data = _Data.simulated(_ATTRIBUTES, _RECORDS, _UPDATES)
    numbers = [10, 100, 1000] if quick else [10, 30, 100, 300, 1000, 3000, 10_000, len(data.weights)]
    errors = _errors(data, numbers, _METHODS, rounds)
    title = f"Largest error of k answers: {_RECORDS:,} records, {1 << _ATTRIBUTES} values, ε = 1, δ = 1e-6"
    _show_errors(title, numbers, errors)
    tiny = _Data.simulated(_TINY_ATTRIBUTES, _TINY_RECORDS, _TINY_UPDATES)
    tiny_numbers = [10, len(tiny.weights)]
    tiny_errors = _errors(tiny, tiny_numbers, {**_METHODS, _SMALL: _small_database}, rounds)
    _show_errors(f"{_TINY_RECORDS:,} records, 16 values: where SmallDB fits", tiny_numbers, tiny_errors)
    figures = [*_gains(numbers, errors, quick), *_records_needed()]
    show_figures("Linear queries", figures)
    if not quick:
        series = {name: list(zip(map(float, numbers), line, strict=True)) for name, line in errors.items()}
        plot = line_plot_svg(title, "queries k", "largest error (share of the records)", series, log_x=True, log_y=True)
        _PLOT.write_text(plot, encoding="utf-8")
        tables = {"largest_error": errors, "tiny_queries": tiny_numbers, "tiny_largest_error": tiny_errors}
        write_results("linear_queries", figures, queries=numbers, **tables)
    return figures


def _errors(data: _Data, numbers: list[int], methods: dict[str, _Method], rounds: int) -> dict[str, list[float]]:
    """For each method and number of queries the median of the largest error."""
    return {
        name: [statistics.median(method(data.first(k)) for _ in range(rounds)) for k in numbers]
        for name, method in methods.items()
    }


# ---------------------------------------------------------------------------------------------------------------------
# The mechanisms, each at the whole budget. What they are told is public: records, universe, number of queries.
# ---------------------------------------------------------------------------------------------------------------------


def _optimal_epsilon(calls: int) -> float:
    """The largest epsilon for each of so many calls."""
    scale = smallest_safe_argument(
        lambda scale: optimal_composition_delta(1 / scale, calls, _EPSILON),
        _DELTA,
        guess=math.sqrt(2 * calls * math.log(1 / _DELTA)) / _EPSILON,
        lowest=1e-3,
        highest=2 * calls / _EPSILON,
    )
    return 1 / scale


def _advanced_epsilon(calls: int) -> float:
    """The same by the smaller of basic and advanced composition, ``calls x^2 / 2 + x sqrt(2 calls ln(1/delta))``."""
    log_inverse = math.log(1 / _DELTA)
    advanced = (math.sqrt(2 * log_inverse + 2 * _EPSILON) - math.sqrt(2 * log_inverse)) / math.sqrt(calls)
    return max(_EPSILON / calls, advanced)


def _laplace(data: _Data, epsilon_per_query: float) -> float:
    noise = SecretNoise().discrete_laplace_array(epsilon_per_query, len(data.weights))
    return data.largest_error(data.answers() + noise / data.records)


def _online(data: _Data) -> float:
    """With the threshold where the largest noise of all comparisons is expected. So few updates need no delta."""
    comparison_scale = 9 / 2 * data.updates / _EPSILON
    threshold = comparison_scale * math.log(2 * len(data.weights)) / data.records
    online = OnlineMultiplicativeWeights(
        data.histogram,
        records=data.records,
        epsilon=_EPSILON,
        accuracy=min(0.99, threshold * 4 / 3),
        updates=data.updates,
    )
    answers = []
    for query in data.queries():
        try:
            answers.append(online.ask(query).share)
        except Halted:
            answers.append(online.synthetic.answer(query))
    return data.largest_error(answers)


def _offline(data: _Data) -> float:
    """Stops when an error is about as large as the noise that it is measured with."""
    epsilon_per_call = _optimal_epsilon(2 * data.updates)
    synthetic = OfflineMultiplicativeWeights(
        data.histogram,
        data.queries(),
        records=data.records,
        epsilon_per_call=epsilon_per_call,
        accuracy=min(0.99, 2 / (epsilon_per_call * data.records)),
        updates=data.updates,
    ).release()
    return data.largest_error(data.weights @ synthetic.shares)


def _small_database(data: _Data) -> float:
    small = SmallDatabase(
        data.histogram, data.queries(), records=data.records, size=_TINY_SIZE, epsilon=_EPSILON
    ).release()
    return data.largest_error(data.weights @ small.shares)


_METHODS: dict[str, _Method] = {
    _ADVANCED: lambda data: _laplace(data, _advanced_epsilon(len(data.weights))),
    _OPTIMAL: lambda data: _laplace(data, _optimal_epsilon(len(data.weights))),
    _ONLINE: _online,
    _OFFLINE: _offline,
    _UNIFORM: lambda data: data.largest_error(data.weights.mean(axis=1)),
}


# ---------------------------------------------------------------------------------------------------------------------
# What is reported
# ---------------------------------------------------------------------------------------------------------------------


def _gains(numbers: list[int], errors: dict[str, list[float]], quick: bool) -> list[Figure]:
    figures = []
    for name in (_ONLINE, _OFFLINE):
        target = None if quick else ("<=", 0.5)
        note = f"{errors[name][-1]:.3f} / {errors[_OPTIMAL][-1]:.3f} at {numbers[-1]:,} queries"
        figures.append(Figure(f"Error, {name} / Laplace", errors[name][-1] / errors[_OPTIMAL][-1], "", target, note))
    return figures


def _records_needed() -> list[Figure]:
    """The theorems with their constants: all of k queries within 0.1, except with probability 0.05."""
    figures = []
    for queries in (100, 10_000, 1_000_000):
        common = {"accuracy": 0.1, "beta": 0.05, "universe": 1 << _ATTRIBUTES, "queries": queries}
        online = online_records_needed(epsilon=_EPSILON, delta=_DELTA, **common)
        updates = math.floor(2 * math.log(1 << _ATTRIBUTES) / 0.01) + 1
        offline = offline_records_needed(epsilon_per_call=_optimal_epsilon(2 * updates), **common)
        small, size = small_database_records_needed(epsilon=_EPSILON, **common)
        laplace = math.log(queries / 0.05) / _optimal_epsilon(queries) / 0.1
        text = f"for error 0.1, {queries:,} queries"
        figures += [
            Figure(f"Records needed {text}: Laplace", laplace),
            Figure("  online multiplicative weights", online),
            Figure("  offline multiplicative weights", offline),
            Figure("  small database", small, note=f"of {size:,} records: far too many candidates to be run"),
        ]
    return figures


def _show_errors(title: str, numbers: list[int], errors: dict[str, list[float]]) -> None:
    rows = [(name, *(f"{error:.3f}" for error in line)) for name, line in errors.items()]
    show_table(title, ("", *(f"k = {number:,}" for number in numbers)), rows)
