"""The web chat as people use it: a real gateway, a real browser."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from holdfast.testing.processes import TOKEN, GatewayProcess

from .conftest import OpenPage

DESKTOP = {"width": 1100, "height": 760}
PHONE = {"width": 360, "height": 640}


@pytest.fixture
def page(gateway: GatewayProcess, open_page: OpenPage) -> Page:
    """The chat, opened by its link, ready for a first message."""
    page = open_page(gateway.link, viewport=DESKTOP)
    expect(page.get_by_text("What can I do for you?")).to_be_visible()
    return page


def say(page: Page, text: str) -> Locator:
    """Send a message; returns its turn, which may still be running."""
    before = page.locator(".turn").count()
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(before + 1)
    return page.locator(".turn").nth(before)


def answer_of(turn: Locator) -> Locator:
    """The finished answer."""
    expect(turn).to_have_class(re.compile(r"\bover\b"))
    return turn.locator(".answer .parts")


def wait_until_counting(turn: Locator) -> None:
    expect(turn.locator(".answer")).to_contain_text("20")


def text_of(locator: Locator) -> str:
    return locator.inner_text()


# ---- sending and streaming


def test_an_answer_comes_with_its_markdown(page: Page) -> None:
    answer = answer_of(say(page, "say hello **world**"))
    expect(answer).to_have_text("hello world")
    expect(answer.locator("strong")).to_have_text("world")
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_an_answer_is_shown_while_it_grows(page: Page) -> None:
    turn = say(page, "count to 300")
    wait_until_counting(turn)
    expect(turn).not_to_have_class(re.compile("over"))
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    early = text_of(turn.locator(".parts"))
    assert "300" not in early
    assert text_of(answer_of(turn)).startswith(early.rstrip()[:40])
    expect(turn.locator(".parts")).to_contain_text("300")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_the_stop_button_ends_the_answer(page: Page) -> None:
    turn = say(page, "count to 500")
    wait_until_counting(turn)
    page.get_by_role("button", name="Stop").click()
    answer = answer_of(turn)
    expect(answer).to_contain_text("20")
    expect(answer).not_to_contain_text("500")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(answer_of(say(page, "say still here"))).to_have_text("still here")


def test_escape_ends_the_answer(page: Page) -> None:
    turn = say(page, "count to 500")
    wait_until_counting(turn)
    page.keyboard.press("Escape")
    expect(answer_of(turn)).not_to_contain_text("500")


def test_a_message_sent_during_an_answer_waits_for_its_turn(page: Page) -> None:
    first = say(page, "count to 500")
    wait_until_counting(first)
    second = say(page, "say second")
    expect(second.locator(".working")).to_contain_text("Waiting")
    page.get_by_role("button", name="Stop").click()
    expect(answer_of(second)).to_have_text("second")
    expect(page.locator(".question")).to_have_text(["count to 500", "say second"])


def test_no_more_than_three_messages_are_under_way(page: Page) -> None:
    wait_until_counting(say(page, "count to 500"))
    say(page, "say second")
    say(page, "say third")
    box = page.get_by_label("Message", exact=True)
    box.fill("say fourth")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Three messages are under way")
    expect(box).to_have_value("say fourth")
    page.get_by_role("button", name="Stop").click()
    answer_of(page.locator(".turn").nth(2))
    box.press("Enter")
    expect(answer_of(page.locator(".turn").nth(3))).to_have_text("fourth")


def test_a_finished_answer_is_read_out(page: Page) -> None:
    answer_of(say(page, "say for the ears"))
    expect(page.locator("[aria-live=polite]")).to_have_text("for the ears")


def test_enter_sends_and_shift_enter_makes_a_new_line(page: Page) -> None:
    box = page.get_by_label("Message", exact=True)
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    box.press_sequentially("say one")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    expect(box).to_have_value("say one\ntwo")
    expect(page.locator(".turn")).to_have_count(0)
    box.press("Enter")
    expect(page.locator(".question .words")).to_have_text("say one\ntwo", use_inner_text=True)


def test_keys_lead_to_the_box_and_to_the_search(page: Page) -> None:
    page.locator("#title").click()
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.get_by_label("Message", exact=True)).to_have_value("/")
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search conversations")).to_be_focused()


def test_a_command_is_answered_at_once_while_an_answer_grows(page: Page) -> None:
    turn = say(page, "count to 500")
    wait_until_counting(turn)
    expect(answer_of(say(page, "/help"))).to_contain_text("/stop")
    expect(turn).not_to_have_class(re.compile("over"))
    page.keyboard.press("Escape")
    answer_of(turn)


def test_the_models_name_is_shown(page: Page, gateway: GatewayProcess) -> None:
    status = gateway.ask("/api/status")
    assert status["demo"] is True
    expect(page.locator("#model")).to_have_text("demo model")
    expect(page.locator("#model")).to_have_attribute("title", re.compile(re.escape(status["model"]["name"])))


# ---- tools


def test_a_tool_call_is_folded_and_can_be_opened(page: Page) -> None:
    turn = say(page, "list files")
    answer_of(turn)
    tool = turn.locator("details.tool")
    expect(tool).to_have_attribute("data-state", "done")
    expect(tool.locator(".tool-name")).to_have_text("list_files")
    expect(tool.locator(".tool-result")).to_be_hidden()
    tool.locator("summary").click()
    expect(tool.locator(".tool-arguments")).to_be_visible()
    expect(tool.locator(".tool-result")).to_be_visible()


def test_a_failed_tool_call_says_so_also_after_a_reload(page: Page) -> None:
    turn = say(page, "read no-such-file.txt")
    answer_of(turn)
    for _ in range(2):
        tool = page.locator("details.tool")
        expect(tool).to_have_attribute("data-state", "failed")
        expect(tool.locator("summary")).to_contain_text("failed")
        expect(tool.locator("summary")).to_contain_text("no-such-file.txt")
        page.reload()


# ---- coming back


def test_a_reload_in_mid_answer_finds_the_stream_again(page: Page) -> None:
    wait_until_counting(say(page, "count to 500"))
    page.reload()
    turn = page.locator(".turn")
    wait_until_counting(turn)
    expect(turn).not_to_have_class(re.compile("over"))
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(answer_of(turn)).to_contain_text("500")
    expect(page.locator(".question")).to_have_text(["count to 500"])


def test_an_answer_that_was_found_again_can_be_stopped(page: Page) -> None:
    wait_until_counting(say(page, "count to 500"))
    page.reload()
    wait_until_counting(page.locator(".turn"))
    page.get_by_role("button", name="Stop").click()
    expect(answer_of(page.locator(".turn"))).not_to_contain_text("500")


def test_a_conversation_is_there_after_a_reload(page: Page) -> None:
    answer_of(say(page, "say first"))
    answer_of(say(page, "say second"))
    page.reload()
    expect(page.locator(".question")).to_have_text(["say first", "say second"])
    expect(page.locator(".answer .parts")).to_have_text(["first", "second"])


def test_a_conversation_is_found_in_the_list_and_by_search(page: Page) -> None:
    answer_of(say(page, "say the walrus sings"))
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    answer_of(say(page, "say something else"))

    page.get_by_label("Search conversations").fill("walrus")
    found = page.locator("#list a")
    expect(found).to_have_count(1)
    expect(found.locator("mark").first).to_have_text("walrus")
    found.click()
    expect(page.locator(".answer .parts")).to_have_text(["the walrus sings"])
    expect(found).to_have_attribute("aria-current", "page")

    page.get_by_label("Search conversations").press("Escape")
    expect(page.get_by_label("Search conversations")).to_have_value("")
    page.locator("#list a", has_text="something else").first.click()
    expect(page.locator(".answer .parts")).to_have_text(["something else"])
    page.get_by_label("Search conversations").fill("no such words anywhere")
    expect(page.get_by_text("Nothing found.")).to_be_visible()


def test_an_ended_conversation_can_be_read_and_a_new_one_begun(page: Page) -> None:
    answer_of(say(page, "say before the end"))
    page.get_by_label("Message", exact=True).fill("/new")
    page.keyboard.press("Enter")
    expect(page.get_by_text("What can I do for you?")).to_be_visible()
    expect(page.locator(".divider")).to_be_visible()

    page.locator("#list a", has_text="before the end").first.click()
    expect(page.locator(".answer .parts")).to_have_text(["before the end"])
    expect(page.get_by_text("This conversation has ended")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Start a new one").click()
    expect(answer_of(say(page, "say anew"))).to_have_text("anew")


def test_a_conversation_ended_in_mid_answer_leaves_the_page_empty(page: Page) -> None:
    turn = say(page, "count to 500")
    wait_until_counting(turn)
    page.get_by_label("Message", exact=True).fill("/new")
    page.keyboard.press("Enter")
    expect(page.get_by_text("What can I do for you?")).to_be_visible()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(answer_of(say(page, "say fresh"))).to_have_text("fresh")


def test_earlier_messages_are_shown_when_asked_for(page: Page, gateway: GatewayProcess) -> None:
    chat = page.url.rpartition("/")[2]
    for number in range(101):
        gateway.say(chat, f"say number {number}")
    page.reload()
    expect(page.locator(".question").last).to_have_text("say number 100")
    expect(page.locator(".turn")).to_have_count(100)
    page.get_by_role("button", name="Show earlier messages").click()
    expect(page.locator(".turn")).to_have_count(101)
    expect(page.locator(".question").first).to_have_text("say number 0")
    expect(page.get_by_role("button", name="Show earlier messages")).to_be_hidden()


def test_the_list_goes_back_as_far_as_one_wants(own_gateway: GatewayProcess, open_page: OpenPage) -> None:
    for number in range(35):
        own_gateway.say(f"chat{number}", f"say number {number}")
    page = open_page(own_gateway.link, viewport=DESKTOP)
    entries = page.locator("#list a")
    expect(entries).to_have_count(30)
    expect(entries.first).to_contain_text("say number 34")
    page.get_by_role("button", name="Show more").click()
    expect(entries).to_have_count(35)
    expect(entries.last).to_contain_text("say number 0")
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


def test_what_is_written_but_not_sent_survives_a_reload(page: Page) -> None:
    page.get_by_label("Message", exact=True).fill("half a thought")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thought")


def test_two_windows_show_the_same_conversation(page: Page) -> None:
    answer_of(say(page, "say from the first window"))
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".answer .parts")).to_have_text(["from the first window"])
    answer_of(say(other, "say from the second window"))
    page.bring_to_front()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(".answer .parts")).to_have_text(["from the first window", "from the second window"])


# ---- when the gateway is away


def test_a_message_sent_while_the_gateway_is_away_is_kept_and_answered_once(
    own_gateway: GatewayProcess, open_page: OpenPage
) -> None:
    page = open_page(own_gateway.link, viewport=DESKTOP)
    answer_of(say(page, "say before"))
    own_gateway.kill()
    page.get_by_label("Message", exact=True).fill("say after")
    page.keyboard.press("Enter")
    expect(page.locator("#line")).to_contain_text("does not answer")
    expect(page.get_by_label("Message", exact=True)).to_have_value("say after")
    expect(page.locator(".turn")).to_have_count(1)

    own_gateway.start()
    expect(page.locator(".answer .parts")).to_have_text(["before", "after"])
    expect(page.locator("#line")).to_be_hidden()
    expect(page.get_by_label("Message", exact=True)).to_have_value("")
    page.reload()
    expect(page.locator(".question")).to_have_text(["say before", "say after"])


def test_giving_up_a_message_leaves_it_in_the_box(own_gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(own_gateway.link, viewport=DESKTOP)
    expect(page.locator("#model")).to_be_visible()
    own_gateway.kill()
    box = page.get_by_label("Message", exact=True)
    box.fill("say maybe")
    box.press("Enter")
    expect(page.locator("#line")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).to_have_js_property("readOnly", False)
    box.press_sequentially(" not")
    expect(box).to_have_value("say maybe not")


def test_an_answer_survives_the_gateways_death(own_gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(own_gateway.link, viewport=DESKTOP)
    turn = say(page, "count to 500")
    wait_until_counting(turn)
    own_gateway.kill()
    expect(page.locator("#line")).to_be_visible()
    own_gateway.start()
    expect(answer_of(turn)).to_contain_text("500")
    expect(page.locator(".question")).to_have_text(["count to 500"])
    page.reload()
    expect(page.locator(".question")).to_have_text(["count to 500"])


def test_a_send_with_an_unknown_outcome_is_not_answered_twice(page: Page) -> None:
    """The request reaches the gateway, its response does not reach the page: the page repeats it by itself."""
    ids = []

    def lose_the_first_response(route, request) -> None:  # type: ignore[no-untyped-def]
        ids.append(request.post_data_json["id"])
        if len(ids) == 1:
            route.fetch()
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route("**/messages", lose_the_first_response)
    expect(answer_of(say(page, "say once"))).to_have_text("once")
    assert len(ids) == 2
    assert ids[0] == ids[1]
    page.unroute("**/messages")
    page.reload()
    expect(page.locator(".question")).to_have_text(["say once"])


# ---- who may look


def test_the_token_leaves_the_address_and_is_remembered(page: Page, gateway: GatewayProcess) -> None:
    assert TOKEN not in page.url
    page.goto(gateway.url)
    expect(page.get_by_text("What can I do for you?")).to_be_visible()


def test_a_wrong_token_is_asked_for_again(gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#token=wrong", viewport=DESKTOP)
    expect(page.get_by_text("holdfast link")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_hidden()
    for wrong in ("also wrong", "schlüssel 🔑"):
        page.get_by_label("Token").fill(wrong)
        page.keyboard.press("Enter")
        expect(page.get_by_text("That token is not right.")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(answer_of(say(page, "say let in"))).to_have_text("let in")
    expect(page.get_by_label("Token")).to_be_hidden()


def test_without_a_token_the_page_asks_for_it(gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(gateway.url, viewport=PHONE)
    expect(page.get_by_label("Token")).to_be_focused()


# ---- nothing gets in

HOSTILE = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<svg onload=alert(1)></svg><iframe src=javascript:alert(1)></iframe>",
    "[click](javascript:alert(1)) [click](java&#10;script:alert(1)) [click](data:text/html,x) <javascript:alert(1)>",
    '[a](https://example.org/" onmouseover="alert(1)) ![x](javascript:alert(1))',
    "```html\n<script>alert(1)</script>\n```",
    "| <script>alert(1)</script> | <b onclick=alert(1)>x</b> |\n|---|---|\n| <style>*{display:none}</style> | y |",
]


def test_no_script_gets_in_through_an_answer(page: Page) -> None:
    for text in HOSTILE:
        answer_of(say(page, f"say {text}"))
    for _ in range(2):
        expect(page.locator(".turn.over")).to_have_count(len(HOSTILE))
        thread = page.locator("#thread")
        expect(thread.locator("script, iframe, object, embed, style, link, form, base, meta")).to_have_count(0)
        expect(thread.locator(".prose :is(img, svg)")).to_have_count(0)
        expect(thread.locator("[onerror], [onload], [onclick], [onmouseover], [style]")).to_have_count(0)
        for address in thread.locator("a").evaluate_all("links => links.map(link => link.protocol)"):
            assert address in {"http:", "https:", "mailto:"}
        expect(thread).to_contain_text("<img src=x onerror=")
        assert "owned" not in page.title().replace("document.title='owned'", "")
        page.reload()


def test_what_the_reader_writes_is_shown_as_it_is(page: Page) -> None:
    text = "say <b>bold</b> **not** [x](javascript:alert(1))"
    turn = say(page, text)
    expect(turn.locator(".question .words")).to_have_text(text)
    expect(turn.locator(".question .words *")).to_have_count(0)


def test_the_page_loads_nothing_from_elsewhere(gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(viewport=DESKTOP)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(gateway.link)
    expect(page.locator("#model")).to_be_visible()
    answer_of(say(page, "say ![a picture](https://example.org/a.png)"))
    assert asked
    assert {url.removeprefix(gateway.url)[0] for url in asked} == {"/"}


def test_the_policy_forbids_inline_script(page: Page, gateway: GatewayProcess) -> None:
    response = page.request.get(gateway.url)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


# ---- how it looks

WIDE = (
    "say "
    + "unbreakable" * 40
    + "\n\n```\n"
    + "code " * 100
    + "\n```\n\n| "
    + " | ".join(f"column {n}" for n in range(20))
    + " |\n|"
    + "---|" * 20
    + "\n| "
    + " | ".join("cell" for _ in range(20))
    + " |\n\n`"
    + "inline" * 60
    + "` https://example.org/"
    + "path" * 80
)


def test_a_phones_width_needs_no_scrolling_sideways(gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(gateway.link, viewport=PHONE)
    answer_of(say(page, WIDE))
    turn = say(page, "list files")
    answer_of(turn)
    turn.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate(
        "document.querySelector('#scroller').scrollWidth <= document.querySelector('#scroller').clientWidth"
    )
    for block in page.locator("pre, .table").all():
        box = block.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]


def test_a_phones_list_slides_in_and_out(gateway: GatewayProcess, open_page: OpenPage) -> None:
    page = open_page(gateway.link, viewport=PHONE)
    answer_of(say(page, "say on the phone"))
    expect(page.get_by_label("Search conversations")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_label("Search conversations")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Search conversations")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    page.locator("#list a", has_text="on the phone").first.click()
    expect(page.get_by_label("Search conversations")).to_be_hidden()
    expect(page.locator(".answer .parts")).to_have_text(["on the phone"])


def brightness(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return (red + green + blue) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_systems_theme_and_the_readers_wish(
    gateway: GatewayProcess, open_page: OpenPage, scheme: str
) -> None:
    page = open_page(gateway.link, viewport=DESKTOP, color_scheme=scheme)
    expect(page.locator("#model")).to_be_visible()
    assert (brightness(page) > 128) == (scheme == "light")
    other = "dark" if scheme == "light" else "light"
    page.get_by_label("Theme").select_option(other)
    assert (brightness(page) > 128) == (other == "light")
    page.reload()
    expect(page.locator("#model")).to_be_visible()
    assert (brightness(page) > 128) == (other == "light")


def test_the_end_stays_in_view_unless_the_reader_scrolls_up(page: Page) -> None:
    answer_of(say(page, "say " + "line\n\n" * 60))
    turn = say(page, "count to 300")
    wait_until_counting(turn)
    assert from_end(page) < 60
    page.locator("#scroller").hover()
    page.mouse.wheel(0, -600)
    expect(page.get_by_role("button", name="Latest")).to_be_visible()
    page.wait_for_function("count => document.querySelector('.turn:last-child').textContent.includes('150')", arg=0)
    assert from_end(page) > 300
    page.get_by_role("button", name="Latest").click()
    expect(page.get_by_role("button", name="Latest")).to_be_hidden()
    answer_of(turn)
    assert from_end(page) < 60


def from_end(page: Page) -> float:
    return float(page.locator("#scroller").evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight"))


def test_code_can_be_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    turn = say(page, "say ```python\nprint('<b>')\n```")
    answer = answer_of(turn)
    expect(answer.locator("figcaption span")).to_have_text("python")
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<b>')"
