"""A memory snapshot of an H200, read and replayed: torch 2.11+cu130, two steps of a Llama of four layers, AdamW.

It was recorded from the first allocation on by ``_record_memory_history(context="all", stacks="all")``; only the
folders of its files were renamed.
"""

import gzip
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import line_of
from memlab.analyse.explain.snapshot import Entry, Frame, Snapshot, read_snapshot
from memlab.analyse.explain.snapshot_trace import BEFORE, OTHER, Marks, trace_of
from memlab.core.errors import RecordError
from memlab.core.grouping import grouped
from memlab.meters.owner import Owner
from memlab.prediction.memory.ledger import by_kind, moments
from memlab.simulator.allocator import CachingAllocator, RecordingAllocator
from memlab.simulator.trace.trace_format import Piece, Site, apply

RECORDED = Path(__file__).parents[3] / "data" / "memory_snapshot_h200.pickle.gz"


def written(tmp_path, content) -> Path:
    path = tmp_path / "rank0.memory_snapshot.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=4))
    return path


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return read_snapshot(written(tmp_path_factory.mktemp("h200"), gzip.decompress(RECORDED.read_bytes())))


def test_the_replay_holds_what_the_real_allocator_held_after_every_event(snapshot):
    measured = trace_of(snapshot, 0, 1)
    allocator = CachingAllocator(addresses=measured.segments)
    for event, reserved in zip(measured.trace.events, measured.reserved, strict=True):
        apply(event, allocator)
        assert allocator.reserved == reserved
    assert allocator.reserved == snapshot.reserved


def test_of_several_gpus_the_one_with_the_most_memory_is_read(tmp_path):
    def segment(device: int, nbytes: int) -> dict:
        return {"device": device, "address": device << 30, "stream": 0, "total_size": nbytes, "blocks": []}

    entries = [{"action": action, "addr": 0, "size": 6} for action in ("segment_alloc", "segment_free")]
    many = [{"action": "alloc", "addr": 0, "size": 1}] * 9
    traces = [many, entries, []]
    content = {"device_traces": traces, "segments": [segment(0, 5), segment(1, 2), segment(2, 9)]}
    found = read_snapshot(written(tmp_path, content))
    assert (found.device, found.reserved, dict(found.elsewhere)) == (1, 2, {0: 5})
    assert len(found.entries) == 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_history_without_its_beginning_is_replayed_from_what_the_allocator_held_then(snapshot, share):
    kept = replace(snapshot, entries=snapshot.entries[int(share * len(snapshot.entries)) :])
    measured = trace_of(kept, 0, 1)
    allocator = RecordingAllocator(addresses=measured.segments, before=measured.before)
    last = len(measured.trace.events) - 1
    for event, reserved in zip(measured.trace.events, measured.reserved, strict=True):
        apply(event, allocator)
        assert allocator.reserved == reserved
    signs = {"segment_alloc": 1, "segment_free": -1}
    assert sum(signs.get(action.name, 0) * action.nbytes for action in allocator.actions) == snapshot.reserved
    again = RecordingAllocator(addresses=measured.segments, before=measured.before)
    assert moments(measured.trace, {last}, again)[last].slack == snapshot.slack


def test_ties_go_to_the_lowest_address_and_a_replay_knows_where_an_h200s_driver_places_segments(snapshot):
    measured, allocator = trace_of(snapshot, 0, 1), CachingAllocator()
    for event, reserved in zip(measured.trace.events, measured.reserved, strict=True):
        apply(event, allocator)
        assert allocator.reserved == reserved


def test_the_peak_is_explained_down_to_the_line(snapshot):
    measured = trace_of(snapshot, 0, 1, Marks(folder="/home/user"))
    found = moments(measured.trace, range(len(measured.trace.events)), CachingAllocator(addresses=measured.segments))
    peak = max(found.values(), key=lambda moment: moment.allocated)
    used = accounting.used(peak, [accounting.Share("context", 5)], driver=peak.reserved + 12)
    assert {part.name: part.nbytes for part in used.parts}[accounting.UNEXPLAINED] == 7
    assert sum(part.nbytes for part in used.parts) == used.nbytes == peak.reserved + 12
    by_line = grouped(peak.holdings, lambda held: accounting.line_of(held.site))
    lines = {line: sum(held.nbytes for held in members) for line, members in by_line.items()}
    logits = 4 * 512 * 32_000 * 4  # batch, tokens, vocabulary, bytes
    assert lines["transformers/loss/loss_utils.py:40 _log_softmax"] == logits
    assert lines["NllLossBackward0 nll_loss_backward"] == logits
    assert by_kind(peak.holdings)["logits and loss"] == 3 * logits
    assert any(holding.site.user_line.startswith("train.py:") for holding in peak.holdings)


def test_marks_give_phases_modules_and_owners(tmp_path):
    frames = [{"filename": "/home/user/train.py", "line": 7, "name": "main"}]

    def entry(action, address, label):
        return {
            "action": action,
            "addr": address,
            "size": 1 << 20,
            "stream": 0,
            "user_metadata": label,
            "frames": frames,
        }

    entries = [
        entry("segment_alloc", 4096, ""),
        entry("alloc", 4096, "0|layers.0.mlp"),
        entry("free_requested", 8192, "1|"),
        entry("free_completed", 8192, "1|"),
    ]
    content = {"device_traces": [[], entries], "segments": [], "allocator_settings": {}}
    marks = Marks(
        [("forward", Piece(1, "train.py:7", True)), ("backward", Piece(1, None, True))],
        {0: {4096: Owner("gradients", "GPT", "layers.0.mlp.up.weight", "float32", True)}},
        "/home/user",
    )
    trace = trace_of(read_snapshot(written(tmp_path, content)), 0, 1, marks).trace
    assert trace.phases == ["forward", "backward"] and [piece.step for piece in trace.pieces] == [1, 1]
    before, own = (trace.sites[event.site] for event in trace.events if hasattr(event, "nbytes"))
    assert before.kind == BEFORE
    assert (own.kind, own.module, own.where, own.user_line) == (
        "gradients",
        "layers.0.mlp.up",
        "train.py:7",
        "train.py:7",
    )


def test_a_request_without_a_line_is_of_unknown_origin_unless_something_owns_it():
    stack = (Frame("", 0, "at::_ops::empty_memory_format::call"),)
    entries = [Entry("alloc", address, 1 << 20, 0, stack, "0|") for address in (4096, 8192)]
    owners = {0: {8192: Owner("weights", "GPT", "head.weight", "bfloat16", True)}}
    marks = Marks([("forward", Piece(1, None, True))], owners, "")
    trace = trace_of(Snapshot(entries, [], 0, {}), 0, 1, marks).trace
    assert [trace.sites[event.site].kind for event in trace.events if hasattr(event, "nbytes")] == [OTHER, "weights"]


def alloc(label: str, *frames: tuple[str, int, str]) -> Entry:
    return Entry("alloc", 4096, 1 << 20, 0, tuple(Frame(*frame) for frame in frames), label)


def site_of(entry: Entry, **marks) -> Site:
    pieces = [("forward", Piece(1, None, True)), ("backward", Piece(1, None, True))]
    begins = [entry._replace(address=1024, label="0|"), entry._replace(address=2048, label="1|")]
    trace = trace_of(Snapshot([*begins, entry], [], 0, {}), 0, 1, Marks(pieces, **marks)).trace
    return trace.sites[trace.events[-1].site]


def test_a_label_that_an_earlier_piece_left_names_no_module():
    line = ("/home/user/train.py", 7, "main")
    assert site_of(alloc("1|lm_head", line)).module == "lm_head"
    assert site_of(alloc("0|embed", line)).module == ""


def test_files_are_named_as_they_were_imported():
    frames = (("/opt/own/deepspeed/runtime/engine.py", 9, "backward"), ("/opt/own/peft/other.py", 7, "main"))
    assert site_of(alloc("1|", *frames)).where == "/opt/own/deepspeed/runtime/engine.py:9"
    assert site_of(alloc("1|", *frames), import_paths=["/opt", "/opt/own"]).where == "peft/other.py:7"


def test_the_workspace_of_cublas_is_a_kernels_own():
    frames = (("??", 0, "at::cuda::getCUDABlasLtWorkspace()"), ("/usr/lib/python3.11/site-packages/x.py", 7, "f"))
    site = site_of(alloc("1|mlp", *frames))
    assert (site.kind, site.operator, site.where, site.module) == ("kernel workspaces", "cuBLAS", "", "mlp")


def test_memory_that_a_kernel_requests_without_a_tensor_is_its_workspace():
    line = ("/home/user/train.py", 7, "f")
    names = ("at::native::structured_sum_out::impl(at::Tensor const&)", "at::_ops::sum_dim_IntList::call(at::Tensor)")
    site = site_of(alloc("1|mlp", *(("??", 0, name) for name in names), line), folder="/home/user")
    assert (site.kind, site.operator, site.user_line) == ("kernel workspaces", "sum_dim_IntList", "train.py:7")
    tensor = ("??", 0, "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)")
    site = site_of(alloc("1|mlp", tensor, *(("??", 0, name) for name in names), line), folder="/home/user")
    assert (site.kind, site.operator, site.where) == ("activations", "sum_dim_IntList", "train.py:7")


def test_the_sum_of_two_gradients_of_a_tensor_has_a_kind_though_no_node_runs():
    names = ("at::_ops::add_Tensor::call(at::Tensor const&)", "torch::autograd::InputBuffer::add(unsigned long)")
    site = site_of(alloc("1|embed", *(("??", 0, name) for name in names)))
    assert (site.kind, line_of(site), site.module) == ("activation gradients", "add", "embed")


@pytest.mark.parametrize(
    ("inside", "whole"), [("index_select", "embedding"), ("_softmax", "_safe_softmax"), ("mul_Tensor", "mul_Scalar")]
)
def test_an_operator_has_the_name_under_which_a_prediction_sees_it(inside, whole):
    stack = [("??", 0, f"at::_ops::{name}::call") for name in ("empty_memory_format", inside, whole)]
    predicted = Site("", f"aten.{whole.replace('_Scalar', '.Scalar')}", "train.py:7", "f", "", ())
    assert site_of(alloc("1|", *stack, ("/home/user/train.py", 7, "f"))).operator == predicted.operator


def test_code_of_python_itself_only_passes_calls_on():
    frames = [("/usr/lib/python3.11/copy.py", 143, "deepcopy"), ("/home/user/train.py", 42, "main")]
    assert site_of(alloc("1|", *frames), folder="/home/user").where == "train.py:42"
    installed = ("/usr/lib/python3.11/site-packages/peft/layer.py", 5, "f")
    assert site_of(alloc("1|", installed, *frames), folder="/home/user").where == "peft/layer.py:5"


def test_where_nothing_explains_a_request_the_code_that_passed_it_on_is_named():
    frames = [("/opt/torch/_refs/__init__.py", 5, "empty_like"), ("/opt/memlab/training/adapter.py", 84, "_on_device")]
    site = site_of(alloc("0|", *frames), import_paths=["/opt"])
    assert (site.where, site.kind) == ("memlab/training/adapter.py:84", "activations")


def test_a_users_file_below_the_folder_of_the_command_is_named_from_there():
    frames = [("/home/user/scripts/train.py", 7, "main")]
    marks = {"folder": "/home/user", "import_paths": ["/home/user/scripts", "/usr/lib/python3.11/site-packages"]}
    assert site_of(alloc("1|", *frames), **marks).where == "scripts/train.py:7"


def test_the_operator_is_the_one_that_the_program_calls():
    names = ("at::_ops::empty_memory_format::call", "at::_ops::_cudnn_attention_forward::call")
    stack = [("??", 0, name) for name in (*names, "at::_ops::_scaled_dot_product_cudnn_attention::call")]
    assert (
        site_of(alloc("1|", *stack, ("/home/user/train.py", 7, "f"))).operator == "_scaled_dot_product_cudnn_attention"
    )


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"device_traces": {}, "segments": []},
        {"device_traces": [[{"action": "alloc", "addr": "0", "size": 1}]], "segments": []},
        {"device_traces": [[{"action": "alloc", "addr": 0, "size": 1.5}]], "segments": []},
        {"device_traces": [[{"action": 1}]], "segments": []},
        {
            "device_traces": [[{"action": "alloc", "frames": [{"filename": "x", "line": "1", "name": "f"}]}]],
            "segments": [],
        },
        {"device_traces": [], "segments": [{"device": 0, "blocks": [{"state": "inactive"}]}]},
    ],
)
def test_another_structure_is_refused_in_one_line(tmp_path, content):
    with pytest.raises(RecordError, match="not a memory snapshot of torch"):
        read_snapshot(written(tmp_path, content))


def test_the_replay_takes_the_actions_of_the_real_allocator_one_by_one(snapshot):
    measured = trace_of(snapshot, 0, 1)
    allocator = RecordingAllocator(addresses=measured.segments)
    for event in measured.trace.events:
        apply(event, allocator)
    real = [(entry.action, entry.address, entry.nbytes) for entry in snapshot.entries if entry.action != "snapshot"]
    assert [(action.name, action.address, action.nbytes) for action in allocator.actions] == real


def test_pieces_are_counted_from_the_first_that_is_kept_and_has_actions():
    entries = [Entry("alloc", 1024 * number, 1 << 20, 0, (), f"{number}|", number) for number in (8, 9)]
    pieces = [("backward", Piece(4, None, True)), ("forward", Piece(5, "train.py:5", False))]
    dropped = [("forward", Piece(4, None, True))] * 2
    marks = Marks(
        [*dropped, *pieces], {9: {9 * 1024: Owner("weights", "GPT", "head.weight", "bfloat16", True)}}, first=6
    )
    trace = trace_of(Snapshot(entries, [], 0, {}), 0, 1, marks).trace
    assert [type(event).__name__ for event in trace.events] == ["BeginPhase", "Alloc", "BeginPhase", "Alloc"]
    assert trace.phases == ["backward", "forward"] and trace.pieces == [piece for _, piece in pieces]
    assert trace.sites[trace.events[-1].site].kind == "weights"


def test_owners_of_before_the_kept_actions_name_no_later_block():
    """Torch keeps the last actions alone. The block at an address may then be another one than in an earlier piece."""
    line = (Frame("/home/user/train.py", 7, "main"),)
    owner = Owner("gradients", "GPT", "head.weight", "float32", True)
    pieces = [("backward", Piece(1, None, True)), ("forward", Piece(2, None, True))]
    marks = Marks(pieces, {0: {4096: owner}}, "/home/user")
    entries = [Entry("alloc", 8192, 1 << 20, 0, line, "1|"), Entry("free_requested", 4096, 1 << 20, 0, line, "1|")]
    trace = trace_of(Snapshot(entries, [], 0, {}), 0, 1, marks).trace
    assert [trace.sites[event.site].kind for event in trace.events if hasattr(event, "nbytes")] == [
        BEFORE,
        "activations",
    ]
    assert trace.phases == ["backward", "forward"]


def test_a_block_that_a_faster_side_stream_used_is_reused_before_one_that_was_freed_earlier():
    size, stack = 32 << 20, (Frame("train.py", 7, "main"),)

    def entry(action: str, address: int) -> Entry:
        return Entry(action, address, size, 0, stack, "")

    slow, fast, other = 1 << 30, 2 << 30, 3 << 30
    entries = [entry(action, address) for address in (slow, fast) for action in ("segment_alloc", "alloc")]
    entries += [entry("free_requested", slow), entry("free_requested", fast)]
    entries += [entry("segment_alloc", other), entry("alloc", other)]  # meanwhile
    entries += [entry("free_completed", fast), entry("alloc", fast), entry("free_completed", slow)]
    measured = trace_of(Snapshot(entries, [], 3 * size, {}), 0, 1)
    allocator = RecordingAllocator(addresses=measured.segments, before=measured.before)
    for event in measured.trace.events:
        apply(event, allocator)
    assert allocator.reserved == measured.reserved[-1] == 3 * size
