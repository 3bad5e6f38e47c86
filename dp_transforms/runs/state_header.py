"""The header of a state: which run it belongs to, how far the run is closed, and what is to be published next."""

from __future__ import annotations

import dataclasses
import json

from dp_transforms.checks import check_names, check_whole, is_whole, on_one_line, without_secrets
from dp_transforms.runs.records import StateError

FORMAT_VERSION = 4
MOST_HEADER_BYTES = 4 << 20
MOST_PARTS = 500
_MOST_TEXT = 4096
_HEX_DIGITS = 64
_NONCE_DIGITS = 32
_NO_CHOICE = {"stream_field": ""}  # what a state says beside: so it has the same bytes as before


@dataclasses.dataclass(frozen=True)
class PartRecord:
    """One part of a run: the windows ``first .. end - 1``, taken from one input, published as one output.

    input_fingerprint: of what was read (`fingerprints.InputFingerprint`). output: the path of the report. beginning: a
    field of the format; always empty.
    """

    first: int
    end: int
    input_fingerprint: str
    output: str
    beginning: str = ""

    def __post_init__(self) -> None:
        check_whole("first", self.first, 0)
        check_whole("end", self.end, self.first + 1)
        _check_hex("input_fingerprint", self.input_fingerprint)
        if not isinstance(self.output, str) or not self.output:
            raise ValueError("output must be a path.")
        if self.beginning != "":
            raise ValueError("beginning must be empty.")


@dataclasses.dataclass(frozen=True)
class StateHeader:
    """What a state says about its run.

    plan: the JSON of the plan; plan_fingerprint: its fingerprint. stream, run_id: names; the noise depends on them.
    key_fingerprint: of the noise key (`fingerprints.key_fingerprint`).
    user_field, item_field: the names of the fields of the log; from other fields each user would have a second purse.
    population: under which a ledger accounts for the run; "" for a run without a ledger.
    parts: the latest `MOST_PARTS` that were finished, in order: whatever was to be published of their windows is.
    intent: the part that was begun and is not finished. From the moment it is written, the windows of this part may be
        published from this input alone. begun_by: the version of shh that began it. draws_as: the nonce of its noise
        (`planned_run.fresh_nonce`), which whoever resumes it reads here; "" of a first part.
    next_fingerprint: of the state after the intent, from the moment when its report may be published; "" before.
    """

    plan: str
    plan_fingerprint: str
    stream: str
    run_id: str
    key_fingerprint: str
    user_field: str
    item_field: str
    population: str = ""
    parts: tuple[PartRecord, ...] = ()
    intent: PartRecord | None = None
    begun_by: str = ""
    draws_as: str = ""
    next_fingerprint: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.plan, str) or not self.plan:
            raise ValueError("plan must be JSON text.")
        check_names(stream=self.stream, run_id=self.run_id, population=self.population or None)
        _check_hex("plan_fingerprint", self.plan_fingerprint)
        _check_hex("key_fingerprint", self.key_fingerprint)
        if not all(isinstance(name, str) and name for name in (self.user_field, self.item_field)):
            raise ValueError("user_field and item_field must be names.")
        if len(self.parts) > MOST_PARTS:
            raise ValueError(f"only the latest {MOST_PARTS} parts must be kept.")
        begin = self.parts[0].first if len(self.parts) == MOST_PARTS else 0
        for part in self.parts:
            if part.first != begin:
                raise ValueError("each part must begin where the one before it ended.")
            begin = part.end
        if self.intent is not None and self.intent.first != self.closed_through:
            raise ValueError("the part that was begun must begin where the run is closed.")
        if not isinstance(self.begun_by, str) or (self.begun_by and self.intent is None):
            raise ValueError("begun_by must be the version that wrote the intent.")
        if self.intent is not None and self.intent.first:
            _check_hex("draws_as", self.draws_as, _NONCE_DIGITS)
        elif self.draws_as != "":
            raise ValueError("draws_as must belong to a later part that was begun.")
        if self.next_fingerprint:
            _check_hex("next_fingerprint", self.next_fingerprint)
            if self.intent is None:
                raise ValueError("next_fingerprint must belong to a part that was begun.")

    @property
    def closed_through(self) -> int:
        """The windows before this one are closed."""
        return self.parts[-1].end if self.parts else 0

    def finished(self, end: int, input_fingerprint: str) -> PartRecord | None:
        """The part that ended before this window and had this input, as long as it is kept."""
        found = (part for part in self.parts if (part.end, part.input_fingerprint) == (end, input_fingerprint))
        return next(found, None)

    def with_intent(self, intent: PartRecord | None, begun_by: str = "", draws_as: str = "") -> StateHeader:
        """The header when this part is begun, by this version of shh; None: when none is."""
        return dataclasses.replace(self, intent=intent, begun_by=begun_by, draws_as=draws_as, next_fingerprint="")

    def publishing(self, next_fingerprint: str) -> StateHeader:
        """The header from the moment when the report of the intent may be published. next_fingerprint: of the state
        after it."""
        return dataclasses.replace(self, next_fingerprint=next_fingerprint)

    def after(self, part: PartRecord) -> StateHeader:
        """The header when this part is finished."""
        return dataclasses.replace(self.with_intent(None), parts=(*self.parts, part)[-MOST_PARTS:])

    def to_json(self) -> str:
        """One line; the same header always makes the same text. Raises StateError if it would be too large to be read
        again."""
        parts, intent = [vars(part) for part in self.parts], self.intent and vars(self.intent)
        fields = {"format_version": FORMAT_VERSION, **vars(self), **_NO_CHOICE, "parts": parts, "intent": intent}
        text = json.dumps(fields, sort_keys=True)
        if len(text) > MOST_HEADER_BYTES:
            raise StateError("its header would be too large. Use shorter paths, or a plan of a smaller file.")
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> StateHeader:
        """Inverse of `to_json`. Raises StateError for anything else, without any of it."""
        if len(text) > MOST_HEADER_BYTES:
            raise StateError("its header is too large. It is damaged.")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise StateError("its header cannot be read. It is damaged.")
        version = fields.pop("format_version", None)
        if not is_whole(version) or version != FORMAT_VERSION:
            shown = version if is_whole(version) and abs(version) < 10**6 else "no number"
            raise StateError(
                f"it has format version {shown}, and this version of shh knows version {FORMAT_VERSION} alone. Use the"
                " version of shh that wrote it."
            )
        if any(fields.pop(name, value) != value for name, value in _NO_CHOICE.items()):
            raise StateError("its run has a choice that there is no more. Use the version of shh that wrote it.")
        try:
            intent, parts = fields.get("intent"), [PartRecord(**part) for part in fields["parts"]]
            begun = None if intent is None else PartRecord(**intent)
            return cls(**{**fields, "parts": tuple(parts), "intent": begun})
        except (KeyError, TypeError, ValueError):
            raise StateError("its header has missing, unknown or wrong fields. It is damaged.") from None


def _check_hex(name: str, text: object, digits: int = _HEX_DIGITS) -> None:
    is_hex = isinstance(text, str) and len(text) == digits and not set(text) - set("0123456789abcdef")
    if not is_hex:
        raise ValueError(f"{name} must be {digits} hex digits.")


def at_path(path: str, error: StateError) -> StateError:
    """The error with the path of the file at its head."""
    return StateError(f"the state {on_one_line(without_secrets(path), most=_MOST_TEXT)}: {error}")
