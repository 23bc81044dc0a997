"""What the published pages of studies say that they cost."""

import json
import re
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
LIMIT = 3 * 2 * 3600
"""Seconds: three hours of two cores."""


def test_the_pages_of_representations_fit_into_three_hours_of_two_cores() -> None:
    costs = {
        path.parent.name: json.loads(path.read_text(encoding="utf-8"))["times"]["processor"]
        for path in STUDIES.glob("godfrey-*/results.json")
    }
    assert len(costs) > 10
    assert all(cost is not None for cost in costs.values()), costs
    total = sum(costs.values())
    assert total < LIMIT
    told = re.search(r"together they take (\d+) minutes of\s+one core", (STUDIES / "index.md").read_text("utf-8"))
    assert told is not None
    assert abs(int(told[1]) - total / 60) <= 1
