"""What reading notices about data without refusing it."""

import logging
from typing import Literal, NamedTuple

from mrfrec.checks import warn

_log = logging.getLogger("mrfrec")

What = Literal["skipped rows", "rows ahead", "missing times", "repeated pairs", "looks like", "erased people"]
# By on_bad="skip", by missing_time="oldest", and by an update.
_ASKED_FOR = ("skipped rows", "missing times", "repeated pairs")


class DataNote(NamedTuple):
    """Something that reading noticed, for the log and the reports."""

    what: What
    # The number of rows or pairs that it is about.
    count: int  # type: ignore[assignment]
    text: str

    def tell(self) -> None:
        """Warn of it, or log it if it was asked for."""
        if self.what in _ASKED_FOR:
            _log.info("%s", self.text)
        else:
            warn(self.text)
