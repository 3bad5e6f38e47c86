"""docs/plan.schema.json, made from the records of a plan: `python -m tests.helpers.plan_schema` writes it."""

from __future__ import annotations

import json
import pathlib

from dp_transforms.plan.plan import Plan

FILE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "plan.schema.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(Plan.json_schema(), indent=1) + "\n")
