"""The commands with torch.compile: how far their predictions are from what H200s measured."""

import csv
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "results" / "commands" / "compiled.csv"


@pytest.mark.parametrize(
    ("figure", "most", "most_with_convolutions"), [("allocated", 0.0013, 0.0071), ("reserved", 0.0285, 0.0453)]
)
def test_predictions_are_as_near_as_the_page_says(figure, most, most_with_convolutions):
    with FILE.open() as file:
        rows = list(csv.DictReader(file))
    assert len({(row["command"], row["gpus"]) for row in rows}) == 13
    for row in rows:
        error = int(row[f"predicted_{figure}_bytes"]) / int(row[f"peak_{figure}_bytes"]) - 1
        assert abs(error) <= (most_with_convolutions if row["command"] == "compiled_resnet" else most)
