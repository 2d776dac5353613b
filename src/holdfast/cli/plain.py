"""Text from elsewhere, made safe to show in a terminal."""

import re

# Everything that could move the cursor, colour the screen or reorder what is read.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])


def plain(text: str) -> str:
    """Text from elsewhere, without what could play tricks on a terminal."""
    return text.translate(_CONTROLS)


def one_line(text: str, most: int = 200) -> str:
    """The text on one line, cut where it gets too long."""
    line = re.sub(r"\s+", " ", plain(text)).strip()
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
