"""Past conversations, page by page."""

import pytest

from holdfast.api import histories

pytestmark = pytest.mark.anyio

STREAM = {"Accept": "text/event-stream"}


async def say(api, chat: str, text: str, number: int = 0) -> None:
    path, body = f"/api/chats/web/{chat}/messages", {"text": text, "id": f"{chat}-{number}"}
    assert (await api.post(path, body, headers=STREAM))[0] == 200


async def test_conversations_are_listed_last_used_first_and_by_pages(serve):
    async with serve() as api:
        for number in range(5):
            await say(api, f"c{number}", f"topic {number}")
        await say(api, "c0", "again", 1)
        await api.chat("hello", "of-the-api")
        pages, query = [], "?channel=web&limit=2"
        while query:
            _, page = await api.get(f"/api/sessions{query}")
            pages += [[session["title"] for session in page["sessions"]]]
            query = f"?channel=web&limit=2&before={page['next']}" if page["next"] else ""
        assert pages == [["topic 0", "topic 4"], ["topic 3", "topic 2"], ["topic 1"]]
        _, all_of_them = await api.get("/api/sessions")
        assert len(all_of_them["sessions"]) == 6
        assert all_of_them["next"] is None


async def test_conversations_are_found_by_what_was_said(serve):
    async with serve() as api:
        await say(api, "a", "the heron stands in the reeds")
        await say(api, "b", "the otter swims")
        _, found = await api.get("/api/sessions?q=heron")
        assert [session["chat"] for session in found["sessions"]] == ["web:a"]
        assert "heron" in found["sessions"][0]["snippet"]
        assert found["next"] is None
        assert (await api.get("/api/sessions?q=%22%28*"))[0] == 200


async def test_an_ended_conversation_says_so(serve):
    async with serve() as api:
        await say(api, "a", "hello")
        _, before = await api.get("/api/sessions")
        session = before["sessions"][0]["id"]
        assert await api.post(f"/admin/sessions/{session}/end") == (200, {"ended": True})
        assert (await api.post(f"/admin/sessions/{session}/end"))[0] == 404
        _, after = await api.get(f"/api/sessions/{session}")
        assert after["session"]["end_reason"] == "new"
        assert after["session"]["ended"] > 0
        assert (await api.get("/api/chats/web/a"))[1]["session"] is None


async def test_a_long_history_comes_in_pages(serve, monkeypatch):
    monkeypatch.setattr(histories, "PAGE", 4)
    async with serve() as api:
        for number in range(3):
            await say(api, "a", f"message {number}", number)
        _, newest = await api.get("/api/chats/web/a")
        assert [message["seq"] for message in newest["messages"]] == [2, 3, 4, 5]
        assert newest["more"] is True
        session = newest["session"]["id"]
        for path in ("/api/chats/web/a", f"/api/sessions/{session}"):
            _, earlier = await api.get(f"{path}?before=2")
            assert [message["seq"] for message in earlier["messages"]] == [0, 1]
            assert earlier["more"] is False


@pytest.mark.parametrize(
    "query",
    [
        "before=x",
        "before=nan",
        "before=inf",
        "before=-1",
        "before=1e300",
        "limit=0",
        "limit=201",
        "limit=1.5",
        "limit=٣",
        "limit=99999999999999999999999",
        "q=%00",
        "q=%ff",
        "q=" + "x" * 1001,
    ],
)
async def test_a_wrong_query_is_refused(serve, query):
    async with serve() as api:
        status, answer = await api.get(f"/api/sessions?{query}")
    assert status == 400
    assert answer["error"]["message"]


@pytest.mark.parametrize("before", ["-1", "1.5", "x", "9223372036854775808", "9" * 30])
async def test_a_wrong_page_is_refused(serve, before):
    async with serve() as api:
        await say(api, "a", "hello")
        assert (await api.get(f"/api/chats/web/a?before={before}"))[0] == 400
        assert (await api.get("/api/chats/web/a?before=9223372036854775807"))[0] == 200


async def test_an_unknown_conversation_is_not_found(serve):
    async with serve() as api:
        for session in ("nothing", "%00", "%ff", "a" * 1000):
            assert (await api.get(f"/api/sessions/{session}"))[0] == 404
