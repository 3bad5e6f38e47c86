"""All commands, all paths: only regular files are read, at once, and no planted link is followed where one writes."""

import os
import pathlib

import pytest

from tests.cli.command_paths import (
    BUDGET,
    READ,
    READ_FOLDERS,
    WRITTEN,
    lines_that_write,
    make_inputs,
    no_waiting,
    path_parameters,
    run,
)

LINKS = ["link", "dangling link", "hard link"]


@pytest.fixture(autouse=True)
def _no_waiting():
    yield from no_waiting()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the inputs, and beside it that of the victim."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    make_inputs(work)
    (tmp_path / "victim").write_text("precious")
    return work


def test_every_path_of_every_command_is_in_the_tables():
    assert path_parameters() == {*READ, *READ_FOLDERS, *WRITTEN}


# What is read.


def make_odd(kind, path):
    if kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


READ_ODDLY = [
    *(pytest.param(place, "fifo", id=" ".join(place)) for place in READ),  # who opened it would wait
    *(pytest.param(("plan", "public_items"), kind, id=f"a list that is a {kind}") for kind in ("folder", "device")),
]


@pytest.mark.parametrize(("place", "kind"), READ_ODDLY)
def test_what_is_not_a_regular_file_is_refused_at_once(folder, place, kind, capsys):
    if "config" in place[1]:
        pytest.importorskip("confluent_kafka", reason="the Kafka client is missing")
    words = [word.replace("PATH", "odd") for word in READ[place]]
    (name,) = [word for word in words if word.startswith("odd")]
    make_odd(kind, folder / name)
    before = sorted(os.listdir(folder))
    code, stderr_text = run(words, capsys)
    assert code == 1
    assert stderr_text.startswith("shh: ")
    assert stderr_text.count("\n") == 1
    assert "odd" in stderr_text
    if kind != "folder":
        assert "regular file" in stderr_text
    assert sorted(os.listdir(folder)) == before


# What is written.


def plant(kind, path, victim):
    path.parent.mkdir(exist_ok=True)
    if kind == "hard link":
        os.link(victim, path)
        return
    if kind == "dangling link":
        victim.unlink()
    path.symlink_to(victim)


def assert_untouched(kind, victim):
    if kind == "dangling link":
        assert not os.path.lexists(victim)
    else:
        assert victim.read_text() == "precious"


def planted_and_run(kind, path, words, capsys):
    """Runs a command that meets a planted name, which works or fails clearly."""
    victim = pathlib.Path("..").resolve() / "victim"
    plant(kind, path, victim)
    code, stderr_text = run(words, capsys)
    assert_untouched(kind, victim)
    assert "Traceback" not in stderr_text
    assert code == 0 or (code == 1 and stderr_text.splitlines()[-1].startswith("shh: "))
    return code, stderr_text


@pytest.mark.parametrize(
    ("words", "output", "kind"),
    [
        pytest.param(words, output, LINKS[number % len(LINKS)], id=name)
        for number, (name, words, output) in enumerate(lines_that_write())
    ],
)
def test_a_link_in_the_place_of_an_output_is_not_followed(folder, words, output, kind, capsys):
    if words[0] == "audit":
        assert run(["plan", *BUDGET, "--output", "plan.json"], capsys)[0] == 0
    if "--dead-letter" in words and words[0] == "replay":
        (folder / "report.avro").unlink()
    code, stderr_text = planted_and_run(kind, folder / output, words, capsys)
    if words[0] != "stream":
        assert code == 1
        assert "exists and is never overwritten" in stderr_text or words[0] in ("explain", "show")
        assert "exists" in stderr_text
    assert not [name for name in os.listdir(folder) if name.endswith((".partial", ".tmp"))]


def test_a_folder_that_is_missing_is_named_before_any_work(folder, capsys):
    for name, words, output in lines_that_write():
        if words[0] != "stream" and "--dead-letter" not in words:
            code, stderr_text = run([*words[:-1], f"absent/{output}"], capsys)
            assert (code, stderr_text.count("\n")) == (1, 1), name
            assert f"absent/{output}: No such file or directory. Check that its folder is there" in stderr_text, name


@pytest.mark.parametrize("kind", LINKS)
def test_a_page_that_may_be_replaced_replaces_no_link_nor_what_has_another_name(folder, kind, capsys):
    page = folder / "out.html"
    code, _ = planted_and_run(kind, page, [*WRITTEN["stream", "html"][0], "--html", "out.html"], capsys)
    assert (code == 0) == (kind == "hard link") == page.is_file() or page.is_symlink()
    assert page.is_symlink() == (kind != "hard link")
