"""The batches of an epoch are read ahead in a copy of the process, as every rank's loader and collator make them."""

import random

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from memlab.simulator.rank import read_ahead as reading
from memlab.simulator.rank.read_ahead import _batch, _shapes, _spread, read_ahead

ROWS = [torch.full((5 + row % 3,), row) for row in range(24)]
ROWS[17] = torch.full((90,), 17)


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    random.random()
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def read(loader: DataLoader, rank: int = 0, ranks=(0,), most: int | None = None):
    iterator = _SingleProcessDataLoaderIter(loader)
    found = read_ahead(loader, iterator._sampler_iter, iterator._dataset_fetcher, rank, ranks, most)
    return found, iterator


def test_the_epoch_is_read_and_the_loader_and_all_random_states_are_as_before():
    loader = DataLoader(ROWS, batch_size=2, shuffle=True, collate_fn=padded)
    torch.manual_seed(3)
    random.seed(3)
    expected = [batch["input_ids"].tolist() for batch in loader], random.random(), torch.rand(1).item()
    torch.manual_seed(3)
    random.seed(3)
    found, iterator = read(loader)
    assert ([batch["input_ids"].tolist() for batch in iterator], random.random(), torch.rand(1).item()) == expected
    lengths = {batch.index: batch.shapes[0][1][1] for batch in found.batches}
    assert lengths == {index: len(batch[0]) for index, batch in enumerate(expected[0])}
    assert found.total == 12


def test_the_share_of_each_rank_is_read_with_its_own_samples():
    loader = DataLoader(ROWS, batch_size=2, sampler=DistributedSampler(ROWS, 3, 0, shuffle=False), collate_fn=padded)
    found, iterator = read(loader, 0, (0, 1, 2))
    (longest,) = (batch for batch in found.batches if batch.shapes[0][1][1] == 90)
    assert (longest.rank, longest.index) == (2, 2) and found.indices[2][2] == [14, 17]
    assert len(found.batches) == 12 and list(iterator._sampler_iter) == found.indices[0]

    batches = BatchSampler(RandomSampler(ROWS), 2, False)
    shares = DataLoader(ROWS, batch_sampler=BatchSamplerShard(batches, 2, 1), collate_fn=padded)
    indices = read(shares, 1, (0, 1))[0].indices
    assert sorted(sample for batches in indices.values() for batch in batches for sample in batch) == list(range(24))


def test_reading_is_bounded_over_all_ranks_and_the_total_is_true(monkeypatch):
    loader = DataLoader(ROWS, batch_size=1, sampler=DistributedSampler(ROWS, 8, 1, shuffle=False), collate_fn=padded)
    monkeypatch.setattr(reading, "MOST_BATCHES", 7)
    found, _ = read(loader, 1, range(1, 8))
    assert (len(found.batches), found.in_reach, found.total) == (7, 7, 21)
    assert {rank: len(batches) for rank, batches in found.indices.items()} == {1: 3, 2: 3, 7: 1}
    assert (found.ranks_read, found.ranks, found.is_shared) == (3, 7, True)
    monkeypatch.setattr(reading, "MOST_SECONDS_OF_INDICES", 0.0)
    assert list(read(loader, 1, range(1, 8))[0].indices) == [1]
    monkeypatch.setattr(reading, "MOST_SECONDS", -1.0)
    found, _ = read(loader, 1, range(1, 8))
    assert (list(found.batches), found.total, found.failure) == ([], 21, None)


def test_the_batches_that_the_script_can_use_are_the_total(monkeypatch):
    loader = DataLoader(ROWS, batch_size=1, sampler=DistributedSampler(ROWS, 2, 0), collate_fn=padded)
    assert read(loader, 0, (0, 1), most=5)[0].total == 10

    class Endless(torch.utils.data.Sampler):
        def __iter__(self):
            return iter(lambda: 3, None)

    monkeypatch.setattr(reading, "MOST_BATCHES", 7)
    found, _ = read(DataLoader(ROWS, sampler=Endless(), collate_fn=padded))
    assert (len(found.batches), found.total) == (7, None)


class Lines(IterableDataset):
    def __init__(self, path):
        self.file = path.open()

    def __iter__(self):
        return (torch.full((int(line),), 1) for line in self.file)


def test_a_stream_is_read_and_its_file_is_put_back(tmp_path):
    (tmp_path / "lengths").write_text("".join(f"{3 + row % 4}\n" for row in range(20_000)))
    loader = DataLoader(Lines(tmp_path / "lengths"), batch_size=4, collate_fn=padded)
    found, iterator = read(loader, most=50)
    assert (len(found.batches), found.indices, found.total) == (50, {}, 50)
    assert sum(len(batch["input_ids"]) for batch in iterator) == 20_000


def test_of_a_stream_that_goes_on_the_total_is_not_known(monkeypatch, tmp_path):
    (tmp_path / "lengths").write_text("3\n" * 40)
    monkeypatch.setattr(reading, "MOST_BATCHES", 7)
    found, _ = read(DataLoader(Lines(tmp_path / "lengths"), batch_size=4, collate_fn=padded))
    assert (len(found.batches), found.total) == (7, None)


def test_a_collator_that_fails_is_named_and_harms_nothing():
    def broken(rows):
        raise KeyError("input_ids")

    loader = DataLoader(ROWS, batch_size=2, collate_fn=broken)
    assert read(loader)[0].failure == "KeyError: 'input_ids'"


def test_batches_are_described_by_their_padded_shapes_and_samples_that_are_not_collated_by_their_longest():
    batch = {"chosen": {"input_ids": torch.ones(2, 7)}, "meta": ["a", "bcd"]}
    assert dict(_shapes("", batch)) == {"chosen.input_ids": (2, 7), "meta": (2, 3)}
    prompts = [{"prompt": [{"role": "user", "content": "hello"}]}, {"prompt": [{"role": "user", "content": "hi"}]}]
    assert dict(_shapes("", prompts)) == {"prompt": (2, 9)}
    assert dict(_shapes("", (torch.ones(3, 4), torch.ones(3)))) == {"0": (3, 4), "1": (3,)}


def test_packed_batches_of_one_length_are_alike_whatever_samples_they_hold():
    ids = torch.ones(1, 64, dtype=torch.long)
    two, five = ({"input_ids": ids, "labels": ids, "cu_seq_lens_q": torch.arange(n)} for n in (3, 6))
    assert _batch(0, 0, two).shapes == _batch(0, 0, five).shapes == (("input_ids", (1, 64)), ("labels", (1, 64)))
    assert _batch(0, 0, {"labels": torch.tensor([[-100, 5, 7]])}).labels == 2


def test_reading_is_spread_over_the_epoch_from_the_first_batch_on():
    places = list(_spread(range(1000)))
    assert sorted(places) == list(range(1000))
    assert all(any(tenth <= place // 100 < tenth + 1 for place in places[:50]) for tenth in range(10))
    assert list(_spread([])) == [] and list(_spread([7])) == [7]
