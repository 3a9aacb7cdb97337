"""The list of prices that ships."""

import csv
from pathlib import Path

import pytest

from memlab.files.conf_files import conf_dir, known_gpu, list_price, option_values


def test_every_price_is_of_a_known_gpu_and_says_where_and_when_it_was_read():
    lines = Path(conf_dir(), "hardware", "prices.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert rows
    for row in rows:
        assert known_gpu(row["gpu"])["gpu"] == row["gpu"]
        assert all(row[key] for key in ("provider", "date", "source"))
        assert list_price(row["gpu"], int(row["machine_gpus"])) is not None


def test_a_machine_that_is_rented_whole_costs_more_than_the_gpus_that_are_used():
    price = list_price("NVIDIA A100-SXM4-80GB", 4)
    assert price is not None and (price.provider, price.machine_gpus) == ("Lambda", 8)
    assert [price.machines(gpus) for gpus in (4, 8, 9)] == [1, 1, 2]


@pytest.mark.parametrize("gpu", ["", "CPU", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090"])
def test_a_gpu_that_is_not_listed_has_no_price(gpu):
    assert list_price(gpu, 1) is None


def test_an_option_has_its_price_without_hydra():
    assert option_values("hardware", "h200_x8")["usd_per_gpu_hour"] == 3.5
    assert "usd_per_gpu_hour" not in option_values("hardware", "rtx4090_x1")
