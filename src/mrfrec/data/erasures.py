"""Erasures: who was forgotten, as salted hashes, and on which day.

Rows of these people up to that day are left out wherever they come in again: with an earlier model, an old
table or a back-up. Later rows count as those of a new person.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mrfrec.data.ids import cleaned
from mrfrec.data.times import Times

_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1)
NEVER = np.iinfo(np.int64).min  # before any time
_BYTES = 16  # of a salt and of a hash


@dataclass(frozen=True)
class Erasures:
    """The people who were forgotten: by salt, the hash of each id and the day of the erasure (UTC).

    7 and "7" have the same hash. Whoever has the salt can try all ids: the hashes are personal data.
    """

    days: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_facts(cls, facts: Any) -> Self:
        """Return erasures from JSON; raise a TypeError, ValueError or AttributeError if it is none."""
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

    def including(self, ids: Iterable[object]) -> "Erasures":
        """Return these erasures and those of some people, today."""
        salt = min(self.days, default=None) or secrets.token_hex(_BYTES)
        today = str(datetime.now(UTC).date())
        return self.joined(Erasures({salt: {code.hex(): today for code in _hashes(ids, salt)}}))

    def joined(self, other: "Erasures") -> "Erasures":
        """Return the erasures of both; of two days of one person, the later one."""
        days: dict[str, dict[str, str]] = {}
        for each in (self, other):
            for salt, some in each.days.items():
                kept = days.setdefault(salt, {})
                for code, day in some.items():
                    kept[code] = max(day, kept.get(code, day))
        return Erasures({salt: some for salt, some in days.items() if some})

    def beyond(self, other: "Erasures") -> int:
        """Return the number of erasures that others do not have, or have with an earlier day."""
        return sum(
            day > other.days.get(salt, {}).get(code, "")
            for salt, some in self.days.items()
            for code, day in some.items()
        )

    def ends(self, ids: Iterable[object]) -> Times | None:
        """Return the time from which rows of each of these people count; None if nobody was forgotten.

        It is `NEVER` for people who were not.
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
            found = (ends.get(code, NEVER) for code in _hashes(people, salt))
            out = np.maximum(out, np.fromiter(found, np.int64, len(people)))
        return out if (out > NEVER).any() else None


def are_erased(ends: Times, times: Times | None) -> npt.NDArray[np.bool_]:
    """Return which rows are those of a forgotten person up to the day of the erasure, or without a time.

    `ends` holds what `Erasures.ends` returns for the person of each row.
    """
    return ends > NEVER if times is None else times < ends


def text_of(rows: int, people: int, what: str = "row") -> str:
    """Return what is said about rows that are left out."""
    left_out = f"{rows:,} {what} is" if rows == 1 else f"{rows:,} {what}s are"
    whom = "a forgotten person" if people == 1 else f"{people:,} forgotten people"
    return f"{left_out} left out: of {whom}, up to the day of the erasure or without a time"


def _hashes(ids: Iterable[object], salt: str) -> Iterable[bytes]:
    """Return the salted hash of the text of each id; 17.0, as a text file may have it, is 17."""
    start = hashlib.blake2b(key=bytes.fromhex(salt), digest_size=_BYTES)
    for each in ids:
        text = cleaned(str(each))
        if text.endswith(".0") and re.fullmatch(r"-?\d+\.0", text):
            text = text[:-2]
        digest = start.copy()
        digest.update(text.encode(errors="surrogatepass"))
        yield digest.digest()
