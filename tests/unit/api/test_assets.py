"""The page's files."""

import re
from importlib.resources import files

import pytest

pytestmark = pytest.mark.anyio

NO_TOKEN = {"Authorization": ""}


async def test_the_page_and_everything_that_it_refers_to_is_served_without_a_token(serve):
    page = files("holdfast.api") / "page"
    async with serve() as api:
        seen, waiting = set(), [""]
        while waiting:
            name = waiting.pop()
            seen.add(name)
            async with api.client.get(f"/{name}", headers=NO_TOKEN) as response:
                body = await response.text()
                assert response.status == 200, name
                assert body == (page / (name or "index.html")).read_text()
                assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
                assert response.headers["Cache-Control"] == "no-cache"
            found = re.findall(r'(?:src|href)="([a-z]+\.[a-z]+)"|from "\./([a-z]+\.js)"', body)
            waiting += {match for pair in found for match in pair if match} - seen - set(waiting)
    assert {"", "app.js", "style.css", "icon.svg"} <= seen


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css"), ("/icon.svg", "image/svg+xml")],
)
async def test_types_are_right_and_an_unchanged_file_is_not_sent_again(serve, path, kind):
    async with serve() as api:
        async with api.client.get(path) as response:
            assert response.content_type == kind
            etag = response.headers["ETag"]
        async with api.client.get(path, headers={"If-None-Match": etag}) as response:
            assert response.status == 304
            assert await response.read() == b""
        async with api.client.head(path) as response:
            assert response.status == 200
            assert int(response.headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", ["/nothing.js", "/..%2fserver.py", "/%2e%2e/server.py", "/page/app.js", "/app.js/"])
async def test_nothing_else_is_served(serve, path):
    async with serve() as api:
        assert (await api.get(path))[0] == 404
