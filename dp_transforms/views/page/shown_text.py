"""Text of a report for people, on a page or in a picture. Whatever a label contains, it is shown as what it is."""

from __future__ import annotations

import re
import unicodedata

from dp_transforms.views.report_table import escape_text, label_text

_LONGEST = 80
# What `label_text` would write otherwise, or what a page would show like another text.
_AMBIGUOUS = re.compile(r'["\\]|^ | $|  ')


def shown_text(text: str) -> str:
    """A text with blanks as it is, if nothing in it hides or misleads; else quoted and escaped as on a terminal.

    Two different texts of at most 80 characters never look alike. Longer ones are cut.
    """
    cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    if not cut or _AMBIGUOUS.search(cut) or escape_text(cut) != cut or _begins_with_mark(cut):
        return label_text(text)
    return cut


def _begins_with_mark(text: str) -> bool:
    return unicodedata.category(text[0]).startswith("M")
