"""Java's regular expressions, as Java itself answered; its answers are in
`tests/groups/golden.json`.
"""

from __future__ import annotations

import pytest

from etl.ledger.topic_filters import java_pattern
from tests.groups.filters import in_python
from tests.groups.golden import golden
from tests.groups.random_patterns import NAMES, pattern_of


def test_random_patterns_match_what_they_match_in_java_or_are_refused() -> None:
    understood = 0
    for seed, theirs in enumerate(golden()["matches"].split()):
        found = in_python(pattern_of(seed))
        if found is not None:
            understood += 1
            assert theirs != "-" and int(found, 2) == int(theirs, 16), (pattern_of(seed), NAMES)
    assert understood > 500


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (
            r"(?!orders).*\d",
            {"t1", "t10", "t22", "0", "007", "page.views-2015_10", "b1", "A1.b2-C3_d4"},
        ),
        (r"o(?i)RDERS|A", {"orders", "a"}),
        (r"\Qa.b\E(\.c)?", {"a.b", "a.b.c"}),
        (r"\p{Upper}{3}|[a-c&]{2}", {"ABC", "ab"}),
        (r"(?<num>t\d)\w?", {"t1", "t10", "t22"}),
        (r".*(?<!b)c|\b_\b", {"c", "_", "a.b.c"}),
        (r"t\d{1,2}|(ab){2,}|-{0,1}|z{1,3}?", {"t1", "t10", "t22", "abab", "-", "zz"}),
    ],
)
def test_what_filters_use_is_translated(pattern: str, matched: set[str]) -> None:
    assert {name for name in NAMES if java_pattern(pattern).fullmatch(name)} == matched
