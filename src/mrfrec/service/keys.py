"""API keys: a file with a line `name:role:sha256` for each key.

Empty lines and comments (#) are ignored. The role is `read`, or `manage`: such a key may also reload models
and look at users. A key is 256 random bits, so a plain hash protects it.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from os import PathLike
from typing import NamedTuple

from mrfrec.errors import DataError, ParameterError
from mrfrec.io.atomic import expanded

ROLES = ("read", "manage")
# The service compares every request with all keys of the file.
_MOST = 1000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}):({'|'.join(ROLES)}):([0-9a-f]{{64}})")


class Key(NamedTuple):
    """A line of the file: it has the hash of a key, not the key."""

    name: str
    role: str
    digest: bytes


def new_key(name: str, role: str = "read") -> tuple[str, str]:
    """Return a new key and its line for the file."""
    if _NAME.fullmatch(name) is None:
        raise ParameterError("name", "up to 64 letters, digits, dots, dashes and underscores", name)
    if role not in ROLES:
        raise ParameterError("role", "read or manage", role)
    key = f"mrf_{secrets.token_urlsafe(32)}"
    return key, f"{name}:{role}:{_digest(key.encode()).hex()}"


def read_keys(path: "str | PathLike[str]") -> tuple[Key, ...]:
    """Read the keys of a file."""
    try:
        # Opening a pipe could wait for ever.
        if not expanded(path).is_file():
            raise FileNotFoundError("there is no such file")
        text = expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a file of keys: {error}.") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if (match := _LINE.fullmatch(line.strip())) is None:
            # The message does not show the line: somebody may have written a plain key there.
            raise DataError(
                f"{path}, line {number}: must be name:read: or name:manage: and 64 hexadecimal digits, as "
                "mrfrec serve --new-key writes it."
            )
        name, role, digest = match.groups()
        if name in keys:
            raise DataError(f"{path}, line {number}: another key has the name {name}.")
        if bytes.fromhex(digest) == _digest(b""):
            raise DataError(
                f"{path}, line {number}: this is the hash of an empty key, which anybody could send."
            )
        keys[name] = Key(name, role, bytes.fromhex(digest))
    if not 1 <= len(keys) <= _MOST:
        raise DataError(
            f"{path} must have 1 to {_MOST:,} keys; it has {len(keys):,}. mrfrec serve --new-key makes one."
        )
    return tuple(keys.values())


def find_key(keys: Iterable[Key], secret: bytes) -> Key | None:
    """Return the key whose text is `secret`, or None, in a time that does not depend on which key it is."""
    digest = _digest(secret)
    match = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            match = key
    return match


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
