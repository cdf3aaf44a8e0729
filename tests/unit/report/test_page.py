"""A run's page: it needs no other file, shows the report and nothing else, and text from outside
cannot change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest

from etl.errors import CorruptData, TableUnreachable
from etl.ledger.plan_document import with_id
from etl.model.partitions import Broker, BrokerPartition, Leader
from etl.model.plans import OffsetRange
from etl.report.page import MOST_PARTITIONS, MOST_SENTENCES, MOST_TOPICS, page_of, past_run, run_of
from etl.report.page_markup import DARK, LIGHT, SHEET, TEXT_ON, prose, tag
from etl.report.plan_json import as_text
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from tests.builders import plain_plan
from tests.reports import document_of, failed, loaded, new_report, past

NEVER_CLOSED = {"meta", "link", "rect", "line", "br"}
ADDRESSES = {"href", "src", "srcset", "action", "data", "poster", "xlink:href", "background"}


class Parsed(HTMLParser):
    """A page as a browser would take it apart: its elements, and the text in each kind."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = list[str]()
        self.elements = list[tuple[str, dict[str, str | None]]]()
        self.texts = list[tuple[str, str]]()
        self.rows = list[list[str]]()
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

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
    assert (
        "388 records loaded in 22 s. The table holds everything that could be read when the "
        "run began." in page.text
    )
    assert [text for name, text in page.texts if name == "dd"][:6] == [
        "388",
        "36 KB",
        "17",
        "22 s",
        "0",
        "4",
    ]
    assert "12 offsets in 4 ranges gave no row: 12 markers of transactions" in page.text
    assert ("span", {"class": "pill good"}) in page.elements


def test_a_page_has_the_time_and_the_share_of_each_phase() -> None:
    page = parsed(loaded(1))
    assert (
        "Starting Spark6.1 s27 %Fetching and writing14 s63 %Commit to the table1.5 s7 "
        "%Moving the offsets<0.01 s<1 %" in page.text
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
    assert (
        page.count("script")
        == page.count("iframe")
        == page.count("img")
        == page.count("object")
        == page.count("form")
        == 0
    )
    assert [
        name for _, attributes in page.elements for name in attributes if name.startswith("on")
    ] == []
    assert "url(" not in SHEET and "@import" not in SHEET and "http" not in SHEET
    policy = [
        attributes["content"]
        for name, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x00\u202e"


def test_what_comes_from_outside_is_text_wherever_it_stands() -> None:
    log = BrokerPartition(HOSTILE, 0)
    report = new_report(
        pipeline=HOSTILE, host=HOSTILE, pid=7, conf=HOSTILE, versions={HOSTILE: HOSTILE}
    )
    ranges = (OffsetRange(log, 0, 5, Leader(Broker(0, "h", 1), 1)),)
    report.planned(with_id(plain_plan(ranges=ranges, positions={log: 5}, reason=HOSTILE)))
    report.add(Outcome.RECORDS_LOST, HOSTILE)
    failed(
        CorruptData(HOSTILE, action=HOSTILE, **{"topic": HOSTILE, HOSTILE.replace("_", "-"): 1}),
        report,
    )
    document = document_of(report)
    document["group"] = document["table"] = HOSTILE
    page = Parsed(page_of(document, [past(1, outcomes=(HOSTILE,)), past(2)], lambda run: HOSTILE))
    assert page.count("script") == page.count("img") == 0
    assert [
        name
        for _, attributes in page.elements
        for name in attributes
        if "onerror" in name or "<" in name
    ] == []
    seen = HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace(
        "\u202e", "\N{REPLACEMENT CHARACTER}"
    )
    assert page.text.count(seen) >= 8 and "\x00" not in page.text and "\u202e" not in page.text
    assert ("th", {"scope": "row", "title": seen}) in page.elements


def test_a_page_of_thousands_of_partitions_lists_the_worst_and_the_number_of_the_others() -> None:
    page = parsed(loaded(5000, topics=100, left={4321: 7, 17: 9000}))
    rows = [row for row in page.rows if len(row) == 9][1:]
    assert len(rows) == MOST_PARTITIONS and [row[:2] + row[-1:] for row in rows[:3]] == [
        ["clicks17", "0", "9,000"],
        ["clicks21", "43", "7"],
        ["clicks", "0", "0"],
    ]
    assert (
        f"and {5000 - MOST_PARTITIONS:,} partitions more, with 465,600 records in all and a "
        f"lag of 0 after the run" in page.text
    )
    assert (
        f"and {100 - MOST_TOPICS} topics more" in page.text
        and "5,000 of 5,000 partitions read" in page.text
    )
    assert "2 partitions still had something to read when it ended" in page.text
    assert len(page_of(document_of(loaded(5000)))) < 150_000


def test_a_page_of_a_failed_run_has_the_error_its_place_the_action_and_the_effect_of_a_retry() -> (
    None
):
    what, action = (
        "the table cannot be written: no space is left",
        "the disk; `etl doctor CONF` looks",
    )
    page = parsed(failed(TableUnreachable(what, action=action, path="/warehouse/clicks")))
    assert (
        "What went wrong" in page.text
        and "the table cannot be written: no space is left" in page.text
    )
    assert (
        "What to do: the disk; etl doctor CONF looks" in page.text
        and ("code", "etl doctor CONF") in page.texts
    )
    assert (
        "path/warehouse/clicks" in page.text
        and "exit code7 (TableUnreachable)" in page.text
        and "a retrymay help" in page.text
    )
    assert (
        "The run ended early, and loaded nothing." in page.text
        and ("span", {"class": "pill bad"}) in page.elements
    )
    assert page.text.count("no space is left") == 1, "the reason appears once"


def test_a_page_of_a_run_that_was_killed_claims_nothing() -> None:
    page = parsed(new_report())
    assert (
        "it is still at work, or it was killed" in page.text
        and "It is process 7 on host-1." in page.text
    )
    assert (
        "Where the time went" not in page.text and ("span", {"class": "pill warn"}) in page.elements
    )


def test_a_page_with_many_sentences_has_the_number_of_the_others() -> None:
    report = loaded(1)
    for number in range(MOST_SENTENCES + 20):
        report.add(Outcome.OWNED_BY_OTHERS, f"topic-{number} 0: left to its owner")
    page = parsed(report)
    assert (
        page.text.count("left to its owner") == MOST_SENTENCES
        and "and 21 sentences more" in page.text
    )


def test_outcomes_that_need_attention_come_first_and_mark_the_page() -> None:
    page = parsed(loaded(1, lost=True))
    assert ("span", {"class": "pill warn"}) in page.elements and "Done, records lost" in page.text
    assert (
        page.text.index("Records lost") < page.text.index("Ingested")
        and "40 offsets (0 to 40) lost: expired" in page.text
    )


def test_lag_of_physical_logs_is_reported_in_bytes() -> None:
    document = document_of(loaded(2))
    for one in (*document["lag"], *document["plan"]["ranges"]):
        one["broker_id"] = 3
    page = Parsed(page_of(document, [past(1)]))
    assert (
        "100 B" in page.text
        and "Lag, in bytes" in page.text
        and ["clicks", "3-0"] in [row[:2] for row in page.rows]
    )


def test_the_history_has_a_column_for_each_run_and_the_ones_that_failed_are_marked() -> None:
    page = parsed(
        loaded(1),
        past(1),
        past(2, state="failed", exit_code=6, records_read=0, records_per_second=0, lag_before=None),
        past(3),
    )
    titles = [text for name, text in page.texts if name == "title"][1:]
    assert len(titles) == 8 and titles[1] == "13 Nov, 02:00 UTC: 0 records/s, failed"
    assert "The last 4 runs" in page.text and "Failed, exit 6" in page.text
    assert (
        sum(
            attributes.get("class") == "fail"
            for name, attributes in page.elements
            if name == "rect"
        )
        == 2
    )


def test_a_first_run_has_no_history_to_show() -> None:
    assert "The last" not in parsed(loaded(1)).text


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_of_the_page_stands_out_from_its_ground(colours: dict[str, str]) -> None:
    """WCAG 2.2, "Contrast (Minimum)": 4.5 to 1 for text; "Non-text Contrast": 3 to 1."""
    found = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in TEXT_ON}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}
    assert all(contrast(colours[mark], colours["card"]) >= 3 for mark in ("accent", "bad"))


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_both_colour_schemes_have_every_colour_and_the_sheet_uses_no_other() -> None:
    assert LIGHT.keys() == DARK.keys() and "prefers-color-scheme:dark" in SHEET
    rules = SHEET.split("*{box-sizing", 1)[1]
    assert (
        re.findall(r"#[0-9a-f]{3,8}\b", rules) == []
        and set(re.findall(r"var\(--([a-z-]+)\)", rules)) <= LIGHT.keys()
    )


def test_a_run_is_the_same_read_from_the_head_of_its_file_as_from_its_document() -> None:
    for report in (
        loaded(40, left={3: 5}),
        failed(TableUnreachable('"before": 1, "after": 2}')),
        new_report(),
    ):
        text = as_text(report.as_json(), {"looks": 1, "first": {"before": 1, "after": 2}})
        assert past_run(text) == run_of(document_of(report)) is not None
    assert (
        past_run(text.replace('"state"', '"status"')) is None
        and past_run("") is None
        and past_run("{}") is None
    )


def test_a_long_sentence_is_cut_with_a_mark() -> None:
    assert prose("a" * 12, most=10) == "a" * 10 + " ... and 2 characters more"
    assert (
        tag("p", prose("see `a < b`"), title=None, hidden=True)
        == "<p hidden>see <code>a &lt; b</code></p>"
    )
