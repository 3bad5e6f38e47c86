"""Which field of a log may be user, item and time, by its name and by what its sample holds.

The user is a person before an account, a device, an address of the network and a session: what is protected is one user
with all of its events. Items are published: so an item is proposed only if its name says that it is one, and never an
address, an e-mail, a person or a token.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROLES = USER, ITEM, TIME = "user", "item", "time"
PERSON, ACCOUNT, DEVICE, ADDRESS, SESSION = "person", "account", "device", "address of the network", "session"
OTHER_PERSON = "another person"  # than the one who acts
ADDRESSES, EMAILS, TOKENS, CLOCKS = "addresses of the network", "e-mail addresses", "tokens", "clock times"

# A name is of the last kind that one of its words has: client_ip is an address.
_USER_WORDS = {
    PERSON: "user users uid userid usr visitor customer client member reader viewer subscriber person people patient"
    " player buyer author voter employee student driver rider who nutzer benutzer kunde kunden kundin leser besucher"
    " utilisateur usuario cliente sender follower caller inviter from absender",
    ACCOUNT: "account login household username authuser email mail konto",
    DEVICE: "device cookie browser phone imei idfa gaid fingerprint fullvisitorid",
    ADDRESS: "ip ips ipv addr address clientip remoteip sourceip userip ipaddress forwarded",
    SESSION: "session sessions sid sessionid visit visits jsessionid phpsessid sitzung",
    OTHER_PERSON: "friend friends contact contacts recipient recipients receiver addressee followee followed callee"
    " invitee partner peer counterpart counterparty mentioned colleague to freund kontakt empfänger",
}
_DIRECTIONS = frozenset({"from", "to"})  # of people only where nothing else is said: not from_station, valid_to
_WITH_DIRECTIONS = _DIRECTIONS | {"id", "user", "uid", "email", "mail", "addr", "address", "name"}
_ITEM_WORDS = (
    "item items itemid article story news page url uri path product sku query search title video track song movie"
    " film book error code event keyword term content doc document tag topic channel category what request link href"
    " artikel seite produkt titel meldung suche beitrag inhalt begriff fehler"
)
_TIME_WORDS = (
    "time timestamp ts date datetime day at when created updated occurred seen logged epoch zeit zeitpunkt zeitstempel"
    " datum uhrzeit heure fecha hora"
)
# In access logs of nginx, Apache, CloudFront and IIS (W3C), and much like them.
_FIRST_ITEMS = frozenset({"cs-uri-stem", "request-uri", "document-uri", "request", "uri", "url", "path", "page"})
_NEITHER_WORDS = (
    "agent useragent bytes byte length size duration latency elapsed method port protocol version referer referrer"
    " status server upstream host ssl ident body"
)
_NO_USER_NAMES = frozenset({"cs-cookie", "s-ip"})  # all cookies of a request; the server
_NO_ITEM_NAMES = frozenset({"request-id", "request-time", "x-edge-request-id"})
_PRIVATE_WORDS = (
    "addr address ip ipv clientip remoteip sourceip userip ipaddress email mail phone tel telephone mobile ssn iban"
    " token tokens secret password passwd jwt auth authorization surname firstname lastname fullname username vorname"
    " nachname trace"
)
_NAMES = frozenset({"name", "looks"})  # of a person, unless another word says of what
_HOLDS = {
    ADDRESSES: r"^[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?::[0-9]+|/[0-9]+)?$"
    r"|^[0-9a-f]{0,4}(?::[0-9a-f]{1,4}){0,6}::[0-9a-f:.]*$"
    r"|^(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$|^(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}$",
    EMAILS: r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
    CLOCKS: r"^[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?$",
}
_TOKEN = r"^[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}$|^[0-9a-f]{16,}$"
_ENOUGH_ROWS = 50
_MOSTLY = 0.9

_NEITHER, _PRIVATE = frozenset(_NEITHER_WORDS.split()), frozenset(_PRIVATE_WORDS.split())
_KINDS = tuple(_USER_WORDS)
_KIND_OF_WORD = {word: kind for kind, words in _USER_WORDS.items() for word in words.split()}
_WORDS = {ITEM: frozenset(_ITEM_WORDS.split()), TIME: frozenset(_TIME_WORDS.split())}


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """A field read as times. unit, time_format: of `EventFields`. micros: of the rows that can be read. zone: "all",
    "some" or "none" of the texts have one; "typed" for types that have their own. unread: rows whose value cannot be
    read. other_format: one with day and month exchanged by which they can be read too."""

    unit: str | None
    micros: npt.NDArray[np.int64]
    zone: str
    unread: int
    time_format: str | None = None
    other_format: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A field over all samples. rows, empty, different, most_common: how many rows it has, without a value, different
    values, with the most common value. times: None if it holds none. are_other_dates: texts that a person takes for
    times, but that cannot be read. may_be_id: whether its type allows users or items. holds: ADDRESSES, EMAILS, TOKENS
    or CLOCKS."""

    name: str
    kind: str
    rows: int
    empty: int
    different: int
    most_common: int
    times: Times | None
    has_nanoseconds: bool
    are_other_dates: bool
    may_be_id: bool
    holds: str | None


def what_it_holds(texts: pa.ChunkedArray, different: int) -> str | None:
    """Of a column of bytes. Tokens only if most of them differ: an article may have a UUID too."""
    filled = texts.filter(pc.greater(pc.binary_length(texts), 0))
    shapes = {**_HOLDS, TOKENS: _TOKEN} if 2 * different > len(filled) else _HOLDS
    for holds, shape in shapes.items():
        alike = pc.sum(pc.match_substring_regex(filled, shape, ignore_case=True)).as_py() or 0
        if len(filled) and alike >= _MOSTLY * len(filled):
            return holds
    return None


def choose_fields(fields: Sequence[Field], given: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    """Names by role, a role without a likely field is missing; and the roles that names did not decide."""
    chosen = dict(given)
    guessed = set()
    if TIME not in chosen:
        best = max((field for field in fields if field.times), key=_time_score, default=None)
        if best is not None and best.name not in chosen.values():
            chosen[TIME] = best.name
        elif odd := [field for field in fields if _has_word(field, TIME) or _is_odd_time(field)]:
            chosen[TIME] = max(odd, key=_is_odd_time).name  # what is wrong with it is said
    if USER not in chosen and (candidates := user_candidates(_free(fields, chosen))):
        chosen[USER] = candidates[0].name
    if ITEM not in chosen and (named := [field for field in _free(fields, chosen) if _is_named_item(field)]):
        chosen[ITEM] = max(named, key=_item_score).name
    free = [field for field in _free(fields, chosen) if _may_be_user(field)]
    likely = [field for field in free if not _is_row_number(field)] or free
    if USER not in chosen and likely:
        # Of what is left, users are what differs most: there are more users than items that many of them have.
        chosen[USER] = max(likely, key=lambda field: field.different).name
        guessed.add(USER)
    return chosen, frozenset(guessed)


def user_candidates(fields: Sequence[Field]) -> list[Field]:
    """The fields that look like a user, the best first: a person before a session; one value for most rows tells no
    persons apart."""
    found = [field for field in fields if field.may_be_id and user_kind(field) and not _has_word(field, ITEM)]
    return sorted(found, key=_user_score)


def user_kind(field: Field) -> str | None:
    """PERSON, ACCOUNT and so on; None if nothing says that the field tells people apart."""
    words = _tokens(field.name)
    if _NEITHER & set(words) or "-".join(words) in _NO_USER_NAMES:
        return None
    if not set(words) <= _WITH_DIRECTIONS:
        words = [word for word in words if word not in _DIRECTIONS]
    kinds = [_KIND_OF_WORD[word] for word in words if word in _KIND_OF_WORD]
    kinds += [{ADDRESSES: ADDRESS, EMAILS: ACCOUNT}[field.holds]] if field.holds in (ADDRESSES, EMAILS) else []
    return max(kinds, key=_KINDS.index, default=None)


def is_private(field: Field) -> bool:
    """Whether its values say who somebody is, so that they must not be published."""
    words = set(_tokens(field.name))
    is_person = user_kind(field) in (PERSON, ACCOUNT, OTHER_PERSON) and not words & _WORDS[ITEM]
    return bool(
        field.holds in (ADDRESSES, EMAILS, TOKENS) or words & _PRIVATE or is_person or _is_name_of_person(words)
    )


def _is_name_of_person(words: set[str]) -> bool:
    return bool(words & _NAMES) and not words & _WORDS[ITEM]


def _user_score(field: Field) -> tuple[bool, int, bool, bool, int]:
    is_mostly_one = field.rows >= _ENOUGH_ROWS and 2 * max(field.most_common, field.empty) >= field.rows
    is_exact = field.name.lower() in _KIND_OF_WORD
    kind = _KINDS.index(user_kind(field) or SESSION)
    return (is_mostly_one, kind, not is_exact, "id" not in _tokens(field.name), -field.different)


def _is_named_item(field: Field) -> bool:
    words = _tokens(field.name)
    odd = bool(_NEITHER & set(words)) or "-".join(words) in _NO_ITEM_NAMES or field.holds == CLOCKS
    return _has_word(field, ITEM) and user_kind(field) is None and not (is_private(field) or odd)


def _item_score(field: Field) -> tuple[bool, bool, bool, int]:
    """Well-known names come first, then what is called exactly so, then what is an id, then what differs more."""
    words = _tokens(field.name)
    is_exact = field.name.lower() in _WORDS[ITEM]
    return ("-".join(words) in _FIRST_ITEMS, is_exact, "id" in words, field.different)


def _may_be_user(field: Field) -> bool:
    is_item = _has_word(field, ITEM) and user_kind(field) is None
    return not (is_item or _NEITHER & set(_tokens(field.name)) or field.holds == CLOCKS)


def _free(fields: Sequence[Field], chosen: Mapping[str, str]) -> list[Field]:
    """What may be a user or an item, and has no role yet."""
    return [field for field in fields if field.may_be_id and field.name not in chosen.values() and not _is_time(field)]


def _tokens(name: str) -> list[str]:
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [part.lower() for part in re.split(r"[^A-Za-zÀ-ÿ]+", parts) if part]


def _has_word(field: Field, role: str) -> bool:
    return any(token in _WORDS[role] for token in _tokens(field.name))


def _time_score(field: Field) -> tuple[bool, bool, int]:
    assert field.times is not None
    return (_has_word(field, TIME), field.times.unit is None, len(field.times.micros))


def _is_time(field: Field) -> bool:
    """Whether it is a time rather than an id: numbers of ten digits may be both."""
    return field.times is not None and (field.times.unit is None or _has_word(field, TIME))


def _is_odd_time(field: Field) -> bool:
    return field.has_nanoseconds or field.are_other_dates


def _is_row_number(field: Field) -> bool:
    return field.rows >= _ENOUGH_ROWS and field.different >= field.rows
