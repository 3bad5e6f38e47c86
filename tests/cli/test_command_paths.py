"""All commands, all paths: only regular files are read, at once, and no planted link is followed where one writes."""

import os
import pathlib

import pytest

from tests.cli.command_paths import (
    BUDGET,
    READ,
    READ_FOLDERS,
    WRITTEN,
    make_inputs,
    path_parameters,
)
from tests.helpers.shh_here import said

pytestmark = pytest.mark.usefixtures("no_waiting")
LINKS = ["link", "dangling link", "hard link"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the inputs, and beside it the victim."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    make_inputs(work)
    (tmp_path / "victim").write_text("precious")
    return work


def test_every_path_of_every_command_is_in_the_tables():
    assert path_parameters() == {*READ, *READ_FOLDERS, *WRITTEN}


READ_ODDLY = [
    *((place, "fifo") for place in READ),  # who opened it would wait
    *((("plan", "public_items"), kind) for kind in ("folder", "device")),
]


@pytest.mark.parametrize(("place", "kind"), READ_ODDLY, ids=lambda each: " ".join(each) if each in READ else each)
def test_what_is_not_a_regular_file_is_refused_at_once(folder, place, kind):
    if "config" in place[1]:
        pytest.importorskip("confluent_kafka", reason="the Kafka client is missing")
    words = [word.replace("PATH", "odd") for word in READ[place]]
    (name,) = [word for word in words if word.startswith("odd")]
    if kind == "fifo":
        os.mkfifo(name, 0o600)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    before = sorted(os.listdir(folder))
    _, err, code = said(*words)
    assert code == 1
    assert err.startswith("shh: ")
    assert err.count("\n") == 1
    assert "odd" in err
    assert kind == "folder" or "regular file" in err
    assert sorted(os.listdir(folder)) == before


def planted_and_run(kind, words):
    """Runs a command that meets a planted name in the place of its output, which works or fails clearly."""
    output, victim = words[-1], "../victim"
    if kind == "hard link":
        os.link(victim, output)
    else:
        os.symlink(victim, output)
    if kind == "dangling link":
        os.unlink(victim)
    _, err, code = said(*words)
    if kind == "dangling link":
        assert not os.path.lexists(victim)
    else:
        assert pathlib.Path(victim).read_text() == "precious"
    assert "Traceback" not in err
    assert code == 0 or (code == 1 and err.splitlines()[-1].startswith("shh: "))
    return code, err


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        pytest.param(words, LINKS[number % len(LINKS)], id=" ".join(place))
        for number, (place, words) in enumerate(WRITTEN.items())
        if place != ("stream", "html")  # below
    ],
)
def test_a_link_in_the_place_of_an_output_is_not_followed(folder, words, kind):
    if words[0] == "audit":
        assert said("plan", *BUDGET.split(), "--output", "plan.json")[2] == 0
    if "--dead-letter" in words and words[0] == "replay":
        (folder / "report.avro").unlink()
    code, err = planted_and_run(kind, words)
    assert words[0] == "stream" or (code == 1 and "exists and is never overwritten" in err)
    assert not [name for name in os.listdir(folder) if name.endswith((".partial", ".tmp"))]


def test_a_folder_that_is_missing_is_named_before_any_work(folder):
    for words in WRITTEN.values():
        if words[0] != "stream" and "--dead-letter" not in words:
            _, err, code = said(*words[:-1], f"absent/{words[-1]}")
            assert (code, err.count("\n")) == (1, 1), words
            assert f"absent/{words[-1]}: No such file or directory. Check that its folder is there" in err, words


@pytest.mark.parametrize("kind", LINKS)
def test_a_page_that_may_be_replaced_replaces_no_link_nor_what_has_another_name(folder, kind):
    code, _ = planted_and_run(kind, WRITTEN["stream", "html"])
    page = folder / "out.html"
    assert (code == 0) == (kind == "hard link") == (not page.is_symlink())
