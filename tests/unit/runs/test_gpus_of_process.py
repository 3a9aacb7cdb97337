"""A record has an entry for each GPU of a process that uses several."""

from memlab.runs.gpus_of_process import on_each_gpu, others_that_count

MIB = 1 << 20
OTHER = {"device": "cuda:10", "peak_allocated_bytes": 3 * MIB, "peak_reserved_bytes": 20 * MIB}
STRAY = {"device": "cuda:0", "peak_allocated_bytes": 512, "peak_reserved_bytes": 2 * MIB}


def process(*others, world_size=1):
    facts = {
        "world_size": world_size,
        "rank": 0,
        "other_devices": list(others),
        "phases": {"forward": {}},
        "growth": {},
    }
    return {
        "rank": 0,
        "device": "cuda:2",
        "peak_allocated_bytes": 5 * MIB,
        "device_used_bytes": 500 * MIB,
        "oom": {"phase": "forward"},
        "phases": {"forward": {}},
        "step_seconds": [1.0],
        "attached": facts,
    }


def test_each_gpu_has_an_entry_with_what_is_known_of_it():
    own, other = on_each_gpu(process(OTHER, STRAY), [{**OTHER, "attached": "of a hostile file"}])
    assert [(entry["rank"], entry["device"], entry["attached"]["rank"]) for entry in (own, other)] == [
        (0, "cuda:2", 0),
        (1, "cuda:10", 1),
    ]
    assert (own["oom"], own["device_used_bytes"], own["peak_allocated_bytes"]) == (
        {"phase": "forward"},
        500 * MIB,
        5 * MIB,
    )
    assert (other["oom"], other["device_used_bytes"], other["peak_allocated_bytes"]) == (None, None, 3 * MIB)
    assert (other["phases"], other["step_seconds"], other["attached"]["growth"]) == ({}, [1.0], None)
    for entry in (own, other):
        facts = entry["attached"]
        assert (facts["world_size"], facts["other_devices"], facts["is_gpu_of_process"]) == (2, [], True)
        assert on_each_gpu(entry, others_that_count(entry)) == [entry], "a file that is read again stays as it is"


def test_small_tensors_and_the_other_gpus_of_ranks_do_not_count():
    assert others_that_count(process(OTHER, STRAY)) == [OTHER]
    assert others_that_count(process(OTHER, STRAY, world_size=2)) == []
