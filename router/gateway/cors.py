"""Which pages of other origins a browser may let call the API (Fetch standard, "CORS protocol")."""

import re

from router.gateway.config import GatewayConfig

EXPOSED = b"retry-after, x-request-id, x-warmroute-matched-tokens, x-warmroute-replica"
"""Headers of an answer that a page may read."""

_REPLICAS_OWN = re.compile(rb"\r\naccess-control-[^\r]*", re.IGNORECASE)
_HEADER_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]{0,1024}")


class Cors:
    """The header lines that an origin is answered with."""

    def __init__(self, config: GatewayConfig) -> None:
        self._is_open = "*" in config.cors_origins
        self._origins = frozenset(origin.encode() for origin in config.cors_origins)
        self._takes_any_header = "*" in config.cors_headers
        self._headers = ", ".join(config.cors_headers).encode()
        self._preflight = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: %d\r\n" % (
            *(", ".join(config.cors_methods).encode(), config.cors_max_age_s),
        )

    @property
    def is_on(self) -> bool:
        """Whether there is an origin that may."""
        return bool(self._origins)

    def allows(self, origin: bytes) -> bool:
        """Whether pages of ``origin`` may."""
        return self._is_open or origin in self._origins

    def lines(self, origin: bytes) -> bytes:
        """Return what every answer to a page of ``origin`` carries; without one, or to one that
        may not, that is a word for caches: the answer would be another to those that may.
        """
        if not self.allows(origin):
            return b"Vary: Origin\r\n"
        if self._is_open:
            allowed = b"Access-Control-Allow-Origin: *\r\n"
        else:
            allowed = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin
        return b"%bAccess-Control-Expose-Headers: %b\r\n" % (allowed, EXPOSED)

    def preflight_lines(self, origin: bytes, asked_headers: bytes) -> bytes:
        """Return what the question before the request is answered with."""
        lines = self.lines(origin)
        if not self.allows(origin):
            return lines
        headers = self._headers
        if self._takes_any_header:  # named one by one: '*' would not cover Authorization
            headers = asked_headers if _HEADER_NAMES.fullmatch(asked_headers) else b""
        if headers:
            lines += b"Access-Control-Allow-Headers: %b\r\n" % headers
        return lines + self._preflight


def without_cors(lines: bytes) -> bytes:
    """Return a replica's header lines without its own: a browser refuses to see them twice."""
    return _REPLICAS_OWN.sub(b"", lines)
