"""The settings of a service: limits, and who may ask."""

from dataclasses import dataclass, fields

from mrfrec.checks import check_count, check_number


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Limits of a service; what exceeds them is refused with a status that says so."""

    max_k: int = 1000  # items of one answer
    max_history: int = 10_000  # items of one history
    max_batch: int = 1000  # histories of one request
    max_body: int = 4_000_000  # bytes of a request
    queue: int = 64  # requests that wait or are answered; others get 503
    seconds: float = 5.0  # from the arrival of a request until its answer begins, else 503
    poll: float = 2.0  # seconds between looks whether a model file was replaced; 0 for never

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int or field.type == "int":
                check_count(field.name, value)
            elif field.name == "poll":
                check_number("poll", value, "0 or more", lambda x: x >= 0)
            elif field.name == "seconds":
                check_number("seconds", value, "above 0", lambda x: x > 0)
