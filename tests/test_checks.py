"""Checks of arguments: what they let through, and how errors show a wrong value."""

import pytest

from dp_transforms.checks import check_names, exact, on_one_line, shown


def test_nothing_that_breaks_a_line_or_a_terminal_is_shown():
    for control in ("\n", "\r", "\x1b[2J", "\0", "\u2028", "\u202e", "\ud800"):
        for line in (on_one_line(f"be{control}fore"), shown(f"be{control}fore")):
            assert line.isprintable()
            assert "be" in line
            assert "fore" in line
    assert on_one_line("caf\u00e9 \u4e2d") == "caf\u00e9 \u4e2d", "what can be read stays as it is"
    assert on_one_line("x" * 1_000) == "x" * 1_000
    assert [on_one_line("x" * length, most=40) for length in (40, 41)] == ["x" * 40, "x" * 40 + "..."]
    assert shown("x" * 1_000) == "'" + "x" * 199 + "..."


@pytest.mark.parametrize("wrong", ["", "two\nlines", "\x1b[2J", 7, b"bytes", True])
def test_a_name_that_reports_cannot_carry_is_refused(wrong):
    check_names(stream="caf\u00e9 1", run_id=None)
    with pytest.raises(ValueError, match=r"^run_id must be printable text and not empty, got .*\.$") as caught:
        check_names(stream="events", run_id=wrong)
    assert str(caught.value).isprintable()


def test_a_budget_is_said_with_all_its_digits():
    values = {"1.2345642": 1.2345642, "2": 2.0, "1e-09": 1e-9, "1.0000004e-09": 1.0000004e-9}
    assert {exact(value): float(exact(value)) for value in values.values()} == values
