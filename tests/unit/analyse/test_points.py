"""Points of commands: batches without tokens count in samples, and what is not known is left out."""

from memlab.analyse.fit import fit_all
from memlab.analyse.identity import points_of
from memlab.analyse.run_view import view_of


def image_run(record, rank, micro: int, **changes):
    """A run of a command whose batches hold images."""
    run = record(
        ranks=[rank(0, peak_reserved_bytes=micro << 30)],
        unknown_config=["seq_len"],
        summary={"samples_per_second": 8.0, "tokens_per_second": None, "peak_reserved_bytes": {"max": micro << 30}},
        **changes,
    )
    run.config.training.loop, run.config.batch.micro = "command", micro
    return view_of(run, f"run{micro}")


def test_memory_is_fitted_over_samples(record, rank):
    runs = [image_run(record, rank, micro) for micro in (1, 2, 4, 8)]
    found = points_of(runs)
    assert (len(found.runs), found.in_samples, found.without) == (4, runs, [])
    ((fit,), _) = fit_all(found.runs)
    assert fit.tokens == (1, 2, 4, 8)
    assert found.runs[0].summary["tokens_per_second"] == 8.0


def test_a_run_that_says_neither_is_left_out(record, rank):
    run = image_run(record, rank, 1)
    run.summary["samples_per_second"] = None
    assert points_of([run]).without == [run]
