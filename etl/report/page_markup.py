"""How are the elements, charts and styles of the report page made?

Content is escaped unless it is `Html`: topics, errors and paths come from outside. Charts are SVG
without text, stretched to the page's width. Fonts are the system's; the page fits 360 pixels,
tables scroll.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from etl.report.run_progress import size_in_words, time_in_words

_NEVER_CLOSED = ("meta", "link", "rect", "line", "br")
_NO_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""Characters invalid in HTML or UTF-8, and those that change text direction."""

Attribute = str | int | float | bool | None


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def escaped(text: object) -> Html:
    """The text as HTML, in an element or in an attribute's quotes."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", str(text))))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`tag("p", "a < b", class_="note")`. A child or an attribute that is None is left out; `_` in
    an attribute's name stands for `-`.
    """
    rendered = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(
        f"<{name}{rendered}>"
        if name in _NEVER_CLOSED
        else f"<{name}{rendered}>{joined(children)}</{name}>"
    )


def joined(children: Iterable[Child]) -> Html:
    """Join several elements."""
    return Html("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return escaped(child) if isinstance(child, (str, int)) else joined(child)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def prose(text: str, most: int = 4000) -> Html:
    """Return a message's sentence with text between backticks as code, truncated after `most`
    characters with a note.
    """
    left = len(text) - most
    parts = re.split(r"`([^`\n]+)`", text[:most])
    marked = joined(tag("code", part) if i % 2 else part for i, part in enumerate(parts))
    return joined((marked, f" ... and {left:,} characters more")) if left > 0 else marked


UNKNOWN = "–"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def number(value: float | None) -> str:
    """1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """1.2 MB."""
    return UNKNOWN if value is None else size_in_words(value)


def seconds(value: float | None) -> str:
    """0.42 s, 4.2 s, 42 s, 2:05 min."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return "<0.01 s"
    if value < 1:
        return f"{value:.2f} s"
    if value < 9.95:
        return f"{value:.1f} s"
    return time_in_words(value)


def short(value: float) -> str:
    """A number where there is little room: 940, 1.2 k, 34 M."""
    for unit in ("", " k", " M", " G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:,.0f} T"


def moment(time: str | None) -> Html:
    """Format as 22 Nov 2026, 15:09:14 UTC; `time` is as in documents."""
    if time is None:
        return Html(UNKNOWN)
    at = datetime.fromisoformat(time)
    return tag("time", f"{day(time)} {at.year}, {at:%H:%M:%S} UTC", datetime=time)


def day(time: str) -> str:
    """22 Nov."""
    at = datetime.fromisoformat(time)
    return f"{at.day} {_MONTHS[at.month - 1]}"


def day_and_time(time: str) -> str:
    """22 Nov, 15:09."""
    return f"{day(time)}, {datetime.fromisoformat(time):%H:%M}"


_WIDTH, _HEIGHT, _LEAST = 600.0, 120.0, 1.5
"""In the picture's units; `_LEAST` is the height of values too small to see."""
_MOST_WIDE = 34.0
VERBS = {
    "connect": "Connecting",
    "observe": "Looking at brokers and table",
    "reconcile": "Reconciling",
    "plan": "Planning",
    "start_spark": "Starting Spark",
    "first_job": "First job of Spark",
    "fetch": "Fetching and writing",
    "append": "Commit to the table",
    "commit": "Moving the offsets",
    "compact": "Putting small files together",
    "close": "Stopping Spark",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One run in a picture of several."""

    value: float | None
    """None: not known; nothing is drawn."""
    summary: str
    behind: float | None = None
    """Drawn behind it, paler."""
    is_now: bool = False
    has_failed: bool = False


def time_by_verb(took: Mapping[str, float]) -> Html:
    """Return a bar for each verb that took time, in order, with seconds and percentage."""
    spent = {verb: s for verb, s in took.items() if s >= 0.0005}
    whole = sum(spent.values())
    return tag(
        "div",
        *(_bar(VERBS.get(verb, verb), s, s / whole) for verb, s in spent.items()),
        class_="verbs",
    )


def _bar(name: str, took: float, share: float) -> Html:
    picture = tag(
        "svg",
        tag("rect", width=f"{100 * max(share, 0.004):.2f}", height=1, class_="bar"),
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    percent = "<1 %" if share < 0.01 else f"{100 * share:.0f} %"
    return joined(
        (
            tag("span", name, class_="name"),
            picture,
            tag("span", seconds(took), tag("span", percent, class_="share"), class_="took"),
        )
    )


def columns(of: Sequence[Column], label: str) -> Html:
    """Return a column for each run, oldest first; `label` is the text alternative."""
    top = max((value for one in of for value in (one.value, one.behind) if value), default=1.0)
    step = min(_WIDTH / max(len(of), 1), 2 * _MOST_WIDE)
    drawn = (_column(one, _WIDTH - step * (len(of) - i), step, top) for i, one in enumerate(of))
    base = tag("line", x1=0, x2=_WIDTH, y1=_HEIGHT - 0.5, y2=_HEIGHT - 0.5, class_="base")
    return tag(
        "svg",
        base,
        *drawn,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _column(one: Column, left: float, step: float, top: float) -> Html:
    """Return one run's column: its value, a stump if it failed, and a title over its whole place."""
    width, own = step * 0.72, "fail" if one.has_failed else "now" if one.is_now else "past"
    x = left + (step - width) / 2
    parts: list[Html] = list(
        _rect(x, width, one.behind, top, "past" if not one.has_failed else "fail")
    )
    parts += _rect(x, width, one.value, top, own if one.behind is None or one.has_failed else "now")
    if one.has_failed and not one.value and not one.behind:
        parts.append(
            tag(
                "rect",
                x=f"{x:.1f}",
                y=f"{_HEIGHT - 6:.1f}",
                width=f"{width:.1f}",
                height=6,
                class_="fail",
            )
        )
    place = tag(
        "rect",
        x=f"{left:.1f}",
        y=0,
        width=f"{step:.1f}",
        height=f"{_HEIGHT:.0f}",
        fill="transparent",
    )
    return tag("g", tag("title", one.summary), *parts, place)


def _rect(x: float, width: float, value: float | None, top: float, kind: str) -> Iterable[Html]:
    if value:
        height = max(value / top * _HEIGHT, _LEAST)
        yield tag(
            "rect",
            x=f"{x:.1f}",
            y=f"{_HEIGHT - height:.1f}",
            width=f"{width:.1f}",
            height=f"{height:.1f}",
            class_=kind,
        )


LIGHT: Mapping[str, str] = {
    "paper": "#f7f6f3",
    "card": "#ffffff",
    "ink": "#1c1f24",
    "soft": "#5a606b",
    "line": "#e3e1db",
    "track": "#eceae5",
    "accent": "#2a5f92",
    "muted": "#9db8d2",
    "good": "#256a45",
    "good-tint": "#e6f2ea",
    "warn": "#7d5200",
    "warn-tint": "#faf0d9",
    "bad": "#a02c24",
    "bad-tint": "#fbe8e5",
}
DARK: Mapping[str, str] = {
    "paper": "#131518",
    "card": "#1b1e22",
    "ink": "#e9e7e2",
    "soft": "#a3a9b3",
    "line": "#2e3339",
    "track": "#282c32",
    "accent": "#7fb2e3",
    "muted": "#41607f",
    "good": "#82cba0",
    "good-tint": "#1a2c22",
    "warn": "#e3b75f",
    "warn-tint": "#30281a",
    "bad": "#f39b92",
    "bad-tint": "#361f1d",
}
TEXT_ON: tuple[tuple[str, str], ...] = (
    *(
        (ink, ground)
        for ink in ("ink", "soft", "accent", "good", "warn", "bad")
        for ground in ("paper", "card")
    ),
    *((ink, f"{tone}-tint") for tone in ("good", "warn", "bad") for ink in ("ink", "soft", tone)),
)
"""Which colour is the text's on which ground."""


def _colours(colours: Mapping[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{value}" for name, value in colours.items()) + "}"


_SHEET = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:1rem/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue","Noto Sans","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main{max-width:66rem;margin:0 auto;padding:clamp(1.25rem,4vw,3rem) clamp(1rem,4vw,2.5rem) 4rem}
h1{font-size:clamp(1.6rem,1.2rem + 2vw,2.25rem);line-height:1.15;letter-spacing:-.02em;font-weight:650;margin:0}
h2{font-size:1.05rem;font-weight:650;letter-spacing:-.005em;margin:0 0 .75rem}
h3{font-size:.875rem;font-weight:600;color:var(--soft);margin:0}
p{margin:0;max-width:46rem}
a{color:var(--accent);text-underline-offset:.18em;text-decoration-thickness:.06em}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.875em}
.soft{color:var(--soft)}.small{font-size:.8125rem}
header{display:grid;gap:.5rem;margin-bottom:1.75rem}
.top{display:flex;flex-wrap:wrap;align-items:center;gap:.5rem 1rem}
.pill{display:inline-flex;align-items:center;gap:.5em;border-radius:99px;padding:.2rem .8rem;font-size:.8125rem;font-weight:600;
line-height:1.5;white-space:nowrap}
.pill::before{content:"";width:.5rem;height:.5rem;border-radius:50%;background:currentColor}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.pill.good{background:var(--good-tint)}.pill.warn{background:var(--warn-tint)}.pill.bad{background:var(--bad-tint)}
.says{font-size:1.125rem;line-height:1.5;margin-top:.5rem}
section{margin-top:2.5rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1.25rem}
.tiles{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:1px;background:var(--line);
border:1px solid var(--line);border-radius:.75rem;overflow:hidden}
.tiles>div{background:var(--card);padding:1rem 1.15rem}
.tiles dt{font-size:.8125rem;color:var(--soft)}
.tiles dd{margin:.15rem 0 0;font-size:1.5rem;line-height:1.25;font-weight:600;letter-spacing:-.015em}
.tiles dd small{display:block;font-size:.8125rem;font-weight:400;letter-spacing:0;color:var(--soft);margin-top:.15rem}
.error{border-radius:.75rem;background:var(--bad-tint);padding:1.25rem;border-left:.25rem solid var(--bad)}
.error+.tiles{margin-top:1.5rem}
.error h2{color:var(--bad)}
.error .message{font-size:1.0625rem;white-space:pre-line}
.error .action{margin-top:1rem;white-space:pre-line}
.places{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.25rem 1.25rem;margin:1rem 0 0;font-size:.875rem}
.places dt{color:var(--soft)}.places dd{margin:0}
.said{list-style:none;margin:0;padding:0}
.said li{padding:.7rem 0;border-top:1px solid var(--line);display:grid;grid-template-columns:10.5rem minmax(0,1fr);gap:.1rem 1.25rem}
.said li:first-child{border-top:0;padding-top:0}.said li:last-child{padding-bottom:0}
.said b{font-weight:600}
.verbs{display:grid;grid-template-columns:max-content minmax(3rem,1fr) max-content;gap:.6rem 1rem;align-items:center;font-size:.9375rem}
.verbs svg{display:block;width:100%;height:.75rem;border-radius:.2rem;background:var(--track)}
.verbs .took{text-align:right;min-width:4.25rem}
.verbs .share{color:var(--soft);font-size:.8125rem;margin-left:.5rem}
svg .now{fill:var(--accent)}svg .past{fill:var(--muted)}svg .fail{fill:var(--bad)}svg .bar{fill:var(--accent)}
svg .base{stroke:var(--line);stroke-width:1;vector-effect:non-scaling-stroke}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(19rem,100%),1fr));gap:1rem}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:7.5rem;margin-top:.75rem}
.ends{display:flex;justify-content:space-between;gap:1rem;font-size:.75rem;color:var(--soft);margin-top:.4rem}
.head{display:flex;justify-content:space-between;align-items:baseline;gap:1rem}
.key{display:inline-flex;align-items:center;gap:.4em;margin-right:1rem;font-size:.75rem;color:var(--soft)}
.key i{width:.65rem;height:.65rem;border-radius:.15rem;background:var(--muted)}
.key i.now{background:var(--accent)}.key i.fail{background:var(--bad)}
.scroll{overflow:auto;max-height:32rem;border:1px solid var(--line);border-radius:.75rem;background:var(--card)}
.scroll:focus-visible,summary:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.875rem;white-space:nowrap}
th,td{padding:.5rem .9rem;text-align:right;border-bottom:1px solid var(--line)}
tr>:first-child{text-align:left}
td.text,th.text{text-align:left}
td.cut{max-width:22rem;overflow:hidden;text-overflow:ellipsis}
thead th{position:sticky;top:0;background:var(--card);font-weight:600;font-size:.8125rem;color:var(--soft)}
tbody tr:last-child>*{border-bottom:0}
tbody th{font-weight:400;unicode-bidi:isolate}
tfoot>tr>*{position:sticky;bottom:0;background:var(--card);border-top:1px solid var(--line);border-bottom:0;font-weight:600}
.notes{margin-top:.75rem;font-size:.8125rem;color:var(--soft)}
details+details{margin-top:1rem}
summary{cursor:pointer;font-weight:600;padding:.35rem 0;margin-bottom:.5rem}
summary span{font-weight:400;color:var(--soft);font-size:.875rem;margin-left:.5rem}
footer{margin-top:3rem;padding-top:1.25rem;border-top:1px solid var(--line);font-size:.8125rem;color:var(--soft)}
footer .places{margin-top:0;font-size:.8125rem}
@media (max-width:38rem){
.said li{grid-template-columns:minmax(0,1fr)}
.verbs{grid-template-columns:minmax(0,1fr) max-content;grid-auto-flow:row dense;gap:.2rem 1rem}
.verbs svg{grid-column:1/-1;margin-bottom:.6rem}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.tiles dd{font-size:1.25rem}
.places{grid-template-columns:minmax(0,1fr)}.places dd{margin-bottom:.4rem}
th,td{padding:.45rem .7rem}
tbody th,thead th:first-child{max-width:9.5rem;overflow:hidden;text-overflow:ellipsis}
}
@media print{body{background:none}.scroll{max-height:none;overflow:visible}.card,.scroll,.tiles,.error{break-inside:avoid}}
"""

SHEET = f"{_colours(LIGHT)}\n@media (prefers-color-scheme:dark){{{_colours(DARK)}}}{_SHEET}"
