"""From the gateway to Telegram: answers in messages of the size that Telegram takes, each sent until it has arrived."""

import re
import unicodedata
from collections.abc import Iterator

import anyio
import structlog
from telegram import Bot
from telegram.error import BadRequest, ChatMigrated, Forbidden, InvalidToken, TelegramError

from holdfast.channels.telegram import Pace
from holdfast.core.errors import HoldfastError, TryLater
from holdfast.core.messages import Answer

log = structlog.get_logger(__name__)

LONGEST_MESSAGE = 4096
"""In UTF-16 code units, which is how Telegram counts."""


class Flood(TelegramError):
    """Telegram wants to be left alone for some seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it asks to wait for {seconds:g} s")
        self.seconds = seconds


class Outbound:
    """Sends answers. Where it is in an answer of several parts is known to the call that sends it, and to no table."""

    def __init__(self, bot: Bot, pace: Pace) -> None:
        self._bot = bot
        self._pace = pace
        self.sent = 0
        """Messages that arrived."""

    def __repr__(self) -> str:
        return f"{self.sent} sent"

    async def send(self, answer: Answer) -> None:
        """Deliver an answer, once.

        Only the first part's failure is the caller's to deal with: from then on a repeated call would repeat what
        has arrived, so the rest is sent by this very call, however long Telegram is out of reach.
        """
        first, *rest = split(answer.text)
        await self.say(answer.chat.chat, first)
        for part in rest:
            await self._insist(answer, part)

    async def say(self, chat: str, text: str) -> None:
        """Send one message. Raises `TryLater` when it may be tried again, else `HoldfastError`."""
        try:
            await self._bot.send_message(chat, text)
        except TelegramError as error:
            raise self._sorted(error) from error
        self.sent += 1

    async def _insist(self, answer: Answer, part: str) -> None:
        for wait in self._pace.waits():
            try:
                await self.say(answer.chat.chat, part)
            except TryLater as reason:
                wait = max(wait, reason.after)
                log.warning("the rest is not delivered yet", answer=answer.id, cause=str(reason), wait=wait)
                await anyio.sleep(wait)
            else:
                return

    def _sorted(self, error: TelegramError) -> HoldfastError:
        """The same error, by what to do about it."""
        match error:
            case Flood():
                return TryLater(f"Telegram did not take a message: {error}.", after=error.seconds)
            case InvalidToken():  # the operator may give the bot a new one; until then its answers are kept
                return TryLater("Telegram does not know the bot's token.", after=self._pace.refused_wait)
            case BadRequest() | Forbidden() | ChatMigrated():
                return HoldfastError(f"Telegram will never take this message: {error}.")
        return TryLater(f"Telegram can't be reached: {error}.", after=self._pace.first_wait)


# ── splitting ───────────────────────────────────────────────────────────────────────────────────


def split(text: str, limit: int = LONGEST_MESSAGE) -> list[str]:
    """The text in parts that Telegram takes, at least one.

    A part ends, best first: after a paragraph, before a code block that would be cut, after a line, after a word;
    inside a word only where a reader sees the end of a character.
    """
    parts = []
    text = text.strip()
    blocks = list(_code_blocks(text))
    start = 0
    while start < len(text):
        end = _reach(text, start, limit)
        if end < len(text):
            end = _cut(text, start, end, blocks)
        if part := text[start:end].strip("\n").rstrip():
            parts.append(part)
        start = end
    return parts or ["(There is no text in this answer.)"]  # Telegram takes no message without any


def units(text: str) -> int:
    """A text's length as Telegram counts it."""
    return len(text) + sum(character > "\uffff" for character in text)


def _reach(text: str, start: int, limit: int) -> int:
    """How far a part that begins at `start` may go at most."""
    end = min(start + limit, len(text))
    while (over := units(text[start:end]) - limit) > 0:
        end -= (over + 1) // 2  # a character is two units at most, so this never goes back too far
    return end


def _cut(text: str, start: int, end: int, blocks: list[tuple[int, int]]) -> int:
    """Where a part that can't go further than `end` should end. Space right there costs nothing: it isn't sent."""
    begun = [begin for begin, finish in blocks if begin <= end < finish]
    best = begun[0] if begun and begun[0] > start else end
    if not begun or best < end:
        over = max((finish for _, finish in blocks if finish <= best), default=0)  # no blank line inside of a block
        paragraph = text.rfind("\n\n", max((start + best) // 2, over - 1), best)
        if paragraph > start:
            return paragraph + 2
    if best < end:
        return best
    line = text.rfind("\n", start, end + 1)
    if line > start:
        return line + 1
    for space in range(end, start, -1):
        if text[space].isspace() and not _joined(text, space + 1):
            return space + 1
    character = end
    while character > start and _joined(text, character):
        character -= 1
    return character if character > start else end


def _code_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Where fenced blocks begin and end. One that is never closed goes to the text's end."""
    fence, begin, at = "", 0, 0
    for line in text.splitlines(keepends=True):
        if found := _FENCE.match(line):
            if not fence:
                fence, begin = found[1], at
            elif found[1].startswith(fence) and not found[2]:
                yield begin, at + len(line)
                fence = ""
        at += len(line)
    if fence:
        yield begin, len(text)


_FENCE = re.compile(r"[ \t]*(`{3,}(?!.*`)|~{3,})\s*(.*)")  # ```so``` is no fence


def _joined(text: str, at: int) -> bool:
    """Whether what stands before and after make up one character to a reader's eye.

    The rules of Unicode for grapheme clusters, but for the rare ones of some historic scripts.
    """
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.category(after) in ("Mn", "Me", "Mc") or after in "\u200c\u200d" or _is_extension(after):
        return True
    if before == "\u200d" or unicodedata.combining(before) == _VIRAMA:
        return True
    if _is_flag(before) and _is_flag(after):  # two letters make a flag, so it depends on how many there are
        first = at
        while first > 0 and _is_flag(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 1
    return before + after == "\r\n" or (_is_jamo(before) and "\u1160" <= after <= "\u11ff")


_VIRAMA = 9
"""The combining class of the sign that ties an Indic consonant to the next one."""


def _is_extension(character: str) -> bool:
    """A skin tone, or a tag of a region's flag."""
    return "\U0001f3fb" <= character <= "\U0001f3ff" or "\U000e0020" <= character <= "\U000e007f"


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_jamo(character: str) -> bool:
    """Half of a Korean syllable, or a syllable that may take another half."""
    return "\u1100" <= character <= "\u11ff" or "\uac00" <= character <= "\ud7a3"
