"""The terminal chat as people use it: a real gateway, a real terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from holdfast.testing.processes import PATIENCE, TOKEN, GatewayProcess, running_gateway

from .terminals import Terminal, open_terminal


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for the module's tests, each of which talks in a chat of its own."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that the test may kill."""
    with running_gateway(tmp_path) as process:
        yield process


def environment(gateway: GatewayProcess) -> dict[str, str]:
    """What a user's shell has who shares the machine and the home with the gateway."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    port = str(gateway.port)
    return {**kept, "HOLDFAST_HOME": str(gateway.home), "HOLDFAST_SERVER__PORT": port, "HOLDFAST_SERVER__TOKEN": TOKEN}


def open_chat(
    gateway: GatewayProcess, name: str, *arguments: str, columns: int = 80
) -> AbstractContextManager[Terminal]:
    return open_terminal("chat", "--chat", name, *arguments, environment=environment(gateway), columns=columns)


def holdfast(
    gateway: GatewayProcess, *arguments: str, stdin: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        input=stdin,
        env=environment(gateway) | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def said_in(gateway: GatewayProcess, chat: str) -> list[tuple[str, str]]:
    messages = gateway.ask(f"/api/chats/terminal/{chat}")["messages"]
    return [(message["role"], message["text"]) for message in messages]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def idle(shown: str) -> bool:
    """Whether there is nothing but an empty line to type on: an answer that comes stands right above it."""
    return shown.endswith("\n\n›")


# ── talking ─────────────────────────────────────────────────────────────────────────────────────


def test_a_message_gets_its_answer_and_ctrl_d_leaves(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "first") as terminal:
        shown = terminal.see(idle)
        assert "chat first" in shown
        assert "demo" in shown
        assert "Alt-Enter" in shown
        terminal.say("say that it works")
        terminal.see("\n\nthat it works\n\n›")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert terminal.screen.text.count("say that it works") == 1


def test_a_tool_call_is_one_line_with_its_mark(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "tools") as terminal:
        terminal.see(idle)
        terminal.say("list files and read nowhere.txt")
        shown = terminal.see(lambda shown: "nowhere.txt:" in shown and idle(shown))
    assert "✓ list_files" in shown
    assert re.search(r"^✗ read_file nowhere\.txt: .+$", shown, re.MULTILINE)


def test_what_is_typed_while_an_answer_comes_waits_for_its_turn_and_mixes_with_nothing(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "typing") as terminal:
        terminal.see(idle)
        terminal.say("count to 100")
        terminal.see("12 13")
        for letter in "say second":
            terminal.type(letter)
            time.sleep(0.02)  # a person types
        terminal.type("\r")
        shown = terminal.see(lambda shown: shown.endswith("second\n\n›"))
    first, second = shown.index("› count to 100"), shown.index("› say second")
    assert re.findall(r"\d+", shown[first + len("› count to 100") : second]) == [str(n) for n in range(1, 101)]
    assert shown[second:].split() == ["›", "say", "second", "second", "›"]


def test_alt_enter_makes_a_message_of_several_lines(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "lines") as terminal:
        terminal.see(idle)
        terminal.type("say one\x1b\rtwo\r")
        terminal.see(lambda shown: "› say one\n  two\n" in shown and idle(shown))
    assert said_in(gateway, "lines")[0] == ("user", "say one\ntwo")


def test_the_commands_are_offered_with_their_help(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "commands") as terminal:
        terminal.see(idle)
        terminal.type("/st")
        shown = terminal.see("/status")
        assert "Stop the running answer." in shown
        assert "/new" not in shown
        terminal.type("\x03")
        terminal.see(idle)
        terminal.say("/help")
        shown = terminal.see(lambda shown: "/help: " in shown and idle(shown))
        assert "/new: " in shown
        terminal.say("/quit")
        assert terminal.end() == 0


def test_a_command_is_answered_while_an_answer_runs(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "status") as terminal:
        terminal.see(idle)
        terminal.say("count to 500")
        terminal.see("12 13")
        terminal.say("/status")
        terminal.see("running for")
        terminal.say("/stop")
        terminal.see("(Stopped.)")


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "stop") as terminal:
        terminal.see(idle)
        terminal.say("count to 500")
        terminal.see("12 13")
        terminal.type("\x03")
        terminal.see("(Stopped.)")
        terminal.say("say still here")
        terminal.see("\nstill here\n")
    assert "500" not in dict(reversed(said_in(gateway, "stop")))["assistant"]


def test_ctrl_c_twice_leaves_when_nothing_runs(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "leave") as terminal:
        terminal.see(idle)
        terminal.type("half a line")
        terminal.see("› half a line")
        terminal.type("\x03")
        terminal.see(idle)
        terminal.type("\x03")
        terminal.see("Ctrl-C again")
        terminal.type("\x03")
        assert terminal.end() == 0


@pytest.mark.parametrize("columns", [80, 40])
def test_an_answer_looks_right_in_any_width(gateway: GatewayProcess, columns: int) -> None:
    with open_chat(gateway, f"width-{columns}", columns=columns) as terminal:
        terminal.see(idle)
        terminal.say("hello")
        shown = terminal.see(lambda shown: "restart" in shown and idle(shown))
    assert max(map(len, shown.splitlines())) <= columns
    assert " • read_file: Read a text file" in shown
    assert "**" not in shown


def test_escape_sequences_of_an_answer_do_not_reach_the_terminal(gateway: GatewayProcess) -> None:
    with open_terminal("chat", "-m", "say \x1b]0;evil\x07\x1b[2Jhello", environment=environment(gateway)) as terminal:
        assert terminal.end() == 0
    assert "]0;evil[2Jhello" in terminal.screen.text


# ── coming back ─────────────────────────────────────────────────────────────────────────────────


def test_a_chat_that_goes_on_shows_what_was_said_last(gateway: GatewayProcess) -> None:
    for number in range(5):
        assert holdfast(gateway, "chat", "--chat", "past", "-m", f"say word-{number}").returncode == 0
    with open_chat(gateway, "past") as terminal:
        shown = terminal.see(idle)
        assert "resuming: say word-0" in shown
        assert "› say word-4\n\nword-4\n" in shown
        assert "› say word-1" not in shown
        terminal.say("/new")
        terminal.see("A new conversation begins")
    with open_chat(gateway, "past") as terminal:
        assert "resuming" not in terminal.see(idle)


def test_an_answer_that_was_left_is_joined_again(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "joined") as terminal:
        terminal.see(idle)
        terminal.say("count to 200")
        terminal.see("12 13")
        terminal.type("\x04")
        terminal.see("goes on without you")
        assert terminal.end() == 0
    with open_chat(gateway, "joined") as terminal:
        shown = terminal.see(lambda shown: "200" in shown and idle(shown))
    assert shown.count("› count to 200") == 1
    assert re.findall(r"\d+", shown.partition("› count to 200")[2]) == [str(n) for n in range(1, 201)]
    assert [role for role, _ in said_in(gateway, "joined")] == ["user", "assistant"]


def test_a_gateway_that_dies_in_the_middle_of_an_answer_loses_and_doubles_nothing(own_gateway: GatewayProcess) -> None:
    with open_chat(own_gateway, "crash") as terminal:
        terminal.see(idle)
        terminal.say("count to 150")
        terminal.see("12 13")
        own_gateway.kill()
        terminal.see("No gateway answers")
        terminal.say("say and then")
        own_gateway.start()
        shown = terminal.see(lambda shown: shown.endswith("and then\n\n›"))
    assert "The gateway is back." in shown
    assert [role for role, _ in said_in(own_gateway, "crash")] == ["user", "assistant"] * 2
    assert said_in(own_gateway, "crash")[2] == ("user", "say and then")
    counted = re.findall(r"\d+", re.sub(r"(?m)^.*gateway.*$", "", shown.partition("› count to 150")[2]))
    assert counted == [str(n) for n in range(1, 151)]


def test_what_was_typed_is_kept_for_the_next_chat_and_for_nobody_else(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "history") as terminal:
        terminal.see(idle)
        terminal.say("say remember this")
        terminal.see("\nremember this\n")
    with open_chat(gateway, "history-2") as terminal:
        terminal.see(idle)
        terminal.type("\x1b[A")
        terminal.see("› say remember this")
    assert (gateway.home / "chat_history").stat().st_mode & 0o777 == 0o600


def test_a_terminated_chat_leaves_the_terminal_as_it_was(gateway: GatewayProcess) -> None:
    with open_chat(gateway, "terminated") as terminal:
        terminal.see(idle)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0


# ── without a gateway ───────────────────────────────────────────────────────────────────────────


def test_without_a_gateway_the_chat_runs_one_of_its_own(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path)
    with open_terminal("chat", environment=environment(gateway) | gateway.settings) as terminal:
        terminal.see("No gateway is running")
        terminal.see(idle)
        terminal.say("say embedded")
        terminal.see("\nembedded\n")
        # A second chat finds the first one's gateway, whatever port it has.
        other = holdfast(gateway, "chat", "--chat", "main", "-m", "say found")
        assert (other.returncode, other.stdout) == (0, "found\n")
        terminal.type("\x04")
        assert terminal.end() == 0
    log = tmp_path / "chat.log"
    assert log.read_text() == ""
    assert log.stat().st_mode & 0o777 == 0o600


def test_leaving_an_embedded_gateway_does_not_wait_for_the_answer(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path)
    with open_terminal("chat", environment=environment(gateway) | gateway.settings) as terminal:
        terminal.see(idle)
        terminal.say("count to 5000")
        terminal.see("12 13")
        started = time.monotonic()
        terminal.type("\x04")
        assert terminal.end() == 0
    assert time.monotonic() - started < 15  # the count takes 75


# ── one question ────────────────────────────────────────────────────────────────────────────────


def test_one_question_prints_the_answer_and_nothing_else(gateway: GatewayProcess) -> None:
    done = holdfast(gateway, "chat", "-m", "say **this**")
    assert (done.stdout, done.stderr, done.returncode) == ("**this**\n", "", 0)


def test_what_is_piped_in_follows_the_message_after_an_empty_line(gateway: GatewayProcess) -> None:
    done = holdfast(gateway, "chat", "--chat", "piped", "-m", "say:", stdin="one\ntwo\n")
    assert done.returncode == 0
    assert said_in(gateway, "piped")[0] == ("user", "say:\n\none\ntwo")


@pytest.mark.parametrize("arguments", [("-m", "-"), ()])
def test_the_message_may_come_from_standard_input(gateway: GatewayProcess, arguments: tuple[str, ...]) -> None:
    done = holdfast(gateway, "chat", *arguments, stdin="say from a pipe\n")
    assert (done.stdout, done.returncode) == ("from a pipe\n", 0)


def test_an_answer_as_json(gateway: GatewayProcess) -> None:
    done = holdfast(gateway, "chat", "--chat", "json", "-m", "say hi", "--json")
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["outcome"], answer["chat"]) == ("hi", "ok", "json")
    assert answer["usage"]["output"] == 1
    assert answer["session"]


def test_a_failed_answer_is_a_sentence_on_standard_error_and_status_1(gateway: GatewayProcess) -> None:
    done = holdfast(gateway, "chat", "-m", "fail")
    assert (done.stdout, done.returncode) == ("", 1)
    assert re.fullmatch(r"holdfast: .+\n", done.stderr)
    as_json = holdfast(gateway, "chat", "-m", "fail", "--json")
    assert (json.loads(as_json.stdout)["outcome"], as_json.returncode) == ("failed", 1)


def test_each_question_has_a_chat_of_its_own_that_ends_with_it(own_gateway: GatewayProcess) -> None:
    for _ in range(3):
        assert holdfast(own_gateway, "chat", "-m", "say hi").returncode == 0
    assert own_gateway.ask("/admin/status")["sessions"] == []
    sessions = own_gateway.ask("/api/sessions")["sessions"]
    assert len({session["chat"] for session in sessions}) == 3
    assert all(session["ended"] for session in sessions)


def test_a_named_chat_goes_on_until_a_new_one_is_asked_for(gateway: GatewayProcess) -> None:
    for text in ("say one", "say two"):
        holdfast(gateway, "chat", "--chat", "named", "-m", text)
    assert [text for role, text in said_in(gateway, "named") if role == "user"] == ["say one", "say two"]
    holdfast(gateway, "chat", "--chat", "named", "--new", "-m", "say three")
    assert [text for role, text in said_in(gateway, "named") if role == "user"] == ["say three"]


def test_an_interrupted_question_stops_its_answer_and_exits_with_130(own_gateway: GatewayProcess) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "chat", "-m", "count to 5000"],
        env=environment(own_gateway),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_for(lambda: any(one["state"] == "running" for one in own_gateway.ask("/admin/status")["sessions"]))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout, stderr) == (130, b"", b"")
    wait_for(lambda: own_gateway.ask("/admin/status")["sessions"] == [])


def test_a_reader_that_has_seen_enough_is_no_error(gateway: GatewayProcess) -> None:
    command = f"{sys.executable} -m holdfast chat -m hello | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env=environment(gateway),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_a_terminal_without_a_character_gets_another(gateway: GatewayProcess) -> None:
    done = holdfast(gateway, "chat", "-m", "say größer", PYTHONIOENCODING="ascii")
    assert (done.stdout, done.stderr, done.returncode) == ("gr??er\n", "", 0)


def test_one_question_on_a_terminal_is_shown_as_it_comes(gateway: GatewayProcess) -> None:
    with open_terminal("chat", "-m", "count to 150", environment=environment(gateway)) as terminal:
        terminal.see(lambda shown: "12 13" in shown and "150" not in shown)
        assert terminal.end() == 0
    assert re.findall(r"\d+", terminal.screen.text) == [str(n) for n in range(1, 151)]


def test_one_question_without_a_gateway_is_answered_all_the_same(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path)
    done = holdfast(gateway, "chat", "-m", "say hi", **gateway.settings)
    assert (done.stdout, done.stderr, done.returncode) == ("hi\n", "", 0)


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────


def one_line(done: "subprocess.CompletedProcess[str]", status: int) -> str:
    assert (done.stdout, done.returncode) == ("", status)
    assert re.fullmatch(r"holdfast: .+\n", done.stderr), done.stderr
    return done.stderr


def test_a_wrong_token_is_said_in_one_line_without_the_token(gateway: GatewayProcess) -> None:
    said = one_line(holdfast(gateway, "chat", "-m", "say hi", "--url", gateway.url, "--token", "wrong-one"), 1)
    assert "does not accept this token" in said
    assert "wrong-one" not in said


def test_a_gateway_that_was_named_and_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path)
    assert gateway.url in one_line(holdfast(gateway, "chat", "-m", "say hi", "--url", gateway.url), 1)


def test_the_link_to_the_web_chat_is_a_good_address(gateway: GatewayProcess) -> None:
    link = holdfast(gateway, "link").stdout.strip()
    assert link == gateway.link
    done = holdfast(gateway, "chat", "-m", "say hi", "--url", link, HOLDFAST_SERVER__TOKEN="another")
    assert (done.stdout, done.returncode) == ("hi\n", 0)
