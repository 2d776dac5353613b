"""From acceptance to answer: in order, once, one at a time, and nothing left in memory."""

import asyncio
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core import failpoints
from holdfast.core.errors import DuplicateMail, NotFound, StoreError, TryLater
from holdfast.core.events import Answered, Started, Text
from holdfast.core.keys import ChatKey, MailId, SessionId
from holdfast.core.messages import AssistantMessage, UserMessage
from holdfast.core.settings import LimitSettings, ResidentSettings, Settings
from holdfast.testing.gateways import CHAT, open_bench
from holdfast.testing.scripted import Gate, echo, until

pytestmark = pytest.mark.anyio


async def test_a_message_gets_its_answer_and_both_are_stored(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        answer = await bench.say("hello")
        assert (answer.text, answer.outcome) == ("you said hello", "ok")
        assert await bench.said() == [UserMessage("hello"), AssistantMessage("you said hello")]
        assert await bench.store.waiting() == []
        assert await bench.store.answer_to(answer.mail) == answer


async def test_a_conversation_goes_on_and_the_model_sees_all_of_it(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("one")
        await bench.say("two")
        assert len(bench.model.requests[1][2]) == 3
        (session,) = await bench.store.sessions()
        assert session.title == "one"


async def test_the_same_id_gives_the_same_answer_and_no_second_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        first = await bench.send("hello", id="a")
        await gate.has(waiting=1)
        again = await bench.send("hello", id="a")
        assert again is first  # still running: joins it
        gate.open()
        answer = await first.answered()
        later = await bench.send("hello", id="a")
        assert await later.answered() == answer
        assert gate.asked == 1


async def test_one_id_for_two_messages_is_refused(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("hello")
        mail = bench.incoming("other", id="a")
        await (await bench.gateway.accept(bench.incoming("first", id="a"))).answered()
        with pytest.raises(DuplicateMail):
            await bench.gateway.accept(type(mail)(mail.id, mail.chat, mail.text, mail.received, fingerprint="x"))


async def test_one_chat_has_one_turn_at_a_time_and_keeps_the_order(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mails = [await bench.send(str(number)) for number in range(5)]
        await gate.has(waiting=1)
        gate.open()
        for mail in mails:
            await mail.answered()
        assert gate.most_inside == 1
        said = [message.text for message in await bench.said()]
        assert said == [text for n in range(5) for text in (str(n), f"you said {n}")]


async def test_chats_do_not_wait_for_each_other(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mails = [await bench.send("hello", ChatKey("test", str(number))) for number in range(50)]
        await gate.has(waiting=50)
        gate.open()
        for mail in mails:
            assert (await mail.answered()).text == "you said hello"


async def test_the_one_past_the_mailbox_limit_is_told_at_once_and_not_stored(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(mailbox=2))) as bench:
        running = await bench.send("running")
        await gate.has(waiting=1)
        waiting = [await bench.send(str(number)) for number in range(2)]
        with pytest.raises(TryLater):
            await bench.send("too many")
        assert len(await bench.store.waiting()) == 3
        gate.open()
        for mail in (running, *waiting):
            await mail.answered()


async def test_the_limit_holds_when_all_come_at_once(tmp_path: Path) -> None:
    gate = Gate()
    refused = 0
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(mailbox=4))) as bench:

        async def send(number: int) -> None:
            nonlocal refused
            try:
                await bench.send(str(number))
            except TryLater:
                refused += 1

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(send, number)
        assert 40 - refused <= 5  # four that wait, and the one that left the mailbox for its turn
        gate.open()


async def test_a_sender_who_hangs_up_while_being_accepted_strands_nothing(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await bench.send("hello", id="a")
        await until(lambda: bool(bench.model.requests) and not bench.gateway.unanswered)
        answer = await bench.store.answer_to(MailId("a"))
        assert answer
        assert answer.text == "you said hello"


async def test_onlookers_see_a_turn_from_its_beginning_however_late_they_come(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        mail = await bench.send("hello", watched=True)
        await mail.answered()
        for _ in range(2):
            events = [event async for event in mail.events()]
            assert [type(event) for event in events] == [Started, Text, Answered]


async def test_a_request_with_its_own_history_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        chat = ChatKey("api", "request/1")
        history = [UserMessage("before"), AssistantMessage("yes")]
        mail = await bench.gateway.accept(bench.incoming("now", chat, history=history))
        answer = await mail.answered()
        assert answer.text == "you said now"
        assert len(bench.model.requests[0][2]) == 3
        await until(lambda: not bench.gateway.awake)
        assert await bench.store.sessions() == []
        assert bench.model.leases == 0


async def test_a_session_that_owns_nothing_goes_dormant_with_its_agent_and_comes_back_the_same(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=Settings(residents=ResidentSettings(idle_ttl=0))) as bench:
        await bench.say("one")
        await until(lambda: not bench.gateway.awake)
        assert bench.model.leases == 0
        await bench.say("two")
        first, second = bench.model.requests
        assert second[:2] == first[:2]
        assert second[2][0] == first[2][0]
        assert len(await bench.store.sessions()) == 1


async def test_many_chats_come_and_go_and_no_map_has_an_entry_for_them(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=Settings(residents=ResidentSettings(limit=8))) as bench:
        for number in range(200):
            await bench.say("hello", ChatKey("test", str(number)))
        await until(lambda: len(bench.gateway.awake) <= 8)
        assert len(bench.gateway.residents) == 8
        await until(lambda: bench.model.leases == 8)
        assert bench.gateway.unanswered == 0


@pytest.mark.parametrize("idle_ttl", [3600, 0])
async def test_an_operator_can_end_a_conversation_awake_or_dormant(tmp_path: Path, idle_ttl: float) -> None:
    async with open_bench(tmp_path, echo, settings=Settings(residents=ResidentSettings(idle_ttl=idle_ttl))) as bench:
        session = SessionId((await bench.say("hello")).session)
        await until(lambda: not bench.gateway.awake or idle_ttl > 0)
        await bench.gateway.end(session)
        assert await bench.store.wake(CHAT) is None
        with pytest.raises(NotFound):
            await bench.gateway.end(session)
        await until(lambda: not bench.gateway.awake)


async def test_a_conversation_too_long_to_be_read_on_the_way_comes_back_whole(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=Settings(residents=ResidentSettings(idle_ttl=0))) as bench:
        for number in range(60):
            await bench.say(str(number))
        await until(lambda: not bench.gateway.awake)
        await bench.say("last")
        assert len(bench.model.requests[-1][2]) == 121


async def test_a_chat_whose_waking_message_can_not_be_stored_goes_back_to_sleep(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        failpoints.arm("store.accept.before=fail")
        try:
            with pytest.raises(StoreError):
                await bench.send("hello")
        finally:
            failpoints.disarm()
        await until(lambda: not bench.gateway.awake)
        assert (await bench.say("hello")).text == "you said hello"


async def test_a_mailbox_of_one_takes_the_message_that_wakes_its_chat(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo, settings=Settings(limits=LimitSettings(mailbox=1))) as bench:
        assert (await bench.say("hello")).text == "you said hello"


async def test_a_conversation_can_be_ended_in_its_very_first_turn(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate) as bench:
        mail = await bench.send("hello")
        await gate.has(waiting=1)
        session = bench.gateway.awake[CHAT].session
        assert session
        await bench.gateway.end(session.id)
        assert (await mail.answered()).outcome == "stopped"
        assert await bench.store.wake(CHAT) is None


async def test_a_request_that_waits_for_its_turn_can_be_stopped(tmp_path: Path) -> None:
    gate, first, chat = Gate(), ChatKey("api", "request/0"), ChatKey("api", "request/1")
    async with open_bench(tmp_path, gate) as bench:
        for key in (first, chat):
            await bench.gateway.accept(replace(bench.incoming("now", key, history=[]), fingerprint="has a key"))
        await gate.has(waiting=2)
    gate = Gate()  # the next start finds more to do than it may do at once
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=1))) as bench:
        await gate.has(waiting=1)
        waiting = bench.gateway.awake[chat].mailbox.peek()
        assert bench.gateway.stop(chat)
        assert (await waiting.answered()).outcome == "stopped"
        assert not bench.gateway.stop(chat)
        gate.open()
        await until(lambda: not bench.gateway.unanswered)
        assert gate.asked == 1
        await until(lambda: chat not in bench.gateway.awake)


async def test_how_turns_went_is_counted(tmp_path: Path) -> None:
    async with open_bench(tmp_path, echo) as bench:
        await bench.say("hello")
        await bench.say("/help")
        assert bench.gateway.tally.outcomes == {"ok": 1}
        assert sum(bench.gateway.tally.buckets) == 1


async def test_past_the_limit_of_chats_at_once_the_next_is_refused_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=2))) as bench:
        mails = [await bench.send("hello", ChatKey("test", name)) for name in "ab"]
        with pytest.raises(TryLater, match="as many chats at once") as refused:
            await bench.send("hello", ChatKey("test", "c"))
        assert refused.value.after > 0
        mails.append(await bench.send("me again", ChatKey("test", "a")))  # who is being answered may go on
        assert (await bench.say("/status", ChatKey("test", "c"))).outcome == "ok"  # a command needs no turn
        assert len(await bench.store.waiting()) == 3
        gate.open()
        for mail in mails:
            assert (await mail.answered()).outcome == "ok"
        assert bench.gateway.busy == 0
        assert (await bench.say("hello", ChatKey("test", "c"))).outcome == "ok"


async def test_a_burst_past_the_limit_is_refused_before_any_turn_has_begun(tmp_path: Path) -> None:
    gate = Gate()
    async with open_bench(tmp_path, gate, settings=Settings(limits=LimitSettings(turns=3))) as bench:
        sent = await asyncio.gather(
            *(bench.send("hello", ChatKey("test", str(number))) for number in range(10)), return_exceptions=True
        )
        assert sum(isinstance(result, TryLater) for result in sent) == 7
        gate.open()
        await until(lambda: not bench.gateway.unanswered)
