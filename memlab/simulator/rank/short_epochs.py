"""Short epochs: each DataLoader yields its first batches, the largest of the epoch, and one more; few steps run whole.

The script's own code runs these batches, then what it does at the end of an epoch and of training: evaluation, saving.
Nothing of it is changed. An evaluation keeps all batches where its memory grows from batch to batch (logits that are
kept), because the last one then decides. The epoch ends where a loop of the script does that counts its batches
(loop_end.py).
"""

import os
from collections.abc import Generator, Iterator
from itertools import chain, count, islice, pairwise
from math import lcm
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from memlab.core.sizes import MIB
from memlab.meters import import_hook
from memlab.meters.phases import EVALUATE, SAVE
from memlab.meters.rank_file import rank_number
from memlab.meters.session import Session
from memlab.simulator.rank.loop_end import LoopEnd
from memlab.simulator.rank.more_steps import MORE_STEPS, MoreSteps
from memlab.simulator.rank.read_ahead import read_ahead
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.simulation import SEED
from memlab.simulator.trace.epoch_batches import EpochOrder, ReadAhead, ShortEpoch, Window, dearest_windows

ORDINARY_STEPS = 2
"""Optimizer steps at the beginning of an epoch: the one that makes the optimizer's states, and one that finds them."""

ORDINARY_EVALUATION = 4
"""Batches at the beginning of an evaluation, enough to see whether its memory grows."""

MOST_STEPS_RUN_WHOLE = 6
"""A training of at most so many optimizer steps is run whole: a short epoch has up to seven steps itself."""

MOST_STEPS = 16
"""Optimizer steps without a new loader after which a script is stopped: a loop that counts its steps takes longer."""

TRAINING, EVALUATION = "training", "evaluation"


class ShortEpochs:
    """Shortens the epochs of a script. What was read and chosen is appended to ``trace.epochs``."""

    def __init__(self, session: Session, recorder: Recorder):
        self._session, self._recorder, self._trace = session, recorder, recorder.trace
        self._seen: set[tuple] = set()
        self._evaluated: dict[tuple, list] = {}  # batches of first evaluations, which the second ones give, too
        self._epoch_is_over = False
        self._more = MoreSteps(session, recorder.trace)
        self._epochs_begun = 0  # of training
        self._is_counted = False  # a loop of the script ends before its loader
        self._steps_of_epochs: list[int | None] = []  # that the script would make; None: not known

    def install(self) -> None:
        """Shorten the loaders that are made from now on, and let the session stop a script that goes on without."""
        self._session.last_step = MOST_STEPS
        self._session.callbacks.goes_on = self._more.goes_on
        self._shorten(_SingleProcessDataLoaderIter)
        import_hook.after(
            import_hook.STATEFUL_LOADERS, lambda module: self._shorten(module._StatefulSingleProcessDataLoaderIter)
        )
        import_hook.after("transformers.trainer_callback", self._end_trainer_after_the_epoch)
        for name in ("lightning.pytorch", "pytorch_lightning"):
            import_hook.after(f"{name}.loops.training_epoch_loop", self._validate_after_the_epoch)

    def _shorten(self, iterator_class: Any) -> None:
        begin = iterator_class.__init__

        def begin_short(iterator: Any, loader: DataLoader, *state: Any) -> None:
            begin(iterator, loader, *state)
            own, fetcher = iterator._sampler_iter, iterator._dataset_fetcher
            iterator._sampler_iter = self._indices(loader, own, fetcher, LoopEnd())

        iterator_class.__init__ = begin_short

    def _end_trainer_after_the_epoch(self, module: ModuleType) -> None:
        """Make the last step of a short epoch Trainer's last: it then evaluates and saves as its arguments say."""
        callback = module.DefaultFlowCallback
        on_step_end = callback.on_step_end

        def on_last_step_end(callback: Any, args: Any, state: Any, control: Any, **options: Any) -> Any:
            if self._epoch_is_over:
                state.global_step = state.max_steps
            return on_step_end(callback, args, state, control, **options)

        callback.on_step_end = on_last_step_end

    def _validate_after_the_epoch(self, module: ModuleType) -> None:
        """Let Lightning validate at the end of a short epoch: it counts batches until the length of the loader."""
        loop_class = module._TrainingEpochLoop
        advance = loop_class.advance

        def advance_or_validate(loop: Any, data_fetcher: Any) -> None:
            try:
                advance(loop, data_fetcher)
            except StopIteration:
                if self._epoch_is_over and loop._should_check_val_epoch():
                    loop.val_loop.run()
                    loop.trainer.training = True
                raise

        loop_class.advance = advance_or_validate

    def _indices(self, loader: DataLoader, own: Iterator, fetcher: Any, end: LoopEnd) -> Iterator:
        """Yield the samples of each batch that the loader is to give. ``end``: of the loops that read it."""
        purpose = self._purpose()
        if purpose is None:
            yield from own
            return
        key = purpose, getattr(loader.dataset, "_fingerprint", id(loader.dataset))
        is_first = key not in self._seen
        self._seen.add(key)
        if purpose == EVALUATION:
            yield from self._of_evaluation(loader, own, fetcher, key, is_first)
            return
        self._epoch_is_over = False
        if is_first:
            self._session.last_step = None
        self._session.growth.steps_of_script = self._steps_of_script
        self._epochs_begun += 1
        is_whole = yield from self._of_training(loader, own, fetcher, end, is_first)
        self._epoch_is_over = not is_whole
        if is_first:
            self._session.last_step = self._session.steps_done + MOST_STEPS

    def _purpose(self) -> str | None:
        """What a loader is read for now. ``None``: neither training nor its evaluation."""
        session = self._session
        if session.evaluates:
            return EVALUATION
        if session.trains_now:
            return TRAINING
        return EVALUATION if session.is_active and session.step is not None else None

    # --- training

    def _of_training(
        self, loader: DataLoader, own: Iterator, fetcher: Any, end: LoopEnd, is_first: bool
    ) -> Generator[Any, None, bool]:
        """Yield the samples of each batch. Returns whether all of them were run, because they make few steps."""
        read = self._read(loader, own, fetcher, self._batches_of_trainer(loader)) if is_first else ReadAhead()
        steps_before, micro_before, shown = self._session.steps_done, self._session.micro_batches, []
        per_step = window = enough = 0  # batches; not known before the first optimizer step
        length = None if self._is_counted else _length(loader)
        is_whole = self._trainer is not None and self._trainer.state.max_steps <= MOST_STEPS_RUN_WHOLE
        for index in own:
            yield index
            shown.append(index)
            steps = self._session.steps_done - steps_before
            if steps and not window:
                per_step = max((self._session.micro_batches - micro_before) // steps, 1) * _together(loader)
                window = lcm(per_step, self._repeats(read))
                looked, enough = len(shown), window * (ORDINARY_STEPS if is_first else 1)
                if end.look() and is_first:  # the next look is a window later
                    enough = max(enough, -(-(looked + window) // window) * window)
            elif window and len(shown) == looked + window:
                left = end.batches_left(window)
                if left is not None and (length is None or len(shown) + left < length):
                    self._is_counted, length = True, len(shown) + left
                    read = read.first(length)
                    if read.indices and len(read.batches) < read.in_reach:  # time was up before: there are fewer now
                        read = self._read(loader, chain(shown, own), fetcher, length)
            if window and self._trainer is None and length is not None:
                is_whole = steps_before + -(-length // per_step) <= MOST_STEPS_RUN_WHOLE
            if window and (is_whole or len(shown) >= enough):
                break
        given = len(shown)
        if is_first and window and is_whole:
            whole = len(read.indices.get(rank_number(), read.batches))
            self._note(TRAINING, read=read, given=max(given, whole), per_step=per_step, is_whole=True)
        elif is_first and window:
            chosen = dearest_windows(read.batches, rank_number(), given, window, self._recorder.sizes_follow_values)
            in_steps = {"first_step": steps_before + given // per_step + 1, "steps": window // per_step}
            self._note(TRAINING, read=read, given=given, dearest=chosen, per_step=per_step, **in_steps)
            behind = self._behind(read, given, chosen, window)
            smaller_end = self._smaller_end(read, behind + window, chosen, window)
            is_only = self._epochs_begun == 1 and given % window == 0
            first_ones = [(rank_number(), first) for first in range(0, given, window)]
            ran = [*first_ones, *_places(chosen), (rank_number(), behind), *_places(smaller_end)]
            self._trace.order = (
                self._order(loader, read, ran, given, window, per_step, steps_before) if is_only else None
            )
            yield from self._windows(chosen, read, own, fetcher, given, window)
            skipped = behind - given if read.indices else 0
            last = list(islice(own, skipped, skipped + window))  # finds what the dearest left in the allocator
            yield from last
            yield from self._windows(smaller_end, read, own, fetcher, given, window)
            run = given + len(last) + window * len(chosen + smaller_end)
            yield from self._more.repeated(last, (length or run + window * MORE_STEPS) - run)
        if is_whole:
            yield from own
        self._steps_of_epochs.append(None if length is None or not per_step else length // per_step)
        return is_whole

    def _order(
        self, loader: DataLoader, read: ReadAhead, ran: list, given: int, window: int, per_step: int, steps_before: int
    ) -> EpochOrder | None:
        """Describe the whole epoch. ``ran``: rank and first batch of each window that runs."""
        every, trainer = None, self._trainer
        if trainer is not None:
            schedule = (EVALUATE, "eval_strategy", "eval_steps"), (SAVE, "save_strategy", "save_steps")
            in_steps = [each for each in schedule if getattr(trainer.args, each[1], None) == "steps"]
            every = {phase: each for phase, _, name in in_steps if (each := int(getattr(trainer.state, name) or 0))}
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        facts = {
            "steps": window // per_step,
            "steps_before": steps_before,
            "given": given // window,
            "every": every,
            "is_random": getattr(sampler, "generator", self) is None and torch.initial_seed() == SEED,
            "labels_matter": self._recorder.sizes_follow_values,
        }
        return EpochOrder.of(read, rank_number(), window, ran, **facts)

    def _behind(self, read: ReadAhead, given: int, chosen: list[Window], window: int) -> int:
        """Return the first batch of the ordinary window that runs after the chosen ones, and is none of them."""
        if chosen and not read.indices:  # a stream has gone on
            return chosen[-1].first + window
        taken = {each.first for each in chosen if each.dearest.rank == rank_number()}
        return next(first for first in count(given, window) if first not in taken)

    @property
    def _trainer(self) -> Any:
        """The Trainer that runs and knows its last step; ``None``: there is none."""
        trainer = self._session.objects.trainer if self._session.trainer_runs else None
        return None if trainer is None or trainer.state.max_steps <= 0 else trainer

    def _steps_of_script(self) -> int | None:
        """Return the optimizer steps of all epochs that were begun."""
        known = [steps for steps in self._steps_of_epochs if steps is not None]
        return sum(known) if len(known) == len(self._steps_of_epochs) else None

    def _batches_of_trainer(self, loader: DataLoader) -> int | None:
        """The number of batches that a Trainer still uses, by its arguments."""
        if (trainer := self._trainer) is None:
            return None
        steps = trainer.state.max_steps - trainer.state.global_step
        return steps * trainer.args.gradient_accumulation_steps * _together(loader)

    def _repeats(self, read: ReadAhead) -> int:
        """How often the loader gives the same batch one after another: GRPO's, once for each use of its generations."""
        indices = read.indices.get(rank_number(), ())
        return next((at for at, index in enumerate(indices) if index != indices[0]), 1)

    # --- evaluation

    def _of_evaluation(self, loader: DataLoader, own: Iterator, fetcher: Any, key: tuple, is_first: bool) -> Iterator:
        if not is_first:
            yield from self._evaluated.pop(key, None) or islice(own, _together(loader))
            return
        given = self._evaluated[key] = []
        for index in self._of_first_evaluation(loader, own, fetcher):
            given.append(index)
            yield index

    def _of_first_evaluation(self, loader: DataLoader, own: Iterator, fetcher: Any) -> Iterator:
        size = _together(loader)
        read = self._read(loader, own, fetcher, None)
        allocated: list[int] = []
        for index in islice(own, ORDINARY_EVALUATION * size):
            allocated.append(self._recorder.allocator.now().allocated)
            yield index
        given = len(allocated)
        if given == ORDINARY_EVALUATION * size and _grows(
            [*allocated[size::size], self._recorder.allocator.now().allocated]
        ):
            self._note(EVALUATION, read=read, given=given, is_whole=True)
            yield from own
            return
        chosen = dearest_windows(read.batches, rank_number(), given, size, self._recorder.sizes_follow_values)
        self._note(EVALUATION, read=read, given=given, dearest=chosen)
        yield from self._windows(chosen, read, own, fetcher, given, size)
        yield from self._windows(self._smaller_end(read, given, chosen, size), read, own, fetcher, given, size)

    # --- both

    def _read(self, loader: DataLoader, own: Iterator, fetcher: Any, most: int | None) -> ReadAhead:
        """Read the epoch ahead, also for the ranks that this one stands for: all but the first are equal."""
        rank, world_size = rank_number(), int(os.environ.get("WORLD_SIZE", 1))
        reads_for_all = hasattr(loader, "_memlab_together")
        ranks = [rank] if rank == 0 or reads_for_all else range(1, world_size)
        return read_ahead(loader, own, fetcher, rank, ranks, most)

    def _windows(
        self, chosen: list[Window], read: ReadAhead, own: Iterator, fetcher: Any, given: int, size: int
    ) -> Iterator:
        for window in chosen:
            if read.indices:
                yield from read.indices[window.dearest.rank][window.first : window.first + size]
            else:
                try:
                    for index in islice(own, max(window.first - given, 0)):
                        fetcher.fetch(index)
                except StopIteration:  # a stream that is shorter than when it was read ahead
                    return
                yield from islice(own, size)
                given = window.first + size

    def _smaller_end(self, read: ReadAhead, least: int, chosen: list[Window], size: int) -> list[Window]:
        """Return the last window of the epoch if its last batch has fewer samples than the first batch. The tensors of
        such a batch that have less than 1 MiB need small segments, which no other batch may have needed.

        ``least``: first batch of the first window that has not run. The ``chosen`` windows have run, too.
        """
        rank, samples = rank_number(), read.indices.get(rank_number(), ())
        first = len(samples) - size
        batches = [each for each in read.batches if each.rank == rank and each.index >= first]
        is_new = first % size == 0 and first >= least and (rank, first) not in _places(chosen)
        if not is_new or len(batches) < size or not all(isinstance(samples[each], list | tuple) for each in (0, -1)):
            return []
        return [Window(batches[-1], first)] if len(samples[-1]) < len(samples[0]) else []

    def _note(self, purpose: str, **facts: Any) -> None:
        """Append what was read and chosen to the trace. ``facts``: those of :class:`ShortEpoch`."""
        self._trace.epochs.append(ShortEpoch(purpose, rank_number(), **facts).to_json())


def _places(windows: list[Window]) -> list[tuple[int, int]]:
    """List rank and first batch of windows."""
    return [(each.dearest.rank, each.first) for each in windows]


def _length(loader: DataLoader) -> int | None:
    """Return the number of batches of an epoch; ``None``: of a stream, or of a sampler that does not know it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _together(loader: DataLoader) -> int:
    """How many batches of the loader make one for all ranks together: where accelerate dispatches them."""
    return getattr(loader, "_memlab_together", 1)


def _grows(allocated: list[int]) -> bool:
    """Whether the memory between batches grows with each of them."""
    return allocated[-1] - allocated[0] > MIB and all(a < b for a, b in pairwise(allocated))
