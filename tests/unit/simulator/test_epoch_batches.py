"""Which batches of an epoch need the most memory, by their shapes."""

from memlab.simulator.trace.epoch_batches import CollatedBatch, dearest_windows


def epoch(lengths: list[int], samples: int = 4, rank: int = 0) -> list[CollatedBatch]:
    return [CollatedBatch(rank, index, (("input_ids", (samples, length)),)) for index, length in enumerate(lengths)]


def chosen(batches: list[CollatedBatch], done: int = 2, window: int = 1, **options) -> list[tuple[int, int, int]]:
    windows = dearest_windows(batches, own_rank=0, done=done, window=window, **options)
    return [(each.dearest.rank, each.dearest.index, each.first) for each in windows]


def test_the_longest_batch_is_chosen_wherever_it_is():
    assert chosen(epoch([10] * 500 + [3112] + [12] * 500)) == [(0, 500, 500)]


def test_shapes_that_the_first_steps_have_shown_are_not_run_again():
    assert chosen(epoch([64] * 100)) == []
    assert chosen(epoch([64, 99, 64, 99])) == []


def test_a_step_is_run_whole_and_its_first_batch_counts_apart_because_it_meets_no_gradients():
    lengths = [10] * 40
    lengths[16], lengths[23] = 90, 80
    assert chosen(epoch(lengths), done=8, window=4) == [(0, 16, 16), (0, 23, 20)]


def test_the_shares_of_all_ranks_count():
    assert chosen(epoch([10] * 8) + epoch([10] * 5 + [70], rank=3)) == [(3, 5, 5)]


def test_long_batches_and_wide_ones_are_both_run():
    wide, long = (("input_ids", (64, 32)),), (("input_ids", (1, 1024)),)
    batches = [*epoch([8, 8]), CollatedBatch(0, 2, wide), CollatedBatch(0, 3, long)]
    assert chosen(batches) == [(0, 2, 2), (0, 3, 3)]


def test_the_longest_target_is_run_because_logits_follow_it():
    def batch(index: int, source: int, target: int) -> CollatedBatch:
        return CollatedBatch(0, index, (("input_ids", (2, source)), ("labels", (2, target))))

    batches = [batch(0, 5, 5), batch(1, 5, 5), batch(2, 900, 10), batch(3, 100, 300)]
    assert chosen(batches) == [(0, 2, 2), (0, 3, 3)]


def test_labels_count_where_the_program_makes_tensors_of_their_number():
    batches = [CollatedBatch(0, index, (("labels", (2, 8)),), labels=16 if index == 5 else 4) for index in range(9)]
    assert chosen(batches) == []
    assert chosen(batches, labels_matter=True) == [(0, 5, 5)]
