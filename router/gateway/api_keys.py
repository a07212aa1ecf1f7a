"""Who may use a port: keys, of which only their hashes are known here.

A key is long and random, so one round of SHA-256 hides it. Neither a key nor a hash is ever logged,
counted or repeated in a message.
"""

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from contract.options import SettingError

_HEX_DIGITS = 64
_EXPECTED = f"expected the {_HEX_DIGITS} hexadecimal digits of a SHA-256"


class ApiKeys:
    """A set of keys. An empty one lets nobody in."""

    def __init__(self, hashes: Iterable[bytes]) -> None:
        self._hashes = tuple(hashes)

    def __len__(self) -> int:
        return len(self._hashes)

    def allow(self, keys: Iterable[bytes]) -> bool:
        """Say whether one of ``keys`` is known. The time that it takes tells nothing of them."""
        is_known = False
        for key in keys:
            offered = sha256(key).digest()
            for known in self._hashes:
                is_known |= hmac.compare_digest(offered, known)
        return is_known


def read_api_keys(hashes: Sequence[str], file: str, setting: str) -> ApiKeys | None:
    """Return the keys of a setting and of a file; None where neither is given.

    ``setting`` is how a message calls them. Raises SettingError.
    """
    if not hashes and not file:
        return None
    found = [_hash(text, f"{setting}, entry {n}") for n, text in enumerate(hashes, start=1)]
    if file:
        found += _of_file(Path(file), f"{setting}_file")
    return ApiKeys(found)


def bearer_token(authorization: bytes) -> bytes | None:
    """Return the key in an Authorization header, None if it has none."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _of_file(path: Path, setting: str) -> list[bytes]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingError(f"{setting} {path}: {error.strerror or 'cannot be read'}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{setting} {path}: not UTF-8") from error
    entries = {number: line.partition("#")[0].split() for number, line in enumerate(lines, start=1)}
    return [
        _hash(words[0], f"{setting} {path}, line {number}")
        for number, words in entries.items()
        if words
    ]


def _hash(text: str, where: str) -> bytes:
    # The text is not repeated: who mistakes the setting may have written the key itself.
    if len(text) != _HEX_DIGITS or not text.isascii() or not text.isalnum():
        raise SettingError(f"{where} has {len(text)} characters, {_EXPECTED}")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise SettingError(f"{where} has other characters, {_EXPECTED}") from None
