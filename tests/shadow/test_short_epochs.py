"""Without --steps a predicted script has the peak of its whole epoch, from a few of its steps."""

import json
import os
import sys
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.prediction.memory.replay import replay
from memlab.prediction.memory.whole_epoch import with_whole_epoch
from memlab.prediction.run_command import LOG, simulate
from memlab.runs.folder import RunFolder
from memlab.simulator.allocator import Options
from memlab.simulator.simulation import Node
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.trace_format import Trace
from tests.shadow.one_rank import run_script

pytestmark = [pytest.mark.shadow, pytest.mark.long(20)]

NODE = Node("NVIDIA H200", 1, 139 << 30)
ALL_STEPS = 100_000


def run(folder: Path, lines: str, steps: int | None) -> tuple[Trace, str, dict]:
    """Return the trace of a script, what it printed, and what the meters found in it."""
    folder.mkdir()
    (folder / "script.py").write_text(lines)
    words = [sys.executable, str(folder / "script.py")]
    trace = simulate(words, NODE, folder, steps, os.environ).traces[0]
    return trace, (folder / LOG).read_text(), json.loads((folder / "rank0.json").read_text())


def steps(folder: Path) -> list[dict]:
    """The steps of a script, as the meters saw them."""
    return [json.loads(line) for line in (folder / "rank0.steps.jsonl").read_text().splitlines()]


def peaks(meters: dict) -> dict[str, int]:
    """The peak of each phase, without those that a first step makes at its beginning alone."""
    return {phase: figures["peak_allocated_bytes"] for phase, figures in meters["phases"].items()}


LOOP = """
import random
import torch
from torch.utils.data import DataLoader

def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
train = [torch.full((300 if row == 57 else 10 + row % 20,), 3) for row in range(160)]
test = [torch.full((200 if row == 99 else 12,), 3) for row in range(120)]
for epoch in range(2):
    model.train()
    for number, batch in enumerate(DataLoader(train, batch_size=4, shuffle=True, collate_fn=padded, num_workers=2)):
        print("batch", tuple(batch.shape), random.random() < 2, torch.rand(1).item())
        model(batch.cuda()).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(test, batch_size=8, collate_fn=padded):
            model(batch.cuda())
torch.save(model.state_dict(), "/dev/null")
print("saved")
"""


def test_a_loop_of_ones_own_with_its_longest_sample_far_behind_and_a_longer_evaluation(tmp_path):
    short, printed, meters = run(tmp_path / "short", LOOP, None)
    _, all_printed, all_meters = run(tmp_path / "all", LOOP, ALL_STEPS)
    assert "saved" in printed.splitlines() and meters["attached"]["ended"] == "finished"
    for figure in ("peak_allocated_bytes", "peak_active_bytes"):
        assert meters[figure] == all_meters[figure]
    for phase in ("forward", "backward", "optimizer_step", "first_evaluate", "evaluate"):
        assert peaks(meters)[phase] == peaks(all_meters)[phase], phase
    assert printed.splitlines()[:4] == all_printed.splitlines()[:4]  # batches and random numbers
    assert meters["attached"]["steps"] < all_meters["attached"]["steps"] / 5
    training, evaluation = short.epochs
    dearest = max(training["dearest"], key=lambda batch: batch["shapes"][""])
    assert dearest["shapes"] == {"": [4, 300]}
    rows = steps(tmp_path / "all")
    highest = max(rows[:20], key=lambda row: row["peak_allocated_bytes"])
    assert (
        dearest["step"] == highest["step"] and dearest["run_as_step"] == meters["attached"]["phases"]["forward"]["step"]
    )
    assert [batch["batch"] for batch in evaluation["dearest"]] == [13]


TRAINER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

def rows(number, longest):
    lengths = [longest if row == number * 2 // 3 else 12 + row % 30 for row in range(number)]
    return [{"input_ids": torch.ones(length, dtype=torch.long)} for length in lengths]

def collate(samples):
    ids = torch.nn.utils.rnn.pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    return {"input_ids": ids, "labels": ids}

model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2))
arguments = TrainingArguments("OUTPUT", per_device_train_batch_size=2, gradient_accumulation_steps=2,
    num_train_epochs=1, eval_strategy="steps", eval_steps=500, save_steps=500, report_to="none",
    remove_unused_columns=False, per_device_eval_batch_size=4, disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=rows(120, 400), eval_dataset=rows(60, 700), data_collator=collate)
trainer.train()
"""


def test_trainer_evaluates_and_saves_after_the_dearest_batch_as_at_its_end(tmp_path):
    short, _, meters = run(tmp_path / "short", TRAINER.replace("OUTPUT", f"{tmp_path}/a"), None)
    _, _, all_meters = run(tmp_path / "all", TRAINER.replace("OUTPUT", f"{tmp_path}/b"), ALL_STEPS)
    assert meters["attached"]["ended"] == "finished" and meters["attached"]["steps"] <= 5
    for phase in ("forward", "backward", "optimizer_step", "first_save"):
        assert peaks(meters)[phase] == pytest.approx(peaks(all_meters)[phase], rel=1e-4), phase
    assert meters["peak_allocated_bytes"] == pytest.approx(all_meters["peak_allocated_bytes"], rel=1e-4)
    training, evaluation = short.epochs
    assert (training["purpose"], evaluation["purpose"]) == ("training", "evaluation")
    *earlier, last = steps(tmp_path / "short")
    assert len(earlier) == max(batch["run_as_step"] for batch in training["dearest"])
    assert last["tokens"] < max(step["tokens"] for step in earlier)
    assert last["phases"]["forward"][1] == max(step["peak_reserved_bytes"] for step in earlier)


PLANNED = TRAINER.replace("eval_steps=500, save_steps=500", "eval_steps=3, save_steps=7").replace(
    "hidden_size=64, intermediate_size=128", "hidden_size=256, intermediate_size=1024"
)


def whole_peaks(trace: Trace) -> tuple[int, int]:
    """The peaks of allocated and reserved memory, with the steps of the epoch that were left out."""
    found = replay(with_whole_epoch(trace), Options(), 1 << 50)
    return found.peak_allocated, found.peak_reserved


def test_evaluations_and_saves_between_the_steps_of_an_epoch_are_replayed_in_their_places(tmp_path):
    short, _, meters = run(tmp_path / "short", PLANNED.replace("OUTPUT", f"{tmp_path}/a"), None)
    every, _, _ = run(tmp_path / "all", PLANNED.replace("OUTPUT", f"{tmp_path}/b"), ALL_STEPS)
    assert short.order.every == {"evaluate": 3, "save": 7}
    assert whole_peaks(short) == whole_peaks(every)
    assert whole_peaks(short)[1] != meters["peak_reserved_bytes"]
    (training, *_) = with_whole_epoch(short).epochs
    assert training["steps_replayed"] == training["steps_of_epoch"] == len(every.steps) == 30


AHEAD = """
import torch
from torch.utils.data import DataLoader

def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

def ahead(loader):
    side, batch = torch.cuda.Stream(), None
    for rows in loader:
        with torch.cuda.stream(side):
            following = rows.cuda(non_blocking=True)
        if batch is not None:
            yield batch
        batch = following
    yield batch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
train = [torch.ones(3000 if row == 57 else 100 + row * 70 % 1300, 256) for row in range(96)]
for batch in ahead(DataLoader(train, batch_size=4, shuffle=True, collate_fn=padded)):
    model(batch).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_epoch_of_different_lengths_whose_batches_are_fetched_a_step_ahead_has_the_peaks_of_all_its_steps(tmp_path):
    short, _, meters = run(tmp_path / "short", AHEAD, None)
    every, _, _ = run(tmp_path / "all", AHEAD, ALL_STEPS)
    assert len(every.steps) == 24 and not short.order.is_random
    assert whole_peaks(short) == whole_peaks(every)
    assert whole_peaks(short)[1] > meters["peak_reserved_bytes"]


COUNTED = AHEAD.replace("for batch in ahead(", "for number, batch in enumerate(").replace(
    "padded)):", "padded)):\n    if number >= 9:\n        break\n    batch = batch.cuda()"
)


def test_a_loop_that_counts_its_steps_has_the_peaks_of_the_batches_that_it_reaches(tmp_path):
    short, _, _ = run(tmp_path / "short", COUNTED, None)
    counted, _, _ = run(tmp_path / "counted", COUNTED, ALL_STEPS)
    all_of_them, _, _ = run(tmp_path / "all", COUNTED.replace("number >= 9", "False"), ALL_STEPS)
    assert len(short.steps) < len(counted.steps) == 9
    assert (short.epochs[0]["batches"], short.epochs[0]["batches_read"]) == (9, 9)
    assert whole_peaks(short) == whole_peaks(counted) != whole_peaks(all_of_them)


def allocations(trace: Trace) -> list[Alloc]:
    return [event for event in trace.events if isinstance(event, Alloc)]


LEFT_OVER = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(torch.ones(8 * 20 + 3, 256, 256), batch_size=8, shuffle=True):
    model(batch.cuda()).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    for batch in DataLoader(torch.ones(8 * 6 + 2, 256, 256), batch_size=8):
        model(batch.cuda())
"""


def test_the_last_batch_with_the_samples_that_are_left_takes_small_segments_beside_the_large_ones(tmp_path):
    """Three samples make tensors of 768 KiB, those of the other batches have 2 MiB."""
    short, _, _ = run(tmp_path / "short", LEFT_OVER, None)
    every, _, _ = run(tmp_path / "all", LEFT_OVER, ALL_STEPS)
    even, _, _ = run(tmp_path / "even", LEFT_OVER.replace("20 + 3", "20").replace("6 + 2", "6"), ALL_STEPS)
    assert len(short.steps) == 4 < len(every.steps) == 21
    assert not any(epoch["dearest"] for epoch in short.epochs)
    assert whole_peaks(short) == whole_peaks(every)
    assert whole_peaks(every)[1] > whole_peaks(even)[1]
    five, _, _ = run(tmp_path / "five", LEFT_OVER.replace("6 + 2", "4 + 2"), None)  # batches of an evaluation
    assert five.epochs[1]["batches"] == 5 and any(event.nbytes == 2 * 256 * 256 * 4 for event in allocations(five))


ZIPPED = AHEAD.replace(
    "for batch in ahead(", "other = DataLoader(torch.ones(96, 256), batch_size=4)\nfor batch, same in zip("
).replace("padded)):", "padded), other):\n    batch = torch.cat([batch.flatten(0, 1), same]).cuda()")


def test_the_order_of_an_epoch_is_not_known_where_two_loaders_are_read_at_once(tmp_path):
    trace, _, _ = run(tmp_path / "zipped", ZIPPED, None)
    assert trace.order is None and len(trace.epochs) == 2


def test_the_few_steps_of_a_training_are_all_run(tmp_path):
    for name, lines in {
        "trainer": TRAINER.replace("num_train_epochs=1", "max_steps=6"),
        "loop": LOOP.replace("range(160)", "range(24)"),
    }.items():
        short, _, _ = run(tmp_path / f"{name}_short", lines.replace("OUTPUT", f"{tmp_path}/{name}_a"), None)
        every, _, _ = run(tmp_path / f"{name}_all", lines.replace("OUTPUT", f"{tmp_path}/{name}_b"), ALL_STEPS)
        assert len(short.steps) == len(every.steps) == 6
        assert short.order is None and short.epochs[0]["is_run_whole"]
        assert whole_peaks(short) == whole_peaks(every)


KEPT = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(8, 512).cuda()).sum().backward()
optimizer.step()
model.eval()
with torch.no_grad():
    logits = [model(batch.cuda()) for batch in DataLoader(torch.ones(25_600, 512), batch_size=512)]
print(len(logits))
for step in range(10_000):
    model.train()(torch.ones(8, 512).cuda()).sum().backward()
    optimizer.step()
"""


def test_an_evaluation_that_keeps_its_results_is_run_whole_and_a_loop_without_a_loader_is_stopped(tmp_path):
    trace, printed, meters = run(tmp_path / "kept", KEPT, None)
    assert "50" in printed.splitlines() and trace.epochs[0]["is_run_whole"]
    assert (meters["attached"]["ended"], meters["attached"]["steps"]) == ("stopped", 16)


CHOICES = """
import torch
from transformers import MixtralConfig, MixtralForCausalLM

torch.manual_seed(0)
model = MixtralForCausalLM(MixtralConfig(vocab_size=1000, hidden_size=128, intermediate_size=2048, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, num_local_experts=8, experts_implementation="eager",
    eos_token_id=2, pad_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters())
ids = torch.ones(4, 16, dtype=torch.long, device="cuda")
ids = model.generate(ids, max_new_tokens=112)
print("length", ids.shape[1])
model(input_ids=ids, labels=ids).loss.backward()
kept = torch.rand(4096, 1024, device="cuda")
kept = kept[kept[:, 0] > 0.5]
chosen = torch.rand(2, 4096, device="cuda") > 0.5
chosen[:, -1] = True
counts = (chosen & chosen).long().sum(-1)
parts = torch.arange(4096, device="cuda").expand(2, 4096)[chosen].split(counts.tolist()) if chosen.any() else [[], []]
print("kept", *kept.shape, "in parts", *map(len, parts))
optimizer.step()
"""


def test_both_ends_of_a_generation_of_the_load_of_experts_and_of_a_selection_are_predicted(tmp_path):
    (tmp_path / "script.py").write_text(CHOICES)
    config, _ = compose_config(["mode=predict", "hardware=h200_x1"])
    words = [sys.executable, str(tmp_path / "script.py")]
    record = predict_command(words, config.hardware, RunFolder(tmp_path / "run"), None)
    generation, routing, selection = record.command["ranges"]
    assert [each["choice"] for each in record.command["ranges"]] == ["generation", "routing", "selection"]
    peak = record.ranks[0]["peak_allocated_bytes"]
    low, high = generation["peak_allocated_bytes"]
    assert low < high == peak  # all figures are for the longest
    assert peak in routing["peak_allocated_bytes"] and len(set(routing["peak_allocated_bytes"])) == 2
    assert selection["peak_allocated_bytes"][1] == peak

    def said(place):
        log = tmp_path / "run" / place / LOG
        return [line for line in log.read_text().splitlines() if line.startswith(("length", "kept"))]

    assert said(".") == ["length 128", "kept 4096 1024 in parts 4096 4096"]
    assert said("other_end_generation") == ["length 17", "kept 4096 1024 in parts 4096 4096"]
    assert said("other_end_selection") == ["length 128", "kept 0 1024 in parts 0 0"]


DISPATCHED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        return (torch.full((200 if row // 8 == 33 else 16,), 3) for row in range(504))

accelerator = Accelerator()
model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000))
optimizer = torch.optim.AdamW(model.parameters())
objects = [accelerator.process_index]
torch.distributed.broadcast_object_list(objects)
loader, model, optimizer = accelerator.prepare(DataLoader(Lines(), batch_size=4), model, optimizer)
for batch in loader:
    print("rank", objects[0], tuple(batch.shape))
    accelerator.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_stream_that_rank_0_dispatches_is_read_by_each_rank_itself(tmp_path):
    (tmp_path / "script.py").write_text(DISPATCHED)
    trace, printed = run_script(tmp_path, tmp_path / "script.py", rank=1)
    (dearest,) = trace.epochs[0]["dearest"]
    assert (dearest["step"], dearest["shapes"]) == (34, {"": [4, 200]})
    assert [line for line in printed.splitlines() if line.startswith("rank")][2] == "rank 1 (4, 200)"
