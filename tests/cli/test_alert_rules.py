"""The alert rules say what docs/deploy.md says to worry about, on a machine without Prometheus too."""

from __future__ import annotations

import collections
import math
import pathlib
import re
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="the extra yaml is not installed")

ROOT = pathlib.Path(__file__).parents[2]
MONITORING = ROOT / "runners" / "monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
MINUTES = {"m": 1, "h": 60, "d": 24 * 60}
CHANGE = re.compile(r"(?:increase|delta)\((\w+)\[(\w+)\]\)")
LATEST = re.compile(r"\b(shh_\w+|up)\b(?:\{[^}]*\})?(?!\")")
Lines = dict[str, tuple[float, float]]


def minutes(text: str) -> int:
    return int(text[:-1]) * MINUTES[text[-1]]


def series_by_labels(group: dict[str, Any]) -> dict[str, Lines]:
    """Of a group of alerts_test.yml: labels, then name, then the first value and what each minute adds."""
    found: dict[str, Lines] = collections.defaultdict(dict)
    for each in group["input_series"]:
        name, labels = each["series"].rstrip("}").split("{")
        first, added = re.fullmatch(r"(\d+)(?:\+(\d+))?x120", each["values"]).groups()  # type: ignore[union-attr]
        found[labels][name] = float(first), float(added or 0)
    return found


def holds(expression: str, lines: Lines, minute: int) -> bool:
    """What PromQL says of straight lines: `and` and `or` of comparisons, which nothing that is missing passes."""

    def latest(name: str) -> float:
        first, added = lines.get(name, (math.nan, math.nan))
        return first + added * minute

    def change(name: str, span: str) -> float:
        return lines.get(name, (math.nan, math.nan))[1] * min(minutes(span), minute)

    code = LATEST.sub(r'latest("\1")', CHANGE.sub(r'change("\1", "\2")', expression))
    return bool(eval(code, {"__builtins__": {}, "latest": latest, "change": change}))


def firing(group: dict[str, Any], minute: int) -> dict[str, int]:
    """For so many series each alert has held as long as it must."""
    found: collections.Counter[str] = collections.Counter()
    for lines in series_by_labels(group).values():
        for rule in RULES:
            since = minute - minutes(rule.get("for", "0m"))
            found[rule["alert"]] += all(holds(rule["expr"], lines, each) for each in range(since, minute + 1))
    return {name: count for name, count in found.items() if count}


def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    well, ill = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    assert firing(well, 119) == {}
    (asked,) = ill["promql_expr_test"]
    told = {re.fullmatch(r'\{alertname="(\w+)"\}', one["labels"])[1]: one["value"] for one in asked["exp_samples"]}  # type: ignore[index]
    assert firing(ill, 119) == told
    assert set(told) == {rule["alert"] for rule in RULES}


def test_there_is_a_rule_for_each_number_that_the_page_says_to_worry_about() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text().partition("## What to watch")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|[^|]*\| ([^|]*) \|$", page, re.MULTILINE)
    assert len(rows) > 15
    asked = " ".join(rule["expr"] for rule in RULES)
    for names, worry in rows:
        if worry != "never":
            assert any(re.search(rf"\bshh_{name}(_total)?\b", asked) for name in re.findall(r"`(\w+)`", names)), names
