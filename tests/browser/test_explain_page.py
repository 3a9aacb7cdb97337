"""The page of explained runs as a person uses it, in a real headless Chromium, without a network."""

import time
from dataclasses import replace
from itertools import chain

import pytest
from driver import CHROMEDRIVER, CHROMIUM, ENTER, browser
from histories import GIB, MIB, explained, explained_run, out_of_memory, remedies_of, training

from memlab.analyse.explain import accounting
from memlab.analyse.explain.outside import ModelledDevice
from memlab.analyse.explain.phases import parts_of
from memlab.analyse.explain.placements import timeline
from memlab.prediction.memory.ledger import moments
from memlab.report import units
from memlab.report.explain_page import write_explain_page
from memlab.report.explain_page.payload import payload
from memlab.simulator.outside.parts import OutsidePart
from memlab.simulator.trace.events import Alloc, Free
from memlab.simulator.trace.trace_format import Piece, Trace
from memlab.simulator.trace.work_items import EVERYTHING, HALF, HostWaits, KernelLaunch

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="no Chromium with its chromedriver on this machine"),
]

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2"><b id=markup>x</b>'

EVENT = "return Number(document.getElementById('chart').getAttribute('aria-valuenow'))"
MEASURED = "return performance.getEntriesByName(arguments[0]).map(each => each.duration)"
RIGHT, PAGE_DOWN, SHIFT = "\ue014", "\ue00f", "\ue008"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as session:
        session.size(1280, 1000)
        yield session


def opened(chromium, tmp_path, *ranks):
    """Open the page of these ranks, each of a run of its own."""
    runs = [explained_run(tmp_path / f"run{number}", rank, ranks=3) for number, rank in enumerate(ranks)]
    write_explain_page(runs, tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    return chromium


@pytest.fixture
def page(chromium, tmp_path):
    """The page of two steps, open; nothing on it may fail or be refused by the policy."""
    yield opened(chromium, tmp_path, explained(training(2, 150)))
    assert chromium.messages() == []


def tree(page) -> dict[str, list[int]]:
    """Open the whole tree. Returns path of names -> bytes in each column."""
    page.run(
        "let closed; while ((closed = document.querySelector('#tree .open[aria-expanded=false]'))) closed.click();"
    )
    rows = page.run(
        "return [...document.querySelectorAll('#tree tbody tr')].map(e => [e.dataset.path, e.dataset.bytes])"
    )
    return {path: [int(size) for size in sizes.split(" ") if size] for path, sizes in rows}


def paths(share: accounting.Share, above: str = "") -> dict[str, list[int]]:
    path = f"{above}/{share.name}".lstrip("/")
    return {path: [share.nbytes]} | {key: value for part in share.parts for key, value in paths(part, path).items()}


def with_driver(rank):
    """Return the rank with the figures of a driver: outside the allocator more appears in the middle, and 7 bytes are
    unexplained from then on."""
    middle = len(rank.history.trace.events) // 2
    nccl = accounting.Share("NCCL", 300, (accounting.Share("broadcast", 200), accounting.Share("all_reduce", 100)))
    reserved = timeline(rank).reserved

    class Device:
        elsewhere = ()
        provenance = ""
        changes = (0, middle)

        def outside(self, event):
            return (accounting.Share("CUDA context", 500 * MIB), *([nccl] if event >= middle else []))

        def driver(self, event):
            return reserved[event] + 500 * MIB + (307 if event >= middle else 0)

    return replace(rank, device=Device())


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_every_sum_is_that_of_the_accounting(chromium, tmp_path, settings):
    """At the peak, and at moments that are clicked: kinds, modules, lines, slack, and what lies outside."""
    rank = with_driver(explained(training(2, 150), settings))
    page = opened(chromium, tmp_path, rank)
    seen = []
    for place in (None, 0.2, 0.5, 0.81):
        if place is not None:
            page.drag("#chart", place)
        seen.append(page.run(EVENT))
        moment = moments(rank.history.trace, {seen[-1]}, rank.history.recorder())[seen[-1]]
        page.run("document.getElementById('whole').click()")
        assert tree(page) == paths(rank.used(moment))
    assert seen[0] == rank.peak.event and len(set(seen)) == 4
    assert page.messages() == []


def test_figures_are_rounded_as_in_the_terminal_and_are_not_broken(chromium, tmp_path):
    """64 MiB lie in the middle between 0.062 and 0.063 GiB."""
    rank = replace(
        explained(training(2, 20)), device=ModelledDevice([OutsidePart(0, "CUDA context", "of a GPU", 64 * MIB)])
    )
    page = opened(chromium, tmp_path, rank)
    row = "return document.querySelector('#tree tr[data-path=\"used/outside the allocator\"]').cells[1].textContent"
    assert page.run(row) == units.gib(64 * MIB) == "0.062"
    page.size(700, 1000)
    lines = (
        "return [...document.querySelectorAll('#summary td.number')].map(e => "
        "{ const range = document.createRange(); range.selectNodeContents(e); return range.getClientRects().length; })"
    )
    assert set(page.run(lines)) == {1}
    page.size(1280, 1000)
    assert page.messages() == []


def test_it_opens_at_the_peak_and_a_click_chooses_another_moment(page):
    status = page.text("#moment")
    assert "(the peak)" in status and status.startswith("forward, step ")
    before = tree(page)
    page.drag("#chart", 0.93)
    assert page.text("#moment") != status and tree(page) != before
    page.run("document.getElementById('peak').click()")
    assert page.text("#moment") == status and tree(page) == before


def test_it_begins_with_the_whole_answer(chromium, tmp_path):
    """Of a run that ran out of memory: the failure, the last events, a finding, remedies and phases, then the picture
    at the failed request."""
    rank = out_of_memory()
    run, remedies = explained_run(tmp_path / "run", rank), remedies_of(rank)
    write_explain_page([run], tmp_path / "page.html", remedies)
    chromium.open(tmp_path / "page.html")
    data = payload([run], remedies)
    answer = data["runs"][0]["answer"]
    shown = chromium.texts("#summary p, #summary li, #summary td, #summary th, #summary h3, #summary .hint")
    assert shown[0] == answer["failure"]["sentences"][0]
    rows = [*answer["failure"]["before"]["rows"], *answer["phases"]["rows"]]
    changes = [text for change in data["remedies"]["changes"] for text in (change["effect"], *change["details"])]
    told = "\n".join(shown)
    assert all(text in told for text in (*answer["sentences"], *answer["findings"], *changes, *chain(*rows)))
    place = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    assert chromium.run(place, "#summary") < chromium.run(place, "#time")
    assert chromium.text("#moment").startswith("forward, step 5, event ")
    assert "(out of memory)" in chromium.text("#moment")
    chromium.run("document.getElementById('peak').click()")
    assert "(the peak)" in chromium.text("#moment")
    chromium.run("document.getElementById('failed').click()")
    assert "(out of memory)" in chromium.text("#moment")
    assert chromium.messages() == []


def test_a_drag_shows_what_was_added_and_freed(page):
    page.drag("#chart", 0.3, 0.5, 0.7)
    heads = page.texts("#tree thead th")[1:5]
    assert heads == [
        f"{name}, GiB" for name in ("at the beginning", "freed by the end", "added by the end", "at the end")
    ]
    requested = {path: sizes for path, sizes in tree(page).items() if path.startswith("used/reserved/requested")}
    assert len(requested) > 10
    for before, freed, added, after in requested.values():
        assert before - freed + added == after
    assert page.text("#moment").startswith("From ")
    assert page.messages() == []


def test_the_keyboard_moves_selects_and_zooms(page):
    peak = page.run(EVENT)
    page.run("document.getElementById('chart').focus()")
    page.press(RIGHT * 3)
    assert page.run(EVENT) > peak
    page.press("p")
    assert page.run(EVENT) == peak
    page.press(PAGE_DOWN)
    assert page.text("#moment").split(",")[0] != "forward"
    page.run(
        "document.getElementById('chart').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'ArrowRight', shiftKey: true, bubbles: true }))"
    )
    assert page.text("#moment").startswith("From ")
    page.run("document.querySelector('#tree .open').focus()")
    page.press(ENTER)
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "false"
    page.press(ENTER)


def test_steps_and_the_clock_can_be_chosen(page):
    picture = "return document.querySelector('#chart canvas').toDataURL()"
    pictures = [page.run(picture)]
    for name, value in (("step", "1"), ("axis", "time")):
        page.run(
            f"const s = document.getElementById('{name}'); s.value = '{value}'; s.dispatchEvent(new Event('change'))"
        )
        pictures.append(page.run(picture))
    page.drag("#overview", 0.6, 0.7, 0.8)
    pictures.append(page.run(picture))
    assert len(set(pictures)) == 4


def test_a_prediction_has_the_time_of_its_last_step(chromium, tmp_path):
    trace = training(2, 60)
    begin = next(part.begin for part in parts_of(trace, len(trace.events)) if part.step == 2)
    trace.steps = [0, begin]
    rest = range(begin, len(trace.events))
    trace.work = [
        item for _ in rest for item in (KernelLaunch(0, 0, 0, HALF, 10**11, (0,)), HostWaits(0, 0, EVERYTHING))
    ]
    trace.events_before = [event for event in rest for _ in range(2)]
    rank = explained(trace)
    rank = replace(rank, source="predicted", history=replace(rank.history, seconds=None))
    page = opened(chromium, tmp_path, rank)
    page.run(
        "document.getElementById('whole').click(); const s = document.getElementById('axis');"
        "s.value = 'time'; s.dispatchEvent(new Event('change'))"
    )
    page.drag("#chart", 0.75)
    chosen = page.run(EVENT)
    assert chosen > begin + 0.6 * len(rest)
    milliseconds = chosen - begin + 1  # each event waits for a kernel of one
    expected = f"{units.seconds(1e-3 * milliseconds)} after the first work of the step, on the predicted host"
    assert expected in page.text("#moment")
    assert page.messages() == []


def test_the_block_that_keeps_a_segment_is_named(chromium, tmp_path):
    """One small block in a segment of 600 MiB, between two that were freed."""
    small, large = 2 * MIB, 299 * MIB
    sites = training(1, 1).sites
    events = [Alloc(0, 600 * MIB, 0, 0), Free(0), Alloc(1, large, 0, 1), Alloc(2, small, 0, 2), Alloc(3, large, 0, 1)]
    trace = Trace(0, 1, events=[*events, Free(1), Free(3)], sites=sites, pieces=[Piece(1, None, True)])
    page = opened(chromium, tmp_path, explained(trace))
    page.run("document.getElementById('whole').click(); document.getElementById('chart').focus()")
    page.press("\ue010")  # End
    text = page.text("#holes")
    assert text.startswith("One segment holds 600 MiB.")
    assert "one block keeps 598 MiB from going back. It is 2 MiB of gradients, model.layers.0.mlp" in text
    page.run(
        "const e = document.getElementById('tape'), b = e.getBoundingClientRect();"
        "const row = 7; e.dispatchEvent(new PointerEvent('pointermove', {"
        "  clientX: b.left + b.width * 0.01, clientY: b.top + row * 21 + 8, bubbles: true }))"
    )
    assert "2 MiB of gradients" in page.text("#tape .tip")
    assert page.texts("#keepers tbody td")[1:] == ["598 MiB", "2 MiB", "600 MiB"]
    assert page.messages() == []


def test_the_flame_graph_is_by_module_and_by_line(page):
    boxes = "#flames button"
    assert page.texts(boxes)[:2] == ["requested", "outside all modules"]
    assert {"model", "layers.*", "mlp", "activations"} <= set(page.texts(boxes))
    page.click("#flame-controls button[value=line]")
    assert "train.py:3" in page.texts(boxes)
    widths = page.run("return [...document.querySelectorAll('#flames button')].map(e => parseFloat(e.style.width))")
    assert widths[0] == 100
    page.run("[...document.querySelectorAll('#flames button')].find(e => e.innerText === 'train.py:3').click()")
    assert page.text("#flame-path").startswith("train.py:3: ")
    assert page.texts(boxes)[0] == "train.py:3"
    page.click("#flame-path button")
    assert page.texts(boxes)[0] == "requested"


def test_two_runs_are_laid_together(chromium, tmp_path):
    """The second run holds 64 MiB more from its first event on."""
    first = explained(training(2, 60))
    more = replace(first.history.trace, events=[Alloc(10**6, 64 * MIB, 0, 0), *first.history.trace.events])
    page = opened(chromium, tmp_path, first, explained(more))
    assert page.text("#legend").count("run1, rank 0") == 2
    path = "used/reserved/requested/weights/outside all modules/load.py:1 empty"
    for place in (None, 0.4):
        if place:
            page.drag("#chart", place)
        before, after = tree(page)[path]
        assert after - before == 64 * MIB
    row = "[...document.querySelectorAll('#tree tr')].find(e => e.dataset.path === arguments[0])"
    difference = page.run(f"return {row}.cells[3].innerText", path)
    assert difference == "+0.062"  # as the terminal rounds
    page.run("const s = document.getElementById('compared'); s.value = ''; s.dispatchEvent(new Event('change'))")
    page.wait("!document.getElementById('legend').innerText.includes('run1')")
    assert len(tree(page)[path]) == 1
    assert page.messages() == []


def test_ranks_phases_and_the_host_are_those_of_the_record(page):
    assert len(page.texts("#heat tbody tr")) == 3
    assert page.texts("#heat tbody tr:nth-child(2) td") == ["1.000", "2.000", "3.000", "4.000", "5.000"]
    shares = "return [...document.querySelectorAll('#heat td')].map(e => e.style.getPropertyValue('--share'))"
    assert page.run(shares)[4] > page.run(shares)[0]
    page.run(
        "const s = document.getElementById('figure'); s.value = s.options[1].value;s.dispatchEvent(new Event('change'))"
    )
    assert set(page.texts("#heat tbody td")) == {"7.000"}
    assert page.texts("#host tbody tr:nth-child(1) td") == ["0", "2 GiB", "1 GiB"]
    assert page.run("return document.getElementById('host-curve').hidden") is False
    assert "up to 5 MiB" in page.text("#host-curve")


def test_it_is_usable_when_narrow_and_in_the_dark(page):
    for width in (800, 420):
        page.size(width, 900)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.size(1280, 1000)
    background = "return getComputedStyle(document.body).backgroundColor"
    before = page.run(background)
    page.click("#theme")
    assert page.run(background) != before
    page.click("#theme")


def test_nothing_that_a_history_says_runs(chromium, tmp_path):
    trace = training(1, 20)
    trace.sites = [replace(site, module=HOSTILE, where=HOSTILE, user_line=HOSTILE) for site in trace.sites]
    trace.phases = [HOSTILE, *trace.phases[1:]]
    page = opened(chromium, tmp_path, explained(trace))
    assert any(HOSTILE in path for path in tree(page))
    page.run("document.getElementById('whole').click()")
    page.drag("#chart", 0.1)
    assert page.run("return [window.hacked, document.getElementById('markup'), document.images.length]") == [
        None,
        None,
        0,
    ]
    assert page.run("return document.scripts.length") == 2
    assert page.messages() == []


@pytest.mark.long(20)
def test_half_a_million_events_stay_responsive(chromium, tmp_path, record_property, capsys):
    """A click at any of them is answered at once, with 3,000 blocks in use; a zoom keeps the highest event. No drag,
    zoom or click in the flame graph keeps the browser busy for long."""
    rank = explained(training(40, 2_083, held=3_000, layers=80))
    assert len(rank.history.trace.events) > 500_000
    began = time.process_time()
    run = explained_run(tmp_path / "run", rank)
    write_explain_page([run], tmp_path / "page.html")
    seconds = time.process_time() - began
    assert (tmp_path / "page.html").stat().st_size < 6 * MIB
    ready = []
    for _ in range(3):
        chromium.open(tmp_path / "page.html")
        ready.append(int(chromium.run("return document.documentElement.dataset.ready")))
    chromium.run("document.getElementById('whole').click(); performance.clearMeasures()")
    chromium.drag("#chart", 0.5, 0.52)
    for place in (0.2, 0.6, 0.9):
        chromium.drag("#chart", place)
        chromium.run("document.getElementById('in').click(); document.getElementById('whole').click()")
    chromium.run(
        "window.busy = []; new PerformanceObserver(list => list.getEntries().forEach(each => busy.push(each.duration)))"
        ".observe({ type: 'longtask' })"
    )
    chromium.drag("#chart", *(0.2 + 0.02 * move for move in range(20)))
    chromium.drag("#overview", *(0.3 + 0.02 * move for move in range(20)))
    chromium.run(
        "const chart = document.getElementById('chart'), box = chart.getBoundingClientRect();"
        "for (const deltaY of [-1, -1, -1, 1, 1, 1]) chart.dispatchEvent(new WheelEvent('wheel', {"
        "  deltaY, clientX: box.left + 400, clientY: box.top + 99, bubbles: true, cancelable: true }));"
    )
    for order in ("line", "module"):
        chromium.click(f"#flame-controls button[value={order}]")
    chromium.run("document.querySelectorAll('#flames button')[1].click()")
    chromium.wait("document.querySelectorAll('#flames button').length > 1")
    busy = chromium.run("return busy")  # tasks of more than 50 ms
    answers, drawings = (chromium.run(MEASURED, name) for name in ("choose", "draw"))
    figures = {"busy_ms": busy, "write_s": seconds, "ready_ms": ready, "answers_ms": answers, "drawings_ms": drawings}
    record_property("figures", figures)
    with capsys.disabled():
        print(f"\n500,000 events: page written in {seconds:.1f} s of CPU time, ready after {min(ready):,} ms, "
              f"a click answered in {min(answers):.0f} to {max(answers):.0f} ms, "
              f"drawn in {min(drawings):.0f} to {max(drawings):.0f} ms, "
              f"busy for at most {max(busy, default=0):.0f} ms at a time")  # fmt: skip
    assert seconds < 60
    assert min(ready) < 10_000
    assert min(answers) < 500 and min(drawings) < 500
    assert max(busy, default=0) < 1_000
    chromium.run("document.getElementById('peak').click()")
    assert chromium.run(EVENT) == rank.peak.event
    assert f"{rank.peak.allocated / GIB:.4g} GiB" in chromium.text("#moment")
    assert chromium.messages() == []
