"""The page as a person uses it, in a real headless Chromium, without a network."""

import json
import re
from dataclasses import replace
from itertools import cycle

import pytest
from driver import CHROMEDRIVER, CHROMIUM, ENTER, ESCAPE, browser
from sweeps import add_point, small_sweep

from memlab.analyse.collect import collect
from memlab.analyse.diff import compare
from memlab.report import units
from memlab.report.page import write_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="no Chromium with its chromedriver on this machine"),
]

HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=2"><b id=markup>x</b>'


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as session:
        session.size(1400, 1000)
        yield session


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return small_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def page(chromium, sweep, tmp_path):
    """The page of the small sweep, open; nothing on it may fail or be refused by the policy."""
    write_page(collect([sweep]).runs, [], "sweep", tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    yield chromium
    assert chromium.messages() == []


def column(page, name: str) -> list[str]:
    """The cells of a column, by what its head begins with."""
    heads = [head.rstrip(" \u25b2\u25bc") for head in page.texts("#table thead th")]
    place = next(at for at, head in enumerate(heads, 1) if head.startswith(name))
    return page.texts(f"#table tbody td:nth-child({place})")


def sort_by(page, name: str) -> None:
    page.run(
        "[...document.querySelectorAll('#table thead button')].find(b => b.innerText.startsWith(arguments[0])).click()",
        name,
    )


def test_it_opens_with_summary_charts_and_table(page):
    assert "15 points of 3 configurations" in page.text("#summary")
    assert page.text("#count").startswith("15 of 15 points")
    assert len(page.texts("#table tbody tr")) == 15
    assert page.run("return document.querySelectorAll('#chart-grid canvas').length") >= 6
    drawn = "return [...document.querySelectorAll('#chart-grid canvas')].every(c => c.width > 200)"
    assert page.run(drawn)


def test_words_and_options_filter_table_and_charts(page):
    page.type("#search", "expandable 1024")
    assert page.text("#count").startswith("3 of 15 points")
    assert set(column(page, "allocator")) == {"expandable"}
    label = page.run("return document.querySelector('.plot').getAttribute('aria-label')")
    page.click("#filters button[type=reset]")
    assert page.text("#count").startswith("15 of 15 points")
    assert page.run("return document.querySelector('.plot').getAttribute('aria-label')") != label
    page.run(
        "const s = document.querySelector('select[name=status]'); s.value = 'gpu_oom';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert page.text("#count").startswith("1 of 15 points")
    page.click("#filters button[type=reset]")


def test_any_column_sorts_both_ways_with_the_unknown_last(page):
    for direction, ordered in (("ascending", sorted), ("descending", lambda values: sorted(values, reverse=True))):
        sort_by(page, "peak reserved")
        cells = column(page, "peak reserved")
        known = [float(cell) for cell in cells if cell != "\u2013"]
        assert known == ordered(known) and len(known) == 14
        assert cells[-1] == "\u2013"
        assert page.run("return document.querySelectorAll(`th[aria-sort=${arguments[0]}]`).length", direction) == 1


def test_it_begins_with_the_answer_and_the_summary_fits_one_screen(page):
    assert page.text("#answer").startswith("small on 2 x A100 is fastest with ")
    assert page.run("return document.getElementById('summary').getBoundingClientRect().bottom <= innerHeight")


ALLOCATORS = ("default", "expandable")
BOARD = "#leaders tbody td:nth-child({})"


def test_the_leaderboard_sorts_and_filters(chromium, tmp_path):
    for number in range(8):
        for allocator in ALLOCATORS:
            choices = {"model": f"model{number}", "zero_stage": "zero2", "allocator": allocator}
            config = {"tokens": 128 + number, "allocator": allocator, "choices": choices}
            add_point(tmp_path / "runs", **config, run_id=f"{number}-{allocator}")
    runs = collect([tmp_path / "runs"]).runs
    for run in runs:
        run.config = {**run.config, "model": {**run.config["model"], "path": run.choices["model"]}}
    write_page(runs, [], "models", tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    assert chromium.run("return document.getElementById('summary').getBoundingClientRect().bottom <= innerHeight")
    assert len(chromium.texts(BOARD.format(2))) == 12  # of 16: the others are a page further
    chromium.click("#leaderboard .pager button:nth-child(2)")
    assert len(chromium.texts(BOARD.format(2))) == 4
    chromium.click("#leaders thead th:nth-child(5) button")
    sizes = [float(cell) for cell in chromium.texts(BOARD.format(5))]
    assert sizes == sorted(sizes) and len(sizes) == 12
    chromium.click("#leaders thead th:nth-child(5) button")
    sizes = [float(cell) for cell in chromium.texts(BOARD.format(5))]
    assert sizes == sorted(sizes, reverse=True)
    chromium.type("#leaderboard input", "model3 expandable")
    assert chromium.texts(BOARD.format(2)) == ["model3 allocator=expandable"]
    assert chromium.texts("#subject option")[:2] == ["model0 on 2 x A100", "model1 on 2 x A100"]
    assert len(chromium.texts("#legend button")) == 2
    assert chromium.messages() == []


def test_two_points_are_picked_and_their_diff_is_that_of_the_command(page, sweep):
    runs = {run.run_id: run for run in collect([sweep]).runs}
    a, b = (
        next(r for r in runs.values() if r.choices["allocator"] == each and "s512" in r.run_id) for each in ALLOCATORS
    )
    for run in (a, b):
        page.click(f"button[aria-label='Compare {run.run_id}']")
    told = page.text("#diff")
    comparison = compare([a, b])
    assert "allocator.conf" in told and "expandable_segments:True" in told
    for row in comparison.quantities:
        [difference] = row.differences
        line = next(line for line in told.splitlines() if line.startswith(units.name(row.key) + "\t"))
        assert units.signed_percent(difference.relative).strip("+-") in line
        assert ("within it" in line) is bool(difference.within_noise)
    assert not page.texts("#diff .care")
    page.click("#picker button")
    assert page.text("#pick-a option:checked") != page.text("#pick-b option:checked")


def test_points_that_differ_in_several_axes_are_called_confounded(page):
    page.run(
        "for (const [id, words] of [['pick-a', 'batch 1 x 128 tokens'], ['pick-b', 'batch 3 x 1,024 tokens']]) {"
        "  const s = document.getElementById(id);"
        "  s.value = [...s.options].find(o => o.text.includes(words)).value; s.dispatchEvent(new Event('change')); }"
    )
    assert page.texts("#diff .care")[0].startswith("2 axes differ (seq_len, batch)")


def test_details_open_and_close_with_the_keyboard(page):
    page.run("document.querySelector('#table tbody button').focus()")
    page.press(ENTER)
    page.wait("document.getElementById('details').open")
    told = page.text("#details")
    assert "Memory by phase" in told and "DeepSpeed JSON" in told
    page.run("document.querySelectorAll('#details details').forEach(d => d.open = true)")
    shown = json.loads(page.text("#details pre.json"))
    assert shown["zero_optimization"]["stage"] == 2
    page.click(".copy")
    page.wait("document.querySelector('.copy').innerText !== 'Copy'")
    page.press(ESCAPE)
    page.wait("!document.getElementById('details').open")


def test_the_details_of_a_prediction_name_the_command_that_explains_it(page):
    page.type("#search", "predicted")
    page.run("document.querySelector('#table tbody button').click()")
    assert re.search(r"memlab explain \S+ --page memory\.html", page.text("#details"))
    page.press(ESCAPE)


def test_light_and_dark(page):
    background = "return getComputedStyle(document.body).backgroundColor"
    before = page.run(background)
    page.click("#theme")
    dark = page.run(background)
    assert before != dark
    page.click("#theme")
    assert page.run(background) == before


def test_a_configuration_can_be_hidden_in_the_charts(page):
    label = "return document.querySelector('.plot').getAttribute('aria-label')"
    before = page.run(label)
    page.click("#legend button")
    assert page.run(label) != before
    page.click("#legend button")
    assert page.run(label) == before


def test_lines_of_one_colour_have_marks_that_a_key_explains(chromium, tmp_path):
    """Lines of a chart over length are batches: without a key, two lines of one configuration looked the same."""
    for tokens in (128, 256):
        for micro in (1, 4):
            add_point(tmp_path / "runs", tokens, micro)
    write_page(collect([tmp_path / "runs"]).runs, [], "batches", tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    keys = chromium.texts(".key")
    assert keys[:2] == ["\u25cf batch 1\n\u25a0 batch 4", "\u25cf 128 tokens\n\u25a0 256 tokens"]
    assert chromium.messages() == []


def test_bounds_are_written_as_bounds_sort_nothing_and_are_in_no_chart(chromium, tmp_path):
    steps = {"basis": "lower bound", "basis_reason": "no calibration for A100"}
    for tokens in (128, 256):
        add_point(tmp_path / "runs", tokens)
        add_point(tmp_path / "runs", tokens, mode="predict", steps=steps)
    runs = collect([tmp_path / "runs"]).runs
    write_page(runs, [], "bounds", tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    sort_by(chromium, "step")
    cells = column(chromium, "step")
    assert [cell.startswith("at least ") for cell in cells] == [False, False, True, True]
    assert all(cell.startswith("at most ") for cell in column(chromium, "tokens/s")[2:])
    labels = chromium.run(
        "return [...document.querySelectorAll('.plot')].map((plot) => plot.getAttribute('aria-label'))"
    )
    drawn = {
        label.partition(" over ")[0]: label.partition(": ")[2].split()[0] for label in labels if " sequence " in label
    }
    assert (drawn["tokens per second"], drawn["peak reserved"]) == ("2", "4")
    for run in [run for run in runs if "s128" in run.run_id]:
        chromium.click(f"button[aria-label='Compare {run.run_id}']")
    assert "not known" in next(line for line in chromium.text("#diff").splitlines() if line.startswith("step time"))
    assert chromium.messages() == []


def test_a_point_of_a_chart_tells_itself(page):
    page.run(
        "const over = document.querySelector('.plot canvas'); over.scrollIntoView();"
        "const box = over.getBoundingClientRect();"
        "for (let x = box.left; x < box.right; x += 4) for (let y = box.top; y < box.bottom; y += 8)"
        "  if (document.querySelector('.tip').hidden)"
        "    over.dispatchEvent(new MouseEvent('mousemove', { clientX: x, clientY: y, bubbles: true }));"
    )
    assert re.search(r"peak reserved: [\d.]+ GiB", page.text(".tip"))


def test_a_drag_zooms_a_chart_and_a_double_click_zooms_out(page):
    picture = "return document.querySelector('.plot canvas').toDataURL()"
    whole = page.run(picture)
    page.drag(".plot canvas", 0.5, 0.6, 0.7)
    assert page.run(picture) != whole
    assert page.run("return document.querySelector('.chosen').hidden")
    page.run("document.querySelector('.plot canvas').dispatchEvent(new MouseEvent('dblclick'))")
    assert page.run(picture) == whole


def test_it_is_usable_when_narrow(page):
    page.size(420, 900)
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.size(1400, 1000)


def test_nothing_that_a_folder_says_runs(chromium, tmp_path):
    for tokens in (128, 256):
        choices = {"model": "small", "zero_stage": HOSTILE, "allocator": "default"}
        path = add_point(
            tmp_path / "runs", tokens, choices=choices, reason=HOSTILE, environment={"torch": HOSTILE, HOSTILE: tokens}
        )
        (path / "logs").mkdir()
        (path / "logs" / "launcher.log").write_text(HOSTILE)
    add_point(tmp_path / "runs", 512, allocator="expandable")
    write_page(collect([tmp_path / "runs"]).runs, [], HOSTILE, tmp_path / "page.html")
    chromium.open(tmp_path / "page.html")
    chromium.click("#table tbody tr:nth-child(1) .pick")
    chromium.click("#table tbody tr:nth-child(2) .pick")
    chromium.run("document.querySelector('#table tbody tr:last-child button').click()")
    chromium.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert HOSTILE in chromium.text("#details") and HOSTILE in chromium.text("#diff")
    assert chromium.run("return [window.hacked, document.getElementById('markup'), document.images.length]") == [
        None,
        None,
        0,
    ]
    assert chromium.run("return document.scripts.length") == 2
    assert chromium.messages() == []


def test_five_hundred_points_open_in_two_seconds(chromium, tmp_path, record_property, capsys):
    """Ready: table, filters and all charts are drawn."""
    for number in range(500):
        add_point(tmp_path / "runs", 128 + 16 * (number // 4), 1 + number % 2, ALLOCATORS[number // 2 % 2])
    write_page(collect([tmp_path / "runs"]).runs, [], "500 points", tmp_path / "page.html")
    times = []
    for _ in range(3):
        chromium.open(tmp_path / "page.html")
        times.append(int(chromium.run("return document.documentElement.dataset.ready")))
    assert chromium.text("#count").startswith("500 of 500 points")
    record_property("milliseconds", times)
    with capsys.disabled():
        print(f"\n500 points: ready after {', '.join(map(str, times))} ms")
    assert min(times) < 2000


def test_ten_thousand_points_stay_usable(chromium, sweep, tmp_path):
    """A page of the table at a time, a part of the points in the charts, and a filter that answers at once."""
    runs = collect([sweep]).runs
    many = [
        replace(run, run_id=f"{run.run_id}-{number}", config={**run.config, "seq_len": {"tokens": 1 + number}})
        for number, run in zip(range(10_000), cycle(runs), strict=False)
    ]
    write_page(many, [], "10,000 points", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 4 * 2**20
    chromium.open(tmp_path / "page.html")
    assert int(chromium.run("return document.documentElement.dataset.ready")) < 5000
    assert chromium.text("#count").startswith("10,000 of 10,000 points")
    assert len(chromium.texts("#table tbody tr")) == 100
    assert chromium.text("#point-table .pager").endswith("1 to 100 of 10,000")
    chromium.click("#point-table .pager button:nth-child(2)")
    assert chromium.text("#point-table .pager").endswith("101 to 200 of 10,000")
    assert "points are drawn" in chromium.text("#chart-grid .axes")
    search = (
        "const began = performance.now(); const field = document.getElementById('search'); field.value = '-4321';"
        "field.dispatchEvent(new Event('input')); return performance.now() - began"
    )
    assert chromium.run(search) < 1500
    assert chromium.text("#count").startswith("1 of 10,000 points")
    assert chromium.messages() == []
