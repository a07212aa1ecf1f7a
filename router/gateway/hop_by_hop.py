"""Headers that end at this hop: they say how two neighbours talk (RFC 9110, 7.6.1)."""

import re

HOP_BY_HOP = (
    rb"connection|keep-alive|te|trailer|upgrade|http2-settings|proxy-authenticate"
    rb"|proxy-authorization|proxy-connection"
    # Ours: a client that sends them means nothing by it, a gateway behind this one is not asked.
    rb"|x-warmroute-replica|x-warmroute-matched-tokens|x-warmroute-explain|x-warmroute-explanation"
)
FRAMING = rb"|content-length|transfer-encoding"
NOT_IN_TRAILERS = re.compile(rb"(?:" + HOP_BY_HOP + FRAMING + rb"|host)", re.IGNORECASE)
"""Names that another hop could take for those of the head (RFC 9110, 6.5.1)."""

_NOT_LISTED = frozenset({b"close", b"keep-alive", b"upgrade", b"te", b"", b"x-request-id"})
"""Words in Connection that name no header to take out, and one header that is the gateway's."""


def tokens(value: bytes) -> set[bytes]:
    """Return the words of a list, in lower case."""
    return {token.strip(b" \t") for token in value.lower().split(b",")}


def without_listed(lines: bytes, listed: set[bytes]) -> bytes:
    """Return ``lines`` without those whose names Connection lists."""
    named = listed - _NOT_LISTED
    if not named:
        return lines
    first, *others = lines.split(b"\r\n")
    kept = [line for line in others if line.partition(b":")[0].lower() not in named]
    return b"\r\n".join([first, *kept])
