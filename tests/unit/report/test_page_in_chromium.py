"""The page in a real browser: its width, light and dark, no errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.errors import CorruptData
from etl.report.page import page_of
from etl.report.run_report import Report
from tests.browser import CHROMIUM, Browser, chromium
from tests.reports import DARK, LIGHT, document_of, failed, loaded, new_report, past

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here; on Debian: apt install chromium"
)

LONG_WORD = "s3://a-bucket/" + "very-long-folder-without-any-blank/" * 12
RUNS = [
    past(number, state="failed" if number == 4 else "done", exit_code=6 if number == 4 else 0)
    for number in range(1, 24)
]


def with_many_words(report: Report) -> Report:
    report.table_path = LONG_WORD
    error = CorruptData(
        f"a record batch of {LONG_WORD} is no record batch",
        action=f"`etl records show CONF {LONG_WORD} 0`",
        path=LONG_WORD,
    )
    return failed(error, report)


REPORTS: dict[str, Callable[[], Report]] = {
    "a run that went well": lambda: loaded(12, topics=3),
    "thousands of partitions": lambda: loaded(3000, topics=70, left={7: 10}, lost=True),
    "one that failed": lambda: with_many_words(
        new_report("a-pipeline-with-a-name-that-is-as-long-as-some-people-make-them")
    ),
    "one that was killed": new_report,
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@contextlib.contextmanager
def shown(browser: Browser, file: Path, text: str, width: int, scheme: str) -> Iterator[Any]:
    file.write_text(text, encoding="utf-8")
    page = browser.show(file, width, scheme)
    try:
        yield page
    finally:
        page.close()


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_the_bars_of_ten_runs_are_painted_and_no_text_of_the_charts_is_cut(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    runs = [past(number, lag_after=400 * number) for number in range(1, 9)]
    runs.append(past(9, state="failed", exit_code=6))
    this_run = document_of(loaded(12, topics=3, left={0: 8_000}))
    with shown(browser, tmp_path / "page.html", page_of(this_run, runs), width, "light") as page:
        bars = page.value(_BARS)
        colors = page.colors_at([(x, y) for _, x, y, _ in bars])
        no_text_is_cut(page, width, "h3,.head span,.ends span,.key")
    names = {rgb(LIGHT[name]): name for name in ("muted", "accent", "bad")}
    painted = [(kind, names.get(color)) for (kind, *_), color in zip(bars, colors, strict=True)]
    throughput, lag = painted[:10], painted[10:]
    assert throughput == [("past", "muted")] * 8 + [("fail", "bad"), ("now", "accent")]
    assert lag == [("past", "muted"), ("now", "accent")] * 8 + [("fail", "bad")] + lag[-2:]
    assert lag[-2:] == [("past", "muted"), ("now", "accent")]
    heights = [height for _, _, _, height in bars[:9]]
    assert all(low < high for low, high in zip(heights, heights[1:], strict=False)), heights


_BARS = """
[...document.querySelectorAll('figure svg rect[class]')].map(bar => {
  const box = bar.getBoundingClientRect()
  return [bar.getAttribute('class'), box.x + box.width / 2, box.y + 2, box.height]
})
"""
"""Class, a point near its upper edge and height of each bar, in the order of the charts."""


def no_text_is_cut(page: Any, width: int, selector: str) -> None:
    assert page.value("document.documentElement.scrollWidth") <= width, (
        "nothing hangs over the edge"
    )
    too_wide = (
        f"[...document.querySelectorAll('{selector}')].filter(one => "
        "one.scrollWidth > one.clientWidth + 1"
        " && getComputedStyle(one).display !== 'inline').map(one => one.textContent)"
    )
    assert page.value(too_wide) == [], "no text is wider than its place"


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_whole_and_calm_in_a_browser(
    browser: Browser, tmp_path: Path, name: str, width: int, scheme: str
) -> None:
    file, text = tmp_path / "page.html", page_of(document_of(REPORTS[name]()), RUNS)
    with shown(browser, file, text, width, scheme) as page:
        page.value("document.querySelectorAll('details').forEach(one => one.open = true)")
        no_text_is_cut(page, width, "p,dd,dt,h1,h2,li span")
        paper = (DARK if scheme == "dark" else LIGHT)["paper"]
        assert page.value("getComputedStyle(document.body).backgroundColor") == rgb(paper)
        assert page.value(
            "[...document.querySelectorAll('svg')].every(one => "
            "one.getBoundingClientRect().width > 40)"
        )
        assert page.complaints == [] and page.requested == [file.as_uri()]


@pytest.mark.long
def test_the_page_runs_no_script_even_where_one_came_into_it(
    browser: Browser, tmp_path: Path
) -> None:
    """What escaping is for is kept out a second time by the page's own policy."""
    script = "<script>document.title = 'changed'</script><img src='http://127.0.0.1:9/x'></main>"
    text = page_of(document_of(loaded(1))).replace("</main>", script)
    with shown(browser, tmp_path / "page.html", text, 1280, "light") as page:
        assert page.value("document.title") == "clicks: done" and len(page.complaints) >= 2


def rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[i : i + 2], 16) for i in (1, 3, 5)))


@pytest.mark.long
@pytest.mark.parametrize("width", [360, 700, 1100, 1280])
def test_a_number_of_millions_is_not_broken_in_its_middle(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    numbers = {"records_read": 12_345_678, "records_per_second": 1_234_567}
    text = page_of({**document_of(loaded(12, topics=3)), **numbers}, RUNS)
    with shown(browser, tmp_path / "page.html", text, width, "light") as page:
        lines = (
            "[...document.querySelectorAll('.tiles dd')].map(one => {"
            " const text = document.createRange(); text.selectNode(one.firstChild); return "
            "text.getClientRects().length })"
        )
        assert page.value(lines) == [1] * 6
