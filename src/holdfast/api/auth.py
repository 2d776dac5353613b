"""Who may ask: whoever shows the token."""

import hmac

from holdfast.api.errors import Refusal

_SCHEME = b"bearer "
_CHALLENGE = (b"www-authenticate", b'Bearer realm="holdfast"')


class Doorkeeper:
    """Knows the token, and compares it in constant time."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token.encode()

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raises a `Refusal` unless the token is shown."""
        shown = headers.get(b"authorization", b"")
        if shown[:7].lower() != _SCHEME or not hmac.compare_digest(shown[7:].strip(), self._token):
            raise Refusal(
                401,
                "The token is missing or wrong; send it in the header Authorization: Bearer <token>.",
                code="invalid_api_key",
                headers=(_CHALLENGE,),
            )
