"""Each fault of tests/planted.toml can be planted; `python -m tests.planted` says whether it is found."""

import subprocess
import sys

from tests.planted import ROOT, faults


def test_each_fault_fits_the_code_and_has_its_tests():
    listed = faults()
    assert [f"{fault.name}: {why}" for fault in listed if (why := fault.misfit())] == []
    assert len({fault.name for fault in listed}) == len(listed) > 40


def test_no_fault_is_found_for_a_name_that_is_not_there(tmp_path):
    """Nor for what is not Python: then any test would fail."""
    for number, fault in enumerate(faults()):
        if fault.file.endswith(".py"):
            faulty = (ROOT / fault.file).read_text().replace(fault.old, fault.new)
            (tmp_path / f"fault_{number}.py").write_text(f"# {fault.name}\n{faulty}")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--quiet", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == ""
