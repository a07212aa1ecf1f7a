"""One replica as a person names it, in the file or on the admin port; checked before it is used.

Rule: no complaint quotes a URL, which may hold a password.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from contract.options import SettingError

TEXT_LENGTH_MAX = 512
"""Of an id, a URL or a model's name: they become labels, headers and log lines."""

SOCKET_PATH_BYTES_MAX = 107
"""Of a Unix socket: what the kernel takes (unix(7), sun_path)."""

NAMELESS = "localhost"
"""The Host that a replica at a path is asked for."""

_KNOWN = ("url", "id", "model")
_KNOWN_IN_FILE = (*_KNOWN, "authorization")
_EXPECTED = "expected http://host:port or https://host"
_EXPECTED_PATH = "expected unix:///path/of/socket"


@dataclass(frozen=True)
class ReplicaEntry:
    """A replica that the gateway is told of; without an id its URL is its id."""

    url: str
    replica_id: str | None = None
    model: str | None = None
    authorization: str | None = field(default=None, repr=False, compare=False)
    """Header that it alone is sent; with another one it is the same replica."""


def read_entry(fields: Any, where: str = "replica", *, is_in_file: bool = False) -> ReplicaEntry:
    """Check ``url``, and ``id`` and ``model``, which may be missing. Raises SettingError.

    ``is_in_file``: whoever wrote it may have the gateway open files, and give it a credential.
    """
    known_names = _KNOWN_IN_FILE if is_in_file else _KNOWN
    if not isinstance(fields, Mapping):
        kind = type(fields).__name__
        raise SettingError(f"{where} is a {kind}, expected a URL or an object with 'url'")
    for name, value in fields.items():
        if name not in known_names:
            raise SettingError(f"{where} has no setting {name!r}; known: {', '.join(known_names)}")
        if value is not None:
            _check_text(f"{where}: {name}", value)
    url = fields.get("url")
    if not url:
        raise SettingError(f"{where} has no url, {_EXPECTED}")
    is_socket = is_in_file and url.startswith("unix:")
    complaint = _socket_complaint(url) if is_socket else url_complaint(url)
    if complaint is not None:
        raise SettingError(f"{where} {complaint}")
    others = (fields.get(name) or None for name in _KNOWN_IN_FILE[1:])
    return ReplicaEntry(url.rstrip("/"), *others)


def url_complaint(url: str) -> str | None:
    """Return why no replica can be at ``url``, None if one can."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        return f"has a url that cannot be read, {_EXPECTED}"
    if len(url) > TEXT_LENGTH_MAX:
        return f"has a url of {len(url)} characters, at most {TEXT_LENGTH_MAX}"
    if " " in url or not url.isprintable():
        return f"has a url with spaces or control characters, {_EXPECTED}"
    if parts.scheme not in ("http", "https"):
        return f"has a url with scheme {parts.scheme[:16]!r}, {_EXPECTED}"
    if not host or not (port or (port is None and parts.scheme == "https")):
        return f"has a url without a host or a port, {_EXPECTED}"
    if parts.username is not None or parts.password is not None:
        return f"has a url with a user or a password, {_EXPECTED}"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return f"has a url with more than host and port, {_EXPECTED}"
    return None


def socket_path(url: str) -> str | None:
    """Return the path of a ``unix:`` URL, None for any other."""
    return url.removeprefix("unix://") if url.startswith("unix:///") else None


def _socket_complaint(url: str) -> str | None:
    path = socket_path(url)
    if path is None or path.endswith("/") or "?" in path or "#" in path:
        return f"has a unix url without the whole path of a socket, {_EXPECTED_PATH}"
    num_bytes = len(path.encode())
    if num_bytes > SOCKET_PATH_BYTES_MAX:
        return f"has a socket's path of {num_bytes} bytes, at most {SOCKET_PATH_BYTES_MAX}"
    return None


def is_host_allowed(url: str, allowed: Iterable[str]) -> bool:
    """Say whether the host of ``url`` is covered by a name, a pattern with ``*`` or a network.

    Networks cover addresses only, as names are looked up later and may lead anywhere by then.
    """
    host = urlsplit(url).hostname or ""
    return any(_covers(pattern.lower(), host) for pattern in allowed)


def _covers(pattern: str, host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return fnmatchcase(host, pattern)
    try:
        return address in ip_network(pattern, strict=False)
    except ValueError:
        return pattern == "*"


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise SettingError(f"{what} is a {type(value).__name__}, expected text")
    if len(value) > TEXT_LENGTH_MAX:
        raise SettingError(f"{what} has {len(value)} characters, at most {TEXT_LENGTH_MAX}")
    if not value.isprintable():
        raise SettingError(f"{what} has characters that cannot be printed")
