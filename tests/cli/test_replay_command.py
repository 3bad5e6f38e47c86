"""`shh replay` as its users run it: files in, files out, one-line errors, nothing that leaks."""

import json
import os
import stat

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.core.public_items import PublicItems
from dp_transforms.core.window_report import HeavyHitter
from tests.helpers import shh_process
from tests.helpers.modes import words_of_mode
from tests.helpers.replay_logs import BUDGET, FEW, HOURS, MANY, START, log_rows, write_log, write_parquet
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import error_line
from tests.helpers.small_runs import key_file

LOOKS = ("--usual-contributions", 1, 10, "--most-contributions", 20)
IN_ROUNDS = (*BUDGET[: BUDGET.index("--charge")], *LOOKS)
IN_LOOKS = (*IN_ROUNDS, "--usual-contributions", 1, 2)  # so few are tested in one round
HEAVY = [hour for hour in range(HOURS) if hour not in (2, 4)]
EXPECTED = {f"2026-01-01T0{hour}:00:00Z": [f"heavy-{hour}"] for hour in HEAVY}


@pytest.fixture
def folder(tmp_path):
    """The current folder of the commands, with log.parquet."""
    write_parquet(tmp_path / "log.parquet", log_rows())
    return tmp_path


def read_report(path):
    """Header and records, by each format's own library; times as ISO 8601."""
    if path.suffix == ".jsonl":
        first, *records = [json.loads(line) for line in path.read_text().splitlines()]
        return first["header"], records
    if path.suffix == ".avro":
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            records, header = list(reader), json.loads(reader.metadata["shh.header"])
    else:
        table = pq.read_table(path)
        records, header = table.to_pylist(), json.loads(table.schema.metadata[b"shh.header"])
    for record in records:
        for name in ("window_start", "window_end"):
            record[name] = record[name].isoformat().replace("+00:00", "Z")
    return header, records


def items_by_window(records):
    return {record["window_start"]: [hitter["item"] for hitter in record["heavy_hitters"]] for record in records}


def replayed(folder, *words, log="log.parquet"):
    """Header and records of the report, and what is said on stdout and stderr."""
    done = shh("replay", log, *words, "--output", "report.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    return *read_report(folder / "report.jsonl"), " ".join(done.stdout.split()), done.stderr


@pytest.mark.parametrize(("source", "output"), [("csv", "jsonl"), ("jsonl", "avro"), ("avro", "jsonl")])
def test_reads_and_writes_every_format(tmp_path, source, output):
    write_log(tmp_path / f"log.{source}")
    result = shh("replay", f"log.{source}", *BUDGET, "--output", f"report.{output}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    header, records = read_report(tmp_path / f"report.{output}")
    assert items_by_window(records) == EXPECTED
    assert header["plan"]["epsilon"] == 8
    assert "(8, 1e-06)-differentially private" in result.stdout
    assert "heavy-5" in result.stdout
    for record in records:
        assert set(record) == {
            *("stream", "window_start", "window_end", "heavy_hitters"),
            *("epsilon_total", "delta", "epsilon_spent"),
        }
        for hitter in record["heavy_hitters"]:
            assert tuple(hitter) == HeavyHitter._fields
            assert (hitter["zone"] == "above") == (hitter["noisy_count"] is None)
    shown = shh("show", f"report.{output}", cwd=tmp_path)
    assert shown.returncode == 0
    assert "heavy-3" in shown.stdout
    assert "light" not in shown.stdout


def test_pairs_beyond_what_a_purse_pays_are_counted_for_the_operator(tmp_path):
    """Each of the users has 30 pairs, and 20 count."""
    rows = [(f"user-{n}", f"i{n} {item}", START + 60 * item) for n in range(FEW) for item in range(30)]
    write_parquet(tmp_path / "log.parquet", rows)
    _, records, printed, said = replayed(tmp_path, *IN_LOOKS)
    assert f" {FEW * 10:,} contributions beyond --most-contributions of a user did not count," in said
    assert records == []
    assert "No window had an item held by enough users. An hour's item (a story, a search, an error)" in printed


def test_rounds_are_for_replays(folder):
    """Of a whole run, or in parts. A stream refuses them."""
    planned = shh("plan", *IN_ROUNDS, "--output", "plan.json", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    assert "Contributions are tested in rounds: first the items of 6 hours together" in planned.stdout
    given = ("--plan", "plan.json", "--noise-key-file", key_file(folder))
    for output, until in (("1.jsonl", ("--until", "2026-01-01T03:00:00Z")), ("2.jsonl", ())):
        part = shh("replay", "log.parquet", *given, "--state", "run.state", *until, "--output", output, cwd=folder)
        assert part.returncode == 0, part.stderr
        assert "shorter than a block of its plan's rounds" in part.stderr
        found = items_by_window(read_report(folder / output)[1])
        assert found
        assert all((window[10:] >= "T03") == (output == "2.jsonl") for window in found)
    stream = shh("stream", "--input", ".", *given, "--output", "o", cwd=folder)
    assert "--plan is for a replay" in stream.stderr


def test_a_kept_key_and_a_chosen_run_id_exclude_each_other(folder):
    """Both again on a log that differs in one user give reports that differ in exactly what that user holds."""
    key = key_file(folder, os.urandom(32))
    words = ["replay", "log.parquet", *BUDGET, "--charge", "hits", "--counts", "--output"]
    stderr_text = error_line(shh(*words, "r.jsonl", "--noise-key-file", key, "--run-id", "nightly", cwd=folder))
    assert "--run-id cannot be used with --noise-key-file" in stderr_text
    assert "Leave --run-id out" in stderr_text
    assert not (folder / "r.jsonl").exists()
    reports = []
    for number, more in enumerate([["--noise-key-file", key], ["--noise-key-file", key], ["--run-id", "nightly"]]):
        output = folder / f"report-{number}.jsonl"
        assert shh(*words, output, *more, cwd=folder).returncode == 0
        reports.append(read_report(output))
    assert reports[2][0]["run_id"] == "nightly"
    assert len({header["run_id"] for header, _ in reports}) == 3
    assert len({json.dumps(items_by_window(records)) for _, records in reports}) == 1
    # Four noisy counts at a scale of about ten: all equal with probability far below 1e-4, were they not fresh.
    assert len({json.dumps(records) for _, records in reports}) == 3


def test_a_plan_file_replaces_the_budget_options(folder):
    assert shh("plan", *BUDGET, "--output", "plan.json", cwd=folder).returncode == 0
    header, records, *_ = replayed(folder, "--plan", "plan.json")
    assert items_by_window(records) == EXPECTED
    assert header["plan"] == json.loads((folder / "plan.json").read_text())
    weak = json.loads((folder / "plan.json").read_text())
    weak["hits"]["epsilon_per_query"] *= 2
    (folder / "weak.json").write_text(json.dumps(weak))
    tampered = shh("replay", "log.parquet", "--plan", "weak.json", "--output", "other.jsonl", cwd=folder)
    assert "weak.json" in error_line(tampered)


def test_bad_rows_go_to_the_dead_letter_file_and_nothing_else_is_lost(tmp_path):
    write_log(tmp_path / "log.jsonl")
    good = (tmp_path / "log.jsonl").read_text().splitlines()
    bad = ['{"user": "broken', '{"item": "light", "timestamp": "2026-01-01"}', '{"user": "u", "item": "", "x": 1}']
    (tmp_path / "log.jsonl").write_text("\n".join([bad[0], *good[:9], bad[1], *good[9:], bad[2]]) + "\n")
    _, records, _, said = replayed(tmp_path, *BUDGET, "--dead-letter", "bad.jsonl", log="log.jsonl")
    assert items_by_window(records) == EXPECTED
    entries = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert [entry["position"] for entry in entries] == [1, 11, len(good) + 3]
    assert all(entry["file"].endswith("log.jsonl") and entry["reason"] for entry in entries)
    assert stat.S_IMODE((tmp_path / "bad.jsonl").stat().st_mode) == 0o600
    assert "3 unreadable" in said


def test_too_many_bad_rows_stop_the_run_and_publish_nothing(tmp_path):
    write_log(tmp_path / "log.csv")
    with (tmp_path / "log.csv").open("a") as file:
        file.writelines(["x,y,not-a-time\n"] * (len(log_rows()) + 1))
    stopped = shh("replay", "log.csv", *BUDGET, "--output", "report.jsonl", cwd=tmp_path)
    assert f"{len(log_rows()) + 1:,} of" in error_line(stopped)
    assert "could not be read, more than half; nothing was published" in stopped.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]
    assert shh("replay", "log.csv", *BUDGET, "--output", "report.jsonl", "--allow-empty", cwd=tmp_path).returncode == 0
    assert items_by_window(read_report(tmp_path / "report.jsonl")[1]) == EXPECTED


def test_events_outside_the_range_are_skipped_and_only_the_operator_is_told(folder):
    words = ["--start", "2026-01-01T01:00:00Z", "--end", "2026-01-01T05:00:00Z", *BUDGET[4:]]
    header, records, printed, said = replayed(folder, *words)
    assert list(items_by_window(records)) == ["2026-01-01T01:00:00Z", "2026-01-01T03:00:00Z"]
    assert f"{2 * (MANY + FEW):,} outside" in said
    assert "outside" not in printed + json.dumps(header)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["missing.parquet"], "missing.parquet"),
        (["log.parquet", "--user-field", "who"], "--user-field"),
        (["log.parquet", "--time-field", "item"], "--user-field, --item-field and --time-field must name three"),
        (["log.parquet", "--output", "taken.avro"], "--output"),
        (["log.parquet", "--output", "x" * 250 + ".avro"], "File name too long"),
        (["log.parquet", "--output", "same.jsonl", "--dead-letter", "./same.jsonl"], "name the same file"),
        (["log.parquet", "--max-items-per-user", "0"], "--max-items-per-user"),
        (["log.parquet", "--noise-key-file", "open.key"], "chmod"),
        (["numbers.parquet"], "--time-format"),
        (["broken.parquet"], "broken.parquet"),
    ],
)
def test_errors_are_one_line_that_names_the_remedy(folder, words, named):
    (folder / "taken.avro").write_text("")
    numbers = pa.table({"user": ["a"], "item": ["b"], "timestamp": [START]})
    pq.write_table(numbers, folder / "numbers.parquet")
    content = bytearray((folder / "log.parquet").read_bytes())
    content[40:400] = b"\xff" * 360  # the first pages; the footer, which the check at the start reads, is whole
    (folder / "broken.parquet").write_bytes(content)
    for name, size, mode in (("short.key", 31, 0o600), ("open.key", 32, 0o644)):
        (folder / name).write_bytes(b"k" * size)
        (folder / name).chmod(mode)
    output = [] if "--output" in words else ["--output", "report.avro"]
    budget = [] if "--plan" in words else BUDGET
    before = sorted(path.name for path in folder.iterdir())
    assert named in error_line(shh("replay", *words, *budget, *output, cwd=folder))
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--direct_num_workers=2"], "--direct_num_workers is an option of Beam, and needs --runner."),
        (["--runner=FlinkRunner"], "--runner needs --noise-key-file: workers need one noise key. Make one with"),
        (["--runner=X", "--noise-key-file", "k", "--state", "s"], "--state cannot be used with --runner"),
        (["--runner=X", "--noise-key-file", "k", "--memory", "4GB"], "--memory cannot be used with --runner"),
        (["--runner=DirectRunner", "--noise-key-file", "k", "--dead-letter", "ftp://a/b"], "URLs ftp://... are not"),
    ],
)
def test_what_a_replay_on_a_runner_needs_is_told(folder, words, said):
    words = ["replay", "log.parquet", *IN_LOOKS, "--output", "report.jsonl", *words]
    assert said in error_line(shh(*words, cwd=folder))
    assert not (folder / "report.jsonl").exists()


def test_a_log_without_an_event_in_the_range_is_not_submitted(folder):
    later = [str(word).replace("2026", "2031") for word in IN_LOOKS]
    words = ["--noise-key-file", key_file(folder), "--runner=DirectRunner", "--output", "report.jsonl"]
    ended = shh("replay", "log.parquet", *later, *words, cwd=folder)
    assert ended.returncode == 4, ended.stderr
    assert not (folder / "report.jsonl").exists()


# A known domain.

ITEMS = [*(f"heavy-{hour}" for hour in (0, 1, 3)), "light", *(f"nobody's-{number}" for number in range(100))]


@pytest.mark.parametrize("mode", ["hits", "looks"])
def test_items_of_the_list_are_found_and_others_are_left_out(folder, mode):
    (folder / "items.txt").write_text("\n".join(ITEMS))
    words = (*IN_ROUNDS, *words_of_mode(mode)) if mode == "looks" else BUDGET
    header, records, _, said = replayed(folder, *words, "--public-items", "items.txt")
    # An item that nobody holds is named in about one run of twenty; these three hours never fail.
    found = items_by_window(records)
    for hour in (0, 1, 3):
        assert f"heavy-{hour}" in found.pop(f"2026-01-01T0{hour}:00:00Z")
    assert sum(map(len, found.values())) <= 2
    assert header["plan"]["public_items"] == {"size": len(ITEMS), "fingerprint": PublicItems.of_ids(ITEMS).fingerprint}
    assert "open" not in header["plan"]["shares"], "no budget is kept for items that one user holds alone"
    assert f"0 outside --start .. --end skipped, {MANY} of other items than --public-items skipped" in said


def test_a_list_that_does_not_fit_the_plan_is_refused_before_anything_is_read(folder):
    (folder / "items.txt").write_text("\n".join(ITEMS))
    (folder / "others.txt").write_text("\n".join(ITEMS[1:]))
    for name, options in (("open", []), ("known", ["--public-items", "items.txt"])):
        made = shh("plan", *BUDGET, *options, "--output", f"{name}.json", cwd=folder)
        assert made.returncode == 0, made.stderr
    known, opened, missing = ["--plan", "known.json"], ["--plan", "open.json"], ["--public-items", "missing.txt"]
    for words, said in (
        (known, "the plan has 104 public items. Give the list of them with --public-items."),
        ([*opened, "--public-items", "items.txt"], "the plan has no public items. Leave --public-items out"),
        ([*known, "--public-items", "others.txt"], "the list (103 items) is not that of the plan (104 items)"),
        ([*known, *missing], "missing.txt cannot be read: No such file or directory"),
        ([*BUDGET, *missing], "missing.txt cannot be read: No such file or directory"),
    ):
        assert said in error_line(shh("replay", "log.parquet", *words, "--output", "report.jsonl", cwd=folder))
    assert not (folder / "report.jsonl").exists()


def test_the_page_comes_with_the_report_and_never_takes_it_back(folder):
    (folder / "titles.csv").write_text("item,title\nheavy-5,The great race\n")
    page = ("--titles", "titles.csv", "--time-zone", "Europe/Berlin", "--html", "page.html")
    for words, said in (
        (("--html", "page.txt"), "--html must end in .html or .htm"),
        (("--html", "no/page.html"), "The folder does not exist"),
        (("--html", "page.html", "--titles", "no.csv"), "--titles no.csv cannot be read"),
        (("--titles", "no.csv"), "--titles no.csv cannot be read"),
    ):
        done = shh("replay", "log.parquet", *BUDGET, "--output", "report.avro", *words, cwd=folder)
        assert done.returncode in (1, 2)
        assert said in done.stderr
        assert not (folder / "report.avro").exists(), "nothing is spent on a page that cannot be"
    done = shh("replay", "log.parquet", *BUDGET, "--output", "report.avro", *page, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "start (Europe/Berlin)" in done.stdout
    assert [done.stdout.count(name) for name in ("heavy-5", "The great race")] == [0, 1]
    assert done.stderr.endswith("Page written to page.html.\n")
    assert shh("show", "report.avro", *page[:-1], "shown.html", cwd=folder).returncode == 0
    assert (folder / "page.html").read_text() == (folder / "shown.html").read_text()
    assert "The great race" in (folder / "page.html").read_text()
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1)); "
    program = full + "from dp_transforms.cli.main import main; main()"
    words = ("replay", "log.parquet", *BUDGET, "--output", "second.avro", "--html", "second.html")
    done = shh_process.run_python("-c", program, *words, cwd=folder)
    assert (done.returncode, (folder / "second.html").exists()) == (1, False)
    assert "the report is published, and valid. Only its page was not written: cannot write second.html" in done.stderr
    assert done.stderr.endswith("budget again: shh show second.avro --html second.html\n")
    assert shh("show", "second.avro", cwd=folder).returncode == 0
