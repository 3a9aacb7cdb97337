"""A loop that counts its batches says how many of them it uses."""

from types import SimpleNamespace

import pytest

from memlab.simulator.rank.loop_end import LoopEnd
from memlab.simulator.trace.epoch_batches import CollatedBatch, ReadAhead

EVERY = 2
"""Batches of an optimizer step: the looks are that far apart."""


class Loader:
    """Gives 100 batches. Looks when it is asked for the third and for the fifth one. ``used``: those that a loop has
    used, as the loop appends them; ``has_ends``: what the first look finds; ``said``: how many the loop uses in all, by
    the second look."""

    def __init__(self, ahead: int = 0):
        self.used: list[int] = []
        self.said: int | None = None
        self.has_ends = False
        self._ahead = ahead

    def __iter__(self):
        return self._batches(LoopEnd())

    def _batches(self, end):
        """Give the batches, each of them so many batches after it was fetched."""
        waiting = []
        for number in range(100):
            if number == EVERY:
                self.has_ends = end.look()
            if number == 2 * EVERY and (left := end.batches_left(EVERY)) is not None:
                self.said = number + left
            waiting.append(number)
            if len(waiting) > self._ahead:
                yield waiting.pop(0)


def top(loader, args):
    for step, batch in enumerate(loader):
        if step >= args.most:
            break
        loader.used.append(batch)


def bottom(loader, args):
    for step, batch in enumerate(loader, start=1):
        loader.used.append(batch)
        if step == args.most:
            return


def own_counter(loader, args):
    samples = 0
    for batch in loader:
        loader.used.append(batch)
        samples += 4
        if samples > args.samples - 4:
            print("done")
            break


def optimizer_steps(loader, args):
    steps = 0
    for number, batch in enumerate(loader):
        loader.used.append(batch)
        if number % EVERY:
            steps += 1
        if args.most is not None and steps >= args.most:
            break


def countdown(loader, args):
    left = args.most
    for batch in loader:
        left -= 1
        loader.used.append(batch)
        if left <= 0 or args.most < 1:
            break


def endless(loader, args):
    batches, args.step = iter(loader), 0
    while True:
        loader.used.append(next(batches))
        args.step += 1
        if args.step >= args.most:
            break


def over_a_range(loader, args):
    batches = iter(loader)
    for _ in range(args.most):
        loader.used.append(next(batches))


def in_a_generator(loader, args):
    def doubled():
        for batch in loader:
            yield 2 * batch

    for step, batch in enumerate(doubled()):
        loader.used.append(batch)
        if args.most and step + 1 >= args.most:
            break


def in_groups(loader, args):
    def pairs():
        group = []
        for batch in loader:
            group.append(batch)
            if len(group) == EVERY:
                yield group
                group = []

    for number, group in enumerate(pairs()):
        loader.used += group
        if number + 1 >= args.most:
            break


def in_each_epoch(loader, args):
    for _ in range(2):
        loader.used.clear()
        for step, batch in enumerate(loader):
            if step >= args.most:
                break
            loader.used.append(batch)


LOOPS = [top, bottom, own_counter, optimizer_steps, countdown, endless, over_a_range, in_a_generator, in_groups]


@pytest.mark.parametrize("loop", [*LOOPS, in_each_epoch])
@pytest.mark.parametrize("most", [7, 20])
def test_the_batches_that_a_loop_uses_are_known_before_its_end(loop, most):
    loader = Loader()
    loop(loader, SimpleNamespace(most=most, samples=4 * most))
    assert loader.said == len(loader.used) < 100


@pytest.mark.parametrize("loop", [top, bottom, own_counter])
def test_a_batch_that_is_fetched_ahead_counts(loop):
    loader = Loader(ahead=1)
    loop(loader, SimpleNamespace(most=20, samples=80))
    assert loader.said == len(loader.used) + 1 == 21


def by_a_value(loader, args):
    for step, batch in enumerate(loader):
        loader.used.append(batch)
        if batch > 10 and step > args.most:
            break


def on_another_rank(loader, args):
    rank = 1
    for step, batch in enumerate(loader):
        loader.used.append(batch)
        if rank == 0 and step > args.most:
            break


def in_a_chain(loader, args):
    for step, batch in enumerate(loader):
        loader.used.append(batch)
        if args.most and 90 < step < args.most:
            break


def by_a_call(loader, args):
    for step, batch in enumerate(loader):
        loader.used.append(batch)
        if step >= int(args.most):
            break


def goes_on_in_the_next_epoch(loader, args):
    batches = iter(loader)
    for _ in range(2):
        for step, batch in enumerate(batches):
            loader.used.append(batch)
            if step >= args.most:
                break


def epochs_alone_are_counted(loader, args):
    for _ in range(args.most):
        for batch in loader:
            loader.used.append(batch)


def saves(loader, args):
    for step, batch in enumerate(loader):
        loader.used.append(batch)
        if step == args.most:
            args.saved = True


@pytest.mark.parametrize(
    "loop",
    [by_a_value, on_another_rank, in_a_chain, by_a_call, goes_on_in_the_next_epoch, saves, epochs_alone_are_counted],
)
def test_a_loop_that_does_not_say_its_end_has_none(loop):
    loader = Loader()
    loop(loader, SimpleNamespace(most=20, samples=80))
    assert loader.said is None


def test_a_loop_over_whole_epochs_needs_no_second_look():
    loader = Loader()
    epochs_alone_are_counted(loader, SimpleNamespace(most=3))
    assert not loader.has_ends and len(loader.used) == 300


def test_the_first_batches_of_each_rank_are_those_that_were_read_of_them():
    batches = [CollatedBatch(rank, index, (("ids", (2, 8)),)) for rank in (0, 1) for index in (0, 3, 5)]
    read = ReadAhead(batches, {0: list("abcdef"), 1: list("ghijkl")}, total=24, ranks=4, is_shared=True)
    first = read.first(4)
    assert [(batch.rank, batch.index) for batch in first.batches] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert first.indices == {0: list("abcd"), 1: list("ghij")} and first.total == 16


def test_a_stream_is_known_whole_where_all_batches_that_are_used_were_read():
    stream = ReadAhead([CollatedBatch(0, index, ()) for index in range(5)])
    assert (stream.first(5).total, stream.first(4).total, stream.first(6).total) == (5, 4, None)
