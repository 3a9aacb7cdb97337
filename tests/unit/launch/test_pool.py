"""GPUs for launches side by side: disjoint, or alone, and never while somebody else measures on them."""

import os
import threading
import time
from collections.abc import Callable

import pytest

from memlab.launch.launch_control import LaunchControl
from memlab.launch.nodes import GpuPool
from memlab.system.machine import Gpu

GPUS = tuple(Gpu(str(index), "NVIDIA H200", 1, (9, 0)) for index in range(4))

pytestmark = pytest.mark.usefixtures("quick")


def together(*tasks: Callable[[], None]) -> None:
    """Run these at once; an exception in one fails the test."""
    errors = []

    def guarded(task) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not errors and not any(thread.is_alive() for thread in threads)


class Bench:
    """Launches on a pool, and what each saw beside itself."""

    def __init__(self, pool: GpuPool):
        self.pool, self.stop, self.lock = pool, threading.Event(), threading.Lock()
        self.now: list[tuple[str, ...]] = []
        self.seen: list[list[tuple[str, ...]]] = []

    def launch(self, count: int, alone: bool = False, seconds: float = 0.05) -> Callable[[], None]:
        def run() -> None:
            with self.pool.take(count, alone, LaunchControl(self.stop)) as gpus:
                assert len(gpus) in (count, 0)
                ids = tuple(gpu.id for gpu in gpus)
                with self.lock:
                    self.now.append(ids)
                    self.seen.append(list(self.now))
                time.sleep(seconds)
                with self.lock:
                    self.now.remove(ids)

        return run


@pytest.fixture
def bench():
    return lambda gpus=GPUS: Bench(GpuPool(gpus))


def test_launches_side_by_side_have_disjoint_gpus(bench):
    used = bench()
    together(*[used.launch(count) for count in (1, 2, 1, 4, 2, 1, 3)])
    assert len(used.seen) == 7
    for running in used.seen:
        ids = [id for gpus in running for id in gpus]
        assert len(ids) == len(set(ids)) <= 4


def test_small_launches_do_run_side_by_side(bench):
    used, met = bench(), threading.Barrier(4, timeout=10)

    def one() -> None:
        with used.pool.take(1, False, LaunchControl(used.stop)):
            met.wait()

    together(one, one, one, one)  # none gets on before all four have a GPU


def test_who_wants_to_be_alone_is(bench):
    used = bench()
    together(*[used.launch(1, alone=True) for _ in range(3)], used.launch(2, alone=True))
    assert len(used.seen) == 4 and all(len(running) == 1 for running in used.seen)


def test_nobody_joins_who_is_alone(bench):
    used = bench()
    began, joined = threading.Event(), threading.Event()

    def alone() -> None:
        with used.pool.take(1, True, LaunchControl(used.stop)):
            began.set()
            assert not joined.wait(0.2)

    def other() -> None:
        assert began.wait(10)
        with used.pool.take(1, False, LaunchControl(used.stop)):
            joined.set()

    together(alone, other)
    assert joined.is_set()


def test_without_gpus_one_launch_runs_at_a_time(bench):
    used = bench(())
    together(*[used.launch(2, seconds=0.02) for _ in range(4)])
    assert used.seen == [[()]] * 4


def test_who_waits_is_let_go_at_a_stop(bench):
    used, waits = bench(), threading.Event()

    def waiter() -> None:
        waits.set()
        with used.pool.take(1, False, LaunchControl(used.stop)) as gpus:
            assert gpus is None

    def holder() -> None:
        with used.pool.take(4, False, LaunchControl(used.stop)) as gpus:
            assert len(gpus) == 4 and waits.wait(10)
            used.stop.set()

    together(holder, waiter)
    used.stop.clear()
    with used.pool.take(4, False, LaunchControl(used.stop)) as gpus:  # nothing was lost
        assert [gpu.id for gpu in gpus] == ["0", "1", "2", "3"]


def test_gpus_come_back_after_an_exception(bench):
    used = bench()
    with pytest.raises(RuntimeError), used.pool.take(3, True, LaunchControl(used.stop)):
        raise RuntimeError
    with used.pool.take(4, True, LaunchControl(used.stop)) as gpus:
        assert len(gpus) == 4


def test_gpus_keep_the_order_of_the_machine():
    stop, gpus = threading.Event(), tuple(Gpu(id, "NVIDIA H200", 1, (9, 0)) for id in ("10", "2", "GPU-a"))
    pool = GpuPool(gpus)
    for _ in range(2):
        with pool.take(3, False, LaunchControl(stop)) as taken:
            assert taken == gpus


def test_another_memlab_on_the_same_gpu_is_waited_for():
    """Two pools, as two processes have: the lock is the machine's."""
    stop, order = threading.Event(), []
    held = threading.Event()

    def first() -> None:
        with GpuPool(GPUS).take(1, False, LaunchControl(stop)):
            held.set()
            time.sleep(0.2)
            order.append("first is done")

    def second() -> None:
        assert held.wait(10)
        with GpuPool(GPUS).take(1, False, LaunchControl(stop)):
            order.append("second begins")

    together(first, second)
    assert order == ["first is done", "second begins"]


def test_who_wants_to_be_alone_waits_for_another_memlab_on_other_gpus_and_says_so():
    """As an offloaded optimizer, or ranks on the CPU: their cores are those of the others."""
    stop, told = threading.Event(), []

    def on_wait(text: str) -> None:
        told.append(text)
        stop.set()

    with GpuPool(GPUS[:1]).take(1, False, LaunchControl(stop)):
        with GpuPool(GPUS[1:]).take(1, True, LaunchControl(stop, on_wait=on_wait)) as gpus:
            assert gpus is None
        assert len(told) == 1 and f"pid {os.getpid()} on " in told[0] and "any may be next" in told[0]
        stop.clear()
        with GpuPool(GPUS[1:]).take(1, False, LaunchControl(stop, on_wait=on_wait)) as gpus:  # the others share them
            assert gpus == GPUS[1:2] and len(told) == 1
    with (
        GpuPool(()).take(0, True, LaunchControl(stop)),
        GpuPool(()).take(0, True, LaunchControl(stop, on_wait=on_wait)) as gpus,
    ):
        assert gpus is None and len(told) == 2


def test_a_gpu_is_itself_under_whatever_number():
    """In two containers, or two batch jobs, index 0 need not be the same device."""
    stop = threading.Event()
    here, there = (Gpu("0", "NVIDIA H200", 1, (9, 0), uuid=uuid) for uuid in ("GPU-a", "GPU-b"))
    again = Gpu("3", "NVIDIA H200", 1, (9, 0), uuid="GPU-a")
    with GpuPool((here,)).take(1, False, LaunchControl(stop)):
        with GpuPool((there,)).take(1, False, LaunchControl(stop)) as gpus:
            assert gpus == (there,)
        with GpuPool((again,)).take(1, False, LaunchControl(stop, on_wait=lambda text: stop.set())) as gpus:
            assert gpus is None
