"""Checks of arguments: what they let through, and how errors show a wrong value."""

import pytest

from dp_transforms.checks import check_names, exact, on_one_line, shown


@pytest.mark.parametrize("control", ["\n", "\r", "\x1b[2J", "\0", "\u2028", "\u202e", "\ud800"])
def test_nothing_that_breaks_a_line_or_a_terminal_is_shown(control):
    text = f"be{control}fore"
    for line in (on_one_line(text), shown(text)):
        assert line.isprintable()
        assert "be" in line
        assert "fore" in line
    assert on_one_line("caf\u00e9 \u4e2d") == "caf\u00e9 \u4e2d", "what can be read stays as it is"


def test_a_long_text_is_cut_where_the_caller_says():
    assert on_one_line("x" * 1_000) == "x" * 1_000
    assert on_one_line("x" * 40, most=40) == "x" * 40
    assert on_one_line("x" * 41, most=40) == "x" * 40 + "..."
    assert shown("x" * 1_000) == "'" + "x" * 199 + "..."


@pytest.mark.parametrize("wrong", ["", "two\nlines", "\x1b[2J", 7, b"bytes", True])
def test_a_name_that_reports_cannot_carry_is_refused(wrong):
    check_names(stream="caf\u00e9 1", run_id=None)
    with pytest.raises(ValueError, match=r"^run_id must be printable text and not empty, got .*\.$") as caught:
        check_names(stream="events", run_id=wrong)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("value", "text"), [(1.2345642, "1.2345642"), (2.0, "2"), (1e-9, "1e-09"), (1.0000004e-9, "1.0000004e-09")]
)
def test_a_budget_is_said_with_all_its_digits(value, text):
    assert exact(value) == text
    assert float(text) == value
