"""SIGKILL at every failpoint and at random moments: afterwards every message has exactly one answer, in order."""

import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast.storage  # noqa: F401 - registers the store's failpoints
from holdfast.core import failpoints
from holdfast.testing.processes import PATIENCE, GatewayProcess

BY_COMMAND = ("control", "undo", "resume")
"""Writes that a command makes, in a scenario of its own below."""
ELSEWHERE = (*BY_COMMAND, "end", "sent", "conclude", "prune_mail", "prune_session", "shrink")
"""So do others: a conversation's end below, a push in test_telegram; tests/unit/storage/test_crash.py kills the store
alone at every write, those included that a gateway makes once in a while."""
POINTS = [p for p in failpoints.names() if p.startswith("store.") and p.split(".")[1] not in ELSEWHERE]
LATER = [p for p in POINTS if p.split(".")[1] in ("accept", "append", "finish")]
"""Those that are passed often enough to be killed at a later pass, too."""
CHATS = ("one", "two")
PER_CHAT = 4


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path)
    yield process
    process.kill()


class Talk:
    """What a client said in some chats, and what it is entitled to find afterwards."""

    def __init__(self, gateway: GatewayProcess, tag: str) -> None:
        self.gateway = gateway
        self.tag = tag
        self.accepted: dict[str, list[str]] = {chat: [] for chat in CHATS}

    def say(self, chat: str, text: str) -> bool:
        """Whether the gateway says that it has taken it. The same text has the same id: asking again is safe."""
        path = f"/api/chats/web/{self.tag}-{chat}/messages"
        try:
            self.gateway.ask(path, {"text": text, "id": text.replace(" ", "-").replace("/", "")})
        except OSError:
            return False
        if text not in self.accepted[chat]:
            self.accepted[chat].append(text)
        return True

    def say_everything(self) -> bool:
        """Messages that take every way through the store: plain ones, one with a tool, a search."""
        done = True
        for number in range(PER_CHAT):
            for chat in CHATS:
                text = "list files" if number == 1 else f"say {number} in {chat}"
                done = self.say(chat, text) and done
        return done

    def messages(self, chat: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        page: dict[str, Any] = {"more": True}
        while page["more"]:
            before = f"?before={messages[0]['seq']}" if messages else ""
            page = self.gateway.ask(f"/api/chats/web/{self.tag}-{chat}{before}")
            messages = page["messages"] + messages
        return messages

    def wait_for_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(self._unanswered(chat) for chat in CHATS):
            assert time.monotonic() < deadline, f"unanswered: {[self._unanswered(chat) for chat in CHATS]}"
            time.sleep(0.02)

    def _unanswered(self, chat: str) -> list[str]:
        answered = [m["text"] for m in self._exchanges(chat)]
        return [text for text in self.accepted[chat] if text not in answered]

    def _exchanges(self, chat: str) -> list[dict[str, Any]]:
        """Questions that are followed by a final answer before the next question."""
        found, question = [], None
        for message in self.messages(chat):
            if message["role"] == "user":
                question = message
            elif message["role"] == "assistant" and not message.get("tool_calls") and question:
                found.append(question)
                question = None
        return found

    def check(self) -> None:
        """Every accepted message is there once, in order, and has one answer that belongs to it."""
        for chat in CHATS:
            messages = self.messages(chat)
            questions = [m["text"] for m in messages if m["role"] == "user"]
            assert questions == self.accepted[chat]
            finals = [m["text"] for m in messages if m["role"] == "assistant" and not m.get("tool_calls")]
            assert len(finals) == len(questions)
            for question, answer in zip(questions, finals, strict=True):
                if question.startswith("say "):
                    assert answer == question.removeprefix("say ")
            calls = [call["id"] for m in messages for call in m.get("tool_calls", ())]
            results = [m["call_id"] for m in messages if m["role"] == "tool"]
            assert sorted(calls) == sorted(results)


@pytest.mark.parametrize(("point", "count"), [(p, 1) for p in POINTS] + [(p, 3) for p in LATER])
@pytest.mark.proves("invariant 12")
def test_killed_at_a_point_of_the_store_nothing_is_lost_or_doubled(
    gateway: GatewayProcess, point: str, count: int
) -> None:
    talk = Talk(gateway, "t")
    gateway.start(HOLDFAST_FAILPOINT=f"{point}=kill:{count}")
    talk.say_everything()
    with contextlib.suppress(OSError):  # the point may be the search's own
        gateway.ask("/api/sessions?q=one")
    assert gateway.wait() == -signal.SIGKILL, "the point was never reached"
    gateway.start()
    assert talk.say_everything()  # what was refused or unknown is sent again, with the same ids
    talk.wait_for_answers()
    talk.check()
    assert len(gateway.ask(f"/api/sessions?q={CHATS[0]}")["sessions"]) == 1
    assert gateway.terminate() == 0


@pytest.mark.parametrize("point", [f"store.{write}.{when}" for write in BY_COMMAND for when in ("before", "after")])
@pytest.mark.proves("invariant 12")
def test_killed_in_a_command_it_is_carried_out_and_the_chat_goes_on(gateway: GatewayProcess, point: str) -> None:
    commands = ("/reasoning high", "/new", "/resume", "/undo")
    gateway.start(HOLDFAST_FAILPOINT=f"{point}=kill")
    talk = Talk(gateway, "t")
    assert talk.say("one", "say undone")
    talk.wait_for_answers()
    for command in commands:
        talk.say("one", command)
    assert gateway.wait() == -signal.SIGKILL, "the point was never reached"
    gateway.start()
    for command in commands:  # with the same ids: what was answered is not done again
        assert talk.say("one", command)
    deadline = time.monotonic() + PATIENCE
    with closing(sqlite3.connect(f"file:{gateway.home / 'holdfast.db'}?mode=ro", uri=True)) as db:
        while db.execute("SELECT count(*) FROM inbox WHERE answered IS NULL").fetchone() != (0,):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert talk.messages("one") == [], "the conversation that was resumed, undone"
    assert talk.say("one", "say after")
    while [m["text"] for m in talk.messages("one")] != ["say after", "after"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(gateway.ask("/api/sessions?channel=web")["sessions"]) == 1


def test_killed_at_the_end_of_a_conversation_the_end_holds_or_did_not_happen(gateway: GatewayProcess) -> None:
    for point in ("store.end.before", "store.end.after"):
        gateway.start(HOLDFAST_FAILPOINT=f"{point}=kill")
        talk = Talk(gateway, point.replace(".", "-"))
        assert talk.say("one", "say before")
        talk.wait_for_answers()
        talk.say("one", "/new")
        assert gateway.wait() == -signal.SIGKILL
        gateway.start()
        talk.say("one", "/new")
        assert talk.say("one", "say after")
        deadline = time.monotonic() + PATIENCE
        while [m["text"] for m in talk.messages("one")] != ["say after", "after"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        gateway.kill()


@pytest.mark.proves("invariant 12")
def test_killed_at_random_moments_under_load_nothing_is_lost_or_doubled(gateway: GatewayProcess) -> None:
    chance = random.Random(2026)
    talk = Talk(gateway, "t")
    sent = 0
    for _ in range(8):
        gateway.start()
        until = time.monotonic() + chance.uniform(0.0, 0.4)
        while time.monotonic() < until:
            if talk.say(CHATS[sent % 2], f"say {sent}"):
                sent += 1
        gateway.kill()
    gateway.start()
    # The last one may have been stored without its sender hearing of it: sent again, it is the same one.
    assert talk.say(CHATS[sent % 2], f"say {sent}")
    talk.wait_for_answers()
    assert sent > 10
    talk.check()
