"""The page of what consumers do has every row once, each with where it is or why it is not."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "adr" / "0029-what-consumers-do.md"
ROWS_OF_A_SECTION = (19, 34, 36, 21, 16, 18, 20, 8, 4, 6, 7)
ADVISED_AGAINST = {
    "2.5",
    "2.21",
    "2.30",
    "2.31",
    "3.1",
    "4.8",
    "5.5",
    "5.12",
    "5.15",
    "7.4",
    "7.7",
    "7.15",
    "7.20",
    "8.8",
    "11.4",
    "11.5",
    "11.6",
    "11.7",
}
_ROW = re.compile(r"\| (\d+\.\d+) \| (.+?) \| (there|refused) \| (.*) ?\|")


def test_each_row_exists_once_with_its_test_or_the_reason_for_none() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    rows = [found for line in lines if (found := _ROW.fullmatch(line))]
    assert len(rows) == len(lines), "every row has a number, a behaviour, and one of two words"
    numbers = [row[1] for row in rows]
    assert numbers == [
        f"{section}.{row}"
        for section, count in enumerate(ROWS_OF_A_SECTION, 1)
        for row in range(1, count + 1)
    ]
    assert len(numbers) == 189
    assert ADVISED_AGAINST <= {row[1] for row in rows if row[3] == "refused"}
    assert [row[1] for row in rows if not row[4].strip()] == []
