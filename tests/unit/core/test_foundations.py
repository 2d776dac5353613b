"""Keys, ids, failpoints and the ledger."""

import random
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import failpoints
from holdfast.core.clock import Ids
from holdfast.core.keys import ChatKey
from holdfast.core.ledger import Ledger

TEXT = st.text(min_size=1).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text))


@given(TEXT, TEXT, st.one_of(st.just(""), TEXT))
def test_a_chats_address_survives_being_written_down(channel: str, chat: str, thread: str) -> None:
    key = ChatKey(channel, chat, thread)
    assert ChatKey.parse(str(key)) == key


@given(TEXT, TEXT, TEXT, TEXT)
def test_two_chats_never_share_an_address(a: str, b: str, c: str, d: str) -> None:
    assert (str(ChatKey(a, b)) == str(ChatKey(c, d))) == ((a, b) == (c, d))


@pytest.mark.parametrize("text", ["", "web", "web:", ":chat"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a chat's address"):
        ChatKey.parse(text)


class Ticking:
    def __init__(self) -> None:
        self.time = 1_700_000_000.0

    def now(self) -> float:
        self.time += 0.001
        return self.time


def test_ids_sort_by_time_are_unique_and_come_from_the_seed() -> None:
    ids = Ids(Ticking(), random.Random(1))
    made = [ids.new() for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000
    assert {len(text) for text in made} == {20}
    again = Ids(Ticking(), random.Random(1))
    assert [again.new() for _ in range(3)] == made[:3]


def test_an_armed_failpoint_fails_at_the_wanted_pass_and_only_there() -> None:
    failpoints.arm("test.point=fail:2")
    try:
        failpoints.reach("test.other")
        failpoints.reach("test.point")
        with pytest.raises(failpoints.InjectedFailure):
            failpoints.reach("test.point")
        failpoints.reach("test.point")
    finally:
        failpoints.disarm()
    failpoints.reach("test.point")


def test_a_failpoint_armed_to_kill_kills() -> None:
    code = "from holdfast.core import failpoints as f; f.arm_from_environment(); f.reach('p'); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={failpoints.ENVIRONMENT_NAME: "p=kill"}, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def test_an_unknown_verb_is_refused() -> None:
    with pytest.raises(ValueError, match="'kill' or 'fail'"):
        failpoints.arm("p=explode")


def test_an_entry_is_in_the_ledger_exactly_as_long_as_its_block() -> None:
    ledger = Ledger()
    with ledger.enter("process", "bash", owner="s1"):
        with pytest.raises(OSError, match="x"), ledger.enter("process", "vim", owner="s2"):
            assert [(e.name, e.owner) for e in ledger] == [("bash", "s1"), ("vim", "s2")]
            assert "vim of s2" in repr(ledger)
            raise OSError("x")
        assert len(ledger) == 1
    assert repr(ledger) == "<Ledger: empty>"
