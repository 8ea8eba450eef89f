"""Erasures: the people who were forgotten, as salted hashes, and the day on which that happened.

Rows of a forgotten person up to that day are left out whenever they come back with an earlier model, an old
table or a back-up. Later rows count as rows of a new user.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import chain, repeat
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import cleaned
from mrfrec.data.times import Times

_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1)
# NEVER is earlier than any time. A salt and a hash have 16 bytes.
NEVER = int(np.iinfo(np.int64).min)
_BYTES = 16


@dataclass(frozen=True)
class Erasures:
    """The people who were forgotten: salt → hash of the id → day of the erasure (UTC).

    7 and "7" have the same hash. Whoever knows the salt can try all ids, so the hashes are personal data.
    """

    days: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_facts(cls, facts: Any) -> Self:
        """Return erasures from JSON; raise a TypeError, ValueError or AttributeError if the JSON is wrong."""
        for salt, days in facts.items():
            for code, day in days.items():
                if str(date.fromisoformat(day)) != day:
                    raise ValueError(day)
                if len(bytes.fromhex(code)) != _BYTES:
                    raise ValueError(code)
            if len(bytes.fromhex(salt)) != _BYTES:
                raise ValueError(salt)
        return cls(facts)

    def __len__(self) -> int:
        return sum(map(len, self.days.values()))

    def including(self, ids: Iterable[object], latest: Iterable[int] = ()) -> "Erasures":
        """Return these erasures, with further people who are forgotten today.

        `latest` has the time of each person's last event: on a later day, that day counts.
        """
        salt = min(self.days, default=None) or secrets.token_hex(_BYTES)
        today = (datetime.now(UTC).date() - _EPOCH).days
        days = (max(today, time // _DAY) for time in chain(latest, repeat(NEVER)))
        coded = zip(_hashes(ids, salt), days, strict=False)
        return self.joined(
            Erasures({salt: {code.hex(): str(_EPOCH + timedelta(days=day)) for code, day in coded}})
        )

    def joined(self, other: "Erasures") -> "Erasures":
        """Return the union of two sets of erasures; a person in both has the later day."""
        days: dict[str, dict[str, str]] = {}
        for erasures in (self, other):
            for salt, some in erasures.days.items():
                kept = days.setdefault(salt, {})
                for code, day in some.items():
                    kept[code] = max(day, kept.get(code, day))
        return Erasures({salt: some for salt, some in days.items() if some})

    def beyond(self, other: "Erasures") -> int:
        """Count the erasures that `other` lacks or has with an earlier day."""
        return sum(
            day > other.days.get(salt, {}).get(code, "")
            for salt, some in self.days.items()
            for code, day in some.items()
        )

    def ends(self, ids: Iterable[object]) -> Times | None:
        """Return the time from which the rows of each person count; None if nobody was forgotten.

        The time of a person who was not forgotten is `NEVER`.
        """
        if not len(self):
            return None
        people = list(ids)
        out = np.full(len(people), NEVER)
        for salt, some in self.days.items():
            ends = {
                bytes.fromhex(code): ((date.fromisoformat(day) - _EPOCH).days + 1) * _DAY
                for code, day in some.items()
            }
            times = (ends.get(code, NEVER) for code in _hashes(people, salt))
            out = np.maximum(out, np.fromiter(times, np.int64, len(people)))
        return out if (out > NEVER).any() else None


def are_erased(ends: Times, times: Times | None) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of forgotten people up to the day of the erasure, or without a time.

    `ends` has the result of `Erasures.ends` for the person of each row.
    """
    return ends > NEVER if times is None else times < ends


def text_of(rows: int, people: int, what: str = "row") -> str:
    """Return the message about rows that are left out."""
    left_out = f"{rows:,} {what} is" if rows == 1 else f"{rows:,} {what}s are"
    whom = "a forgotten person" if people == 1 else f"{people:,} forgotten people"
    return f"{left_out} left out: of {whom}, up to the day of the erasure or without a time"


def _hashes(ids: Iterable[object], salt: str) -> Iterable[bytes]:
    """Yield the salted hash of the text of each id; 17.0, as a text file may write it, is 17."""
    start = hashlib.blake2b(key=bytes.fromhex(salt), digest_size=_BYTES)
    for one in ids:
        text = cleaned(str(one))
        if text.endswith(".0") and re.fullmatch(r"-?\d+\.0", text):
            text = text[:-2]
        digest = start.copy()
        digest.update(text.encode(errors="surrogatepass"))
        yield digest.digest()
