"""The web page's files: read once, served with headers that let nothing else in."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import msgspec

from holdfast.api.errors import Refusal
from holdfast.api.exchange import Exchange
from holdfast.api.replies import Header, Reply

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".webmanifest": b"application/manifest+json",
    ".json": b"application/json",
    ".woff2": b"font/woff2",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_GUARDS: tuple[Header, ...] = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    content_type: Header
    etag: bytes


@cache
def load_assets() -> Mapping[str, Asset]:
    """Every file of the page, by its name. They come with the package and never change."""
    found = {}
    for file in (files("holdfast.api") / "page").iterdir():
        ending = file.name[file.name.rfind(".") :]
        if file.is_file() and ending in _TYPES:
            body = file.read_bytes()
            etag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
            found[file.name] = Asset(body, (b"content-type", _TYPES[ending]), etag)
    return MappingProxyType(found)


async def index(exchange: Exchange) -> Reply:
    return _serve(exchange, "index.html")


async def file(exchange: Exchange) -> Reply:
    (name,) = exchange.values
    return _serve(exchange, name)


def _serve(exchange: Exchange, name: str) -> Reply:
    asset = load_assets().get(name)
    if asset is None:
        raise Refusal(404, "There is nothing at this address.", code="not_found")
    headers = (*_GUARDS, (b"etag", asset.etag))
    if asset.etag in exchange.headers.get(b"if-none-match", b""):
        return Reply(b"", 304, headers, None)
    return Reply(asset.body, 200, headers, asset.content_type)
