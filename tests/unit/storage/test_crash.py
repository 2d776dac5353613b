"""A process that is killed at any point of any write leaves what it acknowledged, and nothing half.

The process that is killed runs this very file.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core import failpoints
from holdfast.core.clock import SystemClock
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.ledger import Ledger
from holdfast.core.messages import Answer, AssistantMessage
from holdfast.core.protocols import Controls, Store
from holdfast.storage import open_store
from holdfast.testing.stores import CHAT, MAIL, SESSION, a_mail, a_row, a_session, an_answer, write_methods

pytestmark = pytest.mark.anyio

SCENARIO: list[tuple[str, Callable[[Store], Awaitable[Any]]]] = [
    ("accept", lambda store: store.accept(a_mail())),
    ("begin", lambda store: store.begin(a_session())),
    ("control", lambda store: store.control(SESSION, Controls("big", notes=("a note",)))),
    ("append", lambda store: store.append(SESSION, a_row(1, "hello"))),
    (
        "finish",
        lambda store: store.finish(
            an_answer(id="a1"),
            SESSION,
            [a_row(2, AssistantMessage("hi")), a_row(3, "and more")],
            push=True,
            controls=Controls("big"),
        ),
    ),
    ("sent", lambda store: store.sent("a1", 30.0)),
    ("undo", lambda store: store.undo(SESSION, 2, 35.0)),
    ("end", lambda store: store.end(SESSION, 40.0, "expired", hooks=True)),
    ("conclude", lambda store: store.conclude(SESSION, 41.0)),
    ("begin", lambda store: store.begin(a_session("later"))),
    ("resume", lambda store: store.resume(SESSION, 45.0)),
    ("prune_mail", lambda store: store.prune_mail(50.0)),
    ("prune_session", lambda store: store.prune_session(SessionId("later"))),
    ("shrink", lambda store: store.shrink()),
]
"""Every write, each awaited before the next."""

A_TURN = [(name, write) for name, write in SCENARIO[:5] if name != "control"]
"""What a restart may do again."""

open_here = partial(open_store, ledger=Ledger(), clock=SystemClock())


async def everything(path: Path) -> list[object]:
    """All that a store tells of the scenario."""
    async with open_here(path, inline=True) as store:
        return [
            await store.waiting(),
            await store.unsent(),
            await store.answer_to(MAIL),
            await store.wake(CHAT),
            await store.session(SESSION),
            await store.history(SESSION),
            await store.sessions(search="hello"),
            await store.session(SessionId("later")),
            await store.expired(CHAT),
            await store.last_ended(CHAT),
            await store.unconcluded(),
            await store.ended(100.0),
        ]


def run_until_killed(verb: str, path: Path, failpoint: str) -> list[str]:
    """The lines by which the process acknowledged what it had done before it was killed."""
    environment = {"PYTHONPATH": str(Path(holdfast.__file__).parents[1]), failpoints.ENVIRONMENT_NAME: failpoint}
    command = [sys.executable, __file__, verb, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()


def test_the_scenario_has_every_write() -> None:
    assert {name for name, _ in SCENARIO} == set(write_methods())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "step", range(len(SCENARIO)), ids=[f"{step}-{name}" for step, (name, _) in enumerate(SCENARIO)]
)
async def test_what_was_acknowledged_is_there_and_nothing_is_half_there(step: int, when: str, tmp_path: Path) -> None:
    names = [name for name, _ in SCENARIO]
    failpoint = f"store.{names[step]}.{when}=kill:{names[: step + 1].count(names[step])}"
    assert run_until_killed("go_through_scenario", tmp_path / "killed.db", failpoint) == names[:step]

    whole = SCENARIO[: step if when == "before" else step + 1]
    async with open_here(tmp_path / "whole.db") as store:
        for _, write in whole:
            await write(store)
    assert await everything(tmp_path / "killed.db") == await everything(tmp_path / "whole.db")


async def test_after_a_crash_the_same_writes_again_change_nothing(tmp_path: Path) -> None:
    run_until_killed("go_through_scenario", tmp_path / "killed.db", "store.finish.after=kill")
    async with open_here(tmp_path / "killed.db") as store:
        for _, write in A_TURN:
            await write(store)
    async with open_here(tmp_path / "whole.db") as store:
        for _, write in SCENARIO[:5]:
            await write(store)
    assert await everything(tmp_path / "killed.db") == await everything(tmp_path / "whole.db")


@pytest.mark.parametrize("failpoint", ["store.accept.after=kill:300", "store.finish.before=kill:250"])
async def test_in_the_thick_of_it_every_turn_is_whole_or_not_there(failpoint: str, tmp_path: Path) -> None:
    """Many turns at once share commits; a kill takes whole commits, never a part of a turn's last step."""
    path = tmp_path / "killed.db"
    acknowledged = run_until_killed("take_many_turns", path, failpoint)
    accepted = {line.removeprefix("accepted:") for line in acknowledged if line.startswith("accepted:")}
    finished = {line.removeprefix("finished:") for line in acknowledged if line.startswith("finished:")}
    assert len(finished) > 50
    async with open_here(path) as store:
        waiting = {mail.id for mail in await store.waiting()}
        answers = {answer.mail: answer for answer in await store.unsent()}
        assert accepted <= waiting | answers.keys()
        assert finished <= answers.keys()
        assert not waiting & answers.keys(), "answered and waiting at once"
        for worker in range(32):
            rows = await store.history(SessionId(f"session-{worker}"))
            answered = [mail for mail in answers if mail.startswith(f"mail-{worker}-")]
            assert [row.seq for row in rows][: 2 * len(answered)] == list(range(2 * len(answered))), "both messages"


# ── in the process that is killed ───────────────────────────────────────────────────────────────


def acknowledge(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def go_through_scenario(path: Path) -> None:
    async with open_here(path) as store:
        for name, write in SCENARIO:
            await write(store)
            acknowledge(name)


async def take_many_turns(path: Path) -> None:
    async def turns(store: Store, worker: int) -> None:
        chat, session = ChatKey("test", str(worker)), SessionId(f"session-{worker}")
        store.begin(a_session(session, chat))
        for turn in range(1000):
            mail = MailId(f"mail-{worker}-{turn}")
            await store.accept(a_mail(mail))
            acknowledge(f"accepted:{mail}")
            store.append(session, a_row(2 * turn, "hello", mail))
            answer = Answer(f"answer-{worker}-{turn}", mail, chat, "hi", 20.0)
            await store.finish(answer, session, [a_row(2 * turn + 1, AssistantMessage("hi"), mail)], push=True)
            acknowledge(f"finished:{mail}")

    async with open_here(path) as store, asyncio.TaskGroup() as group:
        for worker in range(32):
            group.create_task(turns(store, worker))


if __name__ == "__main__":
    failpoints.arm_from_environment()
    asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2])))
