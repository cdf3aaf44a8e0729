"""A run's page: self-contained, and safe from text of the outside."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from etl.errors import CorruptData, TableUnreachable
from etl.ledger.plan_document import with_id
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import OffsetRange
from etl.report.incident import as_text
from etl.report.page import MOST_OUTCOMES, MOST_PARTITIONS, MOST_TOPICS, page_of, split_code
from etl.report.report_json import report_as_json
from etl.report.run_history import past_run, run_of
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from tests.builders import plain_plan
from tests.reports import DARK, LIGHT, STYLE_SHEET, document_of, failed, loaded, new_report, past

VOID = {"meta", "link", "br", "img"}
"""Elements of HTML that are never closed; elements of SVG always are."""
ADDRESSES = {"href", "src", "srcset", "action", "data", "poster", "xlink:href", "background"}


class Parsed(HTMLParser):
    """A page as a browser would take it apart: its elements, and the text in each kind."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = list[str]()
        self.elements = list[tuple[str, dict[str, str | None]]]()
        self.texts = list[tuple[str, str]]()
        self.rows = list[list[str]]()
        self.inside = list[tuple[str, ...]]()
        """The open elements around each element."""
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.append(tuple(self.open))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, "HTML ignores the slash outside of SVG"
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements are closed in their order"

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))
        if self.rows and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(text for name, text in self.texts if name != "style"))

    def count(self, name: str) -> int:
        return sum(found == name for found, _ in self.elements)


def parsed(report: Report, *before: object) -> Parsed:
    document = document_of(report)
    return Parsed(page_of(document, before, lambda run: f"clicks-{run.run_id}.html"))  # type: ignore[arg-type]


def addresses(page: Parsed) -> Iterator[str]:
    for _, attributes in page.elements:
        yield from (value or "" for name, value in attributes.items() if name in ADDRESSES)


def test_a_page_of_a_run_has_its_outcome_in_a_sentence_and_six_figures() -> None:
    page = parsed(loaded(4))
    sentence = "All records that were readable when the run began are in the table."
    assert f"388 records loaded in 22 s. {sentence}" in page.text
    figures = [text for name, text in page.texts if name == "dd"][:6]
    assert figures == ["388", "36 KB", "17", "22 s", "0", "4"]
    assert "Offsets without a row12 offsets in 4 ranges: 12 transaction markers" in page.text
    assert ("span", {"class": "pill good"}) in page.elements


def test_a_page_has_the_time_and_the_share_of_each_phase() -> None:
    page = parsed(loaded(1))
    assert (
        "Start Spark 6.1 s27 % Fetch and write 14 s63 % Commit to the table 1.5 s7 % "
        "Commit offsets <0.01 s<1 %" in page.text
    )
    bars = [
        float(attributes["width"] or 0)
        for name, attributes in page.elements
        if name == "rect" and attributes.get("class") == "bar"
    ]
    assert bars == pytest.approx([0.89, 1.78, 27.17, 63.46, 6.68, 0.4], abs=0.02)


def test_a_page_loads_no_resource_and_runs_no_script() -> None:
    page = parsed(loaded(4), past(1), past(2, state="failed", exit_code=6))
    assert sorted(set(addresses(page))) == [
        "clicks-20231113T010000-0a1b2c.html",
        "clicks-20231113T020000-0a1b2c.html",
        "data:,",
    ]
    active = ("script", "iframe", "img", "object", "form")
    assert [page.count(name) for name in active] == [0] * 5
    names = [name for _, attributes in page.elements for name in attributes]
    assert [name for name in names if name.startswith("on")] == []
    assert re.findall(r"url\(|@import|http", STYLE_SHEET) == []
    [policy] = [
        attributes["content"]
        for _, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x00\u202e"


def test_what_comes_from_outside_is_text_wherever_it_stands() -> None:
    partition = TopicPartition(HOSTILE, 0)
    report = new_report(
        pipeline=HOSTILE, host=HOSTILE, pid=7, conf=HOSTILE, versions={HOSTILE: HOSTILE}
    )
    ranges = (OffsetRange(partition, 0, 5, Leader(Broker(0, "h", 1), 1)),)
    report.planned(with_id(plain_plan(ranges=ranges, loaded_until={partition: 5}, reason=HOSTILE)))
    report.add(Outcome.RECORDS_LOST, HOSTILE)
    places = {"topic": HOSTILE, HOSTILE.replace("_", "-"): 1}
    failed(CorruptData(HOSTILE, action=HOSTILE, **places), report)
    document = document_of(report)
    document["group"] = document["table"] = HOSTILE
    page = Parsed(page_of(document, [past(1, outcomes=(HOSTILE,)), past(2)], lambda run: HOSTILE))
    assert page.count("script") == page.count("img") == 0
    names = [name for _, attributes in page.elements for name in attributes]
    assert [name for name in names if "onerror" in name or "<" in name] == []
    seen = re.sub("[\x00\u202e]", "\N{REPLACEMENT CHARACTER}", HOSTILE)
    assert page.text.count(seen) >= 8 and "\x00" not in page.text and "\u202e" not in page.text
    assert ("th", {"scope": "row", "title": seen}) in page.elements


def test_a_page_of_thousands_of_partitions_lists_the_worst_and_the_number_of_the_others() -> None:
    report = loaded(5000, topics=100, left={4321: 7, 17: 9000})
    for number in range(MOST_OUTCOMES + 20):
        report.add(Outcome.OWNED_BY_OTHERS, f"topic-{number} 0: left to its owner")
    page = parsed(report)
    rows = [row for row in page.rows if len(row) == 9][1:]
    assert len(rows) == MOST_PARTITIONS
    assert [row[:2] + row[-1:] for row in rows[:3]] == [
        ["clicks17", "0", "9,000"],
        ["clicks21", "43", "7"],
        ["clicks", "0", "0"],
    ]
    assert (
        f"{5000 - MOST_PARTITIONS:,} more partitions with 465,600 records in total and a lag of 0 "
        "after the run" in page.text
    )
    assert f"{100 - MOST_TOPICS} more topics" in page.text and "5,000 of 5,000 read" in page.text
    assert "2 partitions still have a lag." in page.text
    assert page.text.count("left to its owner") == MOST_OUTCOMES and "21 more outcomes" in page.text
    assert len(page_of(document_of(loaded(5000)))) < 150_000
    assert split_code("a" * 12, most=10) == ["a" * 10 + " ... and 2 more characters"]
    assert split_code("see `a < b`", most=100) == ["see ", "a < b", ""]


def test_a_page_of_a_failed_run_has_the_error_its_place_the_action_and_the_effect_of_a_retry() -> (
    None
):
    what = "the table cannot be written: no space is left"
    action = "the disk; `etl doctor CONF` looks"
    page = parsed(failed(TableUnreachable(what, action=action, path="/warehouse/clicks")))
    for words in (
        f"Error {what}",
        "What to do: the disk; etl doctor CONF looks",
        "path/warehouse/clicks",
        "exit code7 (TableUnreachable)",
        "retrymay help",
        "The run failed and loaded no records.",
    ):
        assert words in page.text
    assert ("code", "etl doctor CONF") in page.texts
    assert ("span", {"class": "pill bad"}) in page.elements
    assert page.text.count("no space is left") == 1, "the reason appears once"


def test_a_page_of_a_run_that_was_killed_claims_nothing() -> None:
    page = parsed(new_report())
    assert "it is still running, or it was killed" in page.text
    assert "Its process is 7 on host-1." in page.text
    assert "Time by phase" not in page.text and ("span", {"class": "pill warn"}) in page.elements


def test_outcomes_that_need_attention_come_first_and_mark_the_page() -> None:
    page = parsed(loaded(1, lost=True))
    assert ("span", {"class": "pill warn"}) in page.elements and "Done, records lost" in page.text
    assert page.text.index("Records lost") < page.text.index("Ingested")
    assert "40 offsets (0 to 40) lost: expired" in page.text


def test_lag_of_physical_logs_is_reported_in_bytes() -> None:
    document = document_of(loaded(2))
    for one in (*document["lag"], *document["plan"]["ranges"]):
        one["broker_id"] = 3
    page = Parsed(page_of(document, [past(1)]))
    assert "100 B" in page.text and "Lag, in bytes" in page.text
    assert ["clicks", "3-0"] in [row[:2] for row in page.rows]


def test_the_history_has_a_column_for_each_run_and_the_ones_that_failed_are_marked() -> None:
    nothing = {"records_read": 0, "records_per_second": 0, "lag_before": None}
    page = parsed(loaded(1), past(1), past(2, state="failed", exit_code=6, **nothing), past(3))
    titles = [text for name, text in page.texts if name == "title"][1:]
    assert len(titles) == 8 and titles[1] == "13 Nov, 02:00 UTC: 0 records/s, failed"
    assert "The last 4 runs" in page.text and "Failed, exit 6" in page.text
    assert "The last" not in parsed(loaded(1)).text
    marked = [one for name, one in page.elements if name == "rect" and one.get("class") == "fail"]
    assert len(marked) == 2


@pytest.mark.parametrize("key", sorted(document_of(loaded(1))))
def test_a_report_without_a_key_that_a_page_shows_is_a_key_error(key: str) -> None:
    document = document_of(failed(TableUnreachable("full", path="/x"), loaded(1)))
    del document[key]
    unused = {"overrides", "offsets_committed", "request", "paused", "statistics"}
    with contextlib.nullcontext() if key in unused else pytest.raises(KeyError):
        page_of(document)


TEXT_ON: tuple[tuple[str, str], ...] = (
    *(
        (ink, ground)
        for ink in ("ink", "soft", "accent", "good", "warn", "bad")
        for ground in ("paper", "card")
    ),
    *((ink, f"{tone}-tint") for tone in ("good", "warn", "bad") for ink in ("ink", "soft", tone)),
)
"""Colors of text and of the ground behind it."""


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_of_the_page_stands_out_from_its_ground(colours: dict[str, str]) -> None:
    """WCAG 2.2, "Contrast (Minimum)": 4.5 to 1 for text; "Non-text Contrast": 3 to 1."""
    found = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in TEXT_ON}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}
    assert all(contrast(colours[mark], colours["card"]) >= 3 for mark in ("accent", "bad"))
    assert LIGHT.keys() == DARK.keys() and "prefers-color-scheme: dark" in STYLE_SHEET
    rules = STYLE_SHEET.split("* { box-sizing", 1)[1]
    assert re.findall(r"#[0-9a-f]{3,8}\b", rules) == [], "the sheet uses no other color"
    assert set(re.findall(r"var\(--([a-z-]+)\)", rules)) <= LIGHT.keys()


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_run_is_the_same_read_from_the_head_of_its_file_as_from_its_document() -> None:
    odd = failed(TableUnreachable('"before": 1, "after": 2}'))
    for report in (loaded(40, left={3: 5}), odd, new_report()):
        text = as_text(report_as_json(report), {"looks": 1, "first": {"before": 1, "after": 2}})
        assert past_run(text) == run_of(document_of(report)) is not None
    for other in (text.replace('"state"', '"status"'), "", "{}"):
        assert past_run(other) is None


@pytest.mark.parametrize("runs", [1, 2, 10])
def test_a_chart_has_a_column_for_each_run_and_every_svg_element_is_closed(runs: int) -> None:
    before = [past(number) for number in range(1, runs)]
    html = page_of(document_of(loaded(2)), before)
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", html, re.S)]
    charts = [drawing for drawing in drawings if drawing.get("role") == "img"]
    assert len(charts) == (2 if runs > 1 else 0) and len(drawings) - len(charts) == 6
    for chart in charts:
        assert [element.tag for element in chart] == ["line"] + ["g"] * runs
        for column in chart[1:]:
            assert column[0].tag == "title"
            assert {element.tag for element in column[1:]} == {"rect"}
            assert not any(len(element) for element in column), "nothing is inside of a rectangle"
    page = Parsed(html)
    assert not any({"line", "rect"} & set(around) for around in page.inside)
    assert page.inside[page.elements.index(("footer", {}))] == ("html", "body", "main")


def test_the_bars_of_a_chart_have_the_height_of_their_values() -> None:
    html = page_of(document_of(loaded(1)), [past(1, records_per_second=34)])
    throughput = ElementTree.fromstring(re.findall(r"<svg [^>]*Throughput.*?</svg>", html, re.S)[0])
    bars = [column[1].attrib for column in throughput.findall("g")]
    assert [(bar["class"], float(bar["height"]), float(bar["y"])) for bar in bars] == [
        ("past", 120.0, 0.0),
        ("now", 14.1, 105.9),
    ]
    assert "up to 34" in html
