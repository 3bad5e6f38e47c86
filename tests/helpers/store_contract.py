"""What holds for each kind of store, checked on a real server of it. root: the URL of an empty folder or bucket."""

from __future__ import annotations

import io
import threading

import pytest

from dp_transforms.stores import remote_files
from dp_transforms.stores.remote_files import FileChangedError

ODD = "a b/ü+%20&=#é'.csv"


def names_below(root: str, source: str) -> list[str]:
    return [file.url.removeprefix(root + "/") for file in remote_files.find_files(source)]


def a_file_appears_whole_and_replaces_none(root: str) -> None:
    url = f"{root}/reports/one.avro"
    assert not remote_files.exists(url)
    remote_files.put_new(url, b"first")
    with pytest.raises(FileExistsError):
        remote_files.put_new(url, b"second")
    second = io.BytesIO()
    second.write(b"second")
    with pytest.raises(FileExistsError):
        remote_files.put_new(url, second)
    remote_files.put_new(f"{root}/reports/two.avro", second)
    assert remote_files.read_stored(f"{root}/reports/two.avro", 100) == b"second"
    assert remote_files.read_stored(url, 100) == b"first"
    assert remote_files.read_stored(url, 3) == b"firs", "one byte more than asked for shows that it is larger"
    third = io.BytesIO()
    third.write(b"third, longer")  # and it stands at its end
    remote_files.put_over(url, third)
    assert remote_files.read_stored(url, 100) == b"third, longer"
    remote_files.remove(url)
    remote_files.remove(url)
    assert not remote_files.exists(url)
    with pytest.raises(FileNotFoundError):
        remote_files.look_at(url)


def one_of_many_writers_wins(root: str) -> None:
    url, won = f"{root}/reports/raced.avro", list[int]()

    def write(number: int) -> None:
        try:
            remote_files.put_new(url, b"%d" % number * 1000)
            won.append(number)
        except FileExistsError:
            pass

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert remote_files.read_stored(url, 10_000) == b"%d" % won[0] * 1000


def what_is_written_beside_an_output_is_hidden(root: str) -> None:
    output = f"{root}/reports/two.avro"
    remote_files.put_over(f"{root}/reports/.draft/file.avro", b"written")
    remote_files.check_writable(output)
    assert names_below(root, f"{root}/reports") == []
    assert [file.size for file in remote_files.list_beginning(f"{root}/reports/")] == [7], "nothing is left"


def files_are_found_by_name_folder_and_glob(root: str) -> None:
    names = [
        *("logs/2026-01-01/a.csv", "logs/2026-01-01.csv", "logs/2026-01-01/b.jsonl", "logs/2026-01-02/a.csv"),
        *("logs/_temporary/c.csv", "logs/.hidden/d.csv", "logs/_SUCCESS", "logs/2026-01-02/.e.csv", "logsother.csv"),
        f"logs/{ODD}",
    ]
    for name in names:
        remote_files.put_new(f"{root}/{name}", b"" if name.endswith("_SUCCESS") else name.encode())
    visible = ["logs/2026-01-01.csv", "logs/2026-01-01/a.csv", "logs/2026-01-01/b.jsonl", "logs/2026-01-02/a.csv"]
    every = sorted([*visible, f"logs/{ODD}"])
    assert names_below(root, f"{root}/logs") == every
    assert names_below(root, f"{root}/logs/") == every
    assert names_below(root, f"{root}/logs/2026-01-01/a.csv") == ["logs/2026-01-01/a.csv"]
    assert names_below(root, f"{root}/logs/{ODD}") == [f"logs/{ODD}"]
    assert names_below(root, f"{root}/logs/2026-*") == visible
    assert names_below(root, f"{root}/logs/2026-*/a.csv") == ["logs/2026-01-01/a.csv", "logs/2026-01-02/a.csv"]
    by_day = ["logs/2026-01-01/a.csv", "logs/2026-01-02/a.csv"]
    assert names_below(root, f"{root}/logs/**/?.csv") == [*by_day, "logs/_temporary/c.csv"]
    assert names_below(root, f"{root}/logs/2026-01-0[!1]/*") == ["logs/2026-01-02/a.csv"]
    assert names_below(root, f"{root}/logs*") == sorted([*every, "logsother.csv"])
    assert names_below(root, f"{root}/logs/none*") == []
    assert names_below(root, f"{root}/none") == []


def only_what_is_asked_for_is_read_of_one_version(root: str) -> None:
    url, content = f"{root}/logs/large.bin", bytes(range(256)) * 1000
    remote_files.put_new(url, content)
    file = remote_files.open_stored(remote_files.look_at(url), ahead=10)
    assert file.seek(-20, io.SEEK_END) == len(content) - 20
    assert file.read(5) + file.read() + file.read(1) == content[-20:]
    file.seek(300)
    assert file.read(700) == content[300:1000]
    assert remote_files.open_stored(remote_files.look_at(url)).read() == content
    remote_files.put_over(url, content[::-1])
    file.seek(5000)
    with pytest.raises(FileChangedError, match="was changed or removed while it was read"):
        file.read(10)
    remote_files.remove(url)
    with pytest.raises(FileChangedError):
        file.read(10)


def an_empty_file_is_read_as_nothing(root: str) -> None:
    remote_files.put_new(f"{root}/empty.csv", b"")
    found = remote_files.look_at(f"{root}/empty.csv")
    assert found.size == 0
    assert remote_files.open_stored(found).read() == b""


def a_bucket_that_is_missing_is_said(root: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such bucket: check its name"):
        list(remote_files.find_files(f"{root}-absent/*.csv"))


CONTRACT = [
    a_file_appears_whole_and_replaces_none,
    one_of_many_writers_wins,
    what_is_written_beside_an_output_is_hidden,
    files_are_found_by_name_folder_and_glob,
    only_what_is_asked_for_is_read_of_one_version,
    an_empty_file_is_read_as_nothing,
    a_bucket_that_is_missing_is_said,
]
