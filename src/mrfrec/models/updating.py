"""Keep a fitted model up to date: add a batch of events, or forget users, and fit again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mrfrec.checks import check_flag, warn
from mrfrec.core.progress import shows_progress
from mrfrec.data.origin import Origin
from mrfrec.errors import DataError, ParameterError
from mrfrec.models.model import Model

if TYPE_CHECKING:
    from mrfrec.core.engine import Progress
    from mrfrec.data.interactions import Interactions


class UpdatableModel(Model):
    """A model that can be fitted again to its training data and more, or to less of it."""

    @property
    def reading_(self) -> dict[str, Any]:
        """The parameters of `read_interactions` with which to read more events, where not the defaults."""
        return dict(self._origin("reading_").rules)

    @property
    def batches_(self) -> tuple[str, ...]:
        """The ids of the batches the model was fitted on, in the order of their arrival."""
        return self._origin("batches_").batches or (self._data_facts()["fingerprint"],)

    @shows_progress
    def update(
        self,
        new_events: object,
        *,
        batch: str | None = None,
        again: bool = False,
        progress: "Progress | bool | None" = None,
    ) -> Self:
        """Add a batch of events to the training data, and fit again with the same parameters.

        Gives the same model, to the bit, as a fit on all events at once, whatever the order in which the
        batches come. (With `duplicates="last"` and "first", the batches are taken in the order in which they
        come.) Needs the training users' histories: of a model that was loaded, those saved with
        `include_histories=True`.

        Parameters
        ----------
        new_events
            Anything `read_interactions` reads, which is read as the first data was (see `reading_`); or
            `Interactions`. Users and items may be new.
        batch
            Name of the batch, such as "2026-11-16". A batch that was added before is refused. By default a
            hash of its ids, pairs and values.
        again
            Add the batch even if one of that name was added before.
        progress
            As in `fit`.

        Notes
        -----
        With `window`, pairs whose last event is older than that at the latest time drop out. Of an item with
        several titles in the events, only those of events read within a window are known.

        Nothing can be added to data that was read with `half_life`, or with values or weights and `window`,
        unless `now` is fixed, since what a pair counts depends on the latest time; nor with `max_history`,
        `min_users` or `min_items`, which leave out what later events may bring back.
        """
        assert not isinstance(progress, bool)
        from mrfrec.data.growing import add
        from mrfrec.data.interactions import Interactions

        check_flag("again", again)
        if batch is not None and (not isinstance(batch, str) or not batch.strip()):
            raise ParameterError("batch", "a name or None", batch)
        self._origin("update").check_can_grow()
        known = self.batches_
        if not isinstance(new_events, Interactions):
            new_events = self._read_more(new_events, progress=progress)
        name = new_events.fingerprint if batch is None else batch
        if name in known and not again:
            advice = "To add it once more, say again=True (--again)"
            if batch is not None:
                raise ParameterError("batch", "one that was not added before", batch, f"{advice}.")
            raise DataError(
                f"this data was added before: the model has a batch of the same content. {advice}; if these "
                "are other events of the same content, give the batch a name (batch=…, --batch)."
            )
        old = self._known_data("update")
        data = add(old, new_events)
        _check_window(old.origin, data.origin)
        return self._refit(data, (*known, name), progress)

    @shows_progress
    def forget(self, users: object, *, progress: "Progress | bool | None" = None) -> Self:
        """Remove users and all that is known of them, and fit again with the same parameters.

        Gives the same model as a fit on the events of the others. Items that nobody else used go, too. Save
        the model afterwards: copies that were made before still hold the users. A warning counts users who
        are not in the data. Data read with `window` or `half_life` needs a fixed `now`: without it, the time
        of a user may decide what else counts.

        Parameters
        ----------
        users
            Ids of training users: one, or several in any iterable.
        progress
            As in `fit`.
        """
        assert not isinstance(progress, bool)
        from mrfrec.data.growing import origin_of, without_users

        data = self._known_data("forget")
        origin_of(data).check_can_shrink()
        wanted: Any = [users] if isinstance(users, str | float | int | np.number) else users
        places = data.users.find(wanted, "user")
        if (places < 0).any():
            warn(f"{int((places < 0).sum()):,} of {len(places):,} users are not in the training data")
        if (places < 0).all():
            return self
        return self._refit(without_users(data, places[places >= 0]), self.batches_, progress)

    def _read_more(self, source: object, **options: Any) -> "Interactions":
        """Read more events by the rules of the first."""
        from mrfrec.io.tables import read_interactions

        rules = self._origin("update").rules
        try:
            return read_interactions(source, **options, **rules)
        except DataError as error:
            named = [f"{name}={rule!r}" for name, rule in rules.items() if name in str(error)]
            if not named:
                raise
            raise DataError(
                f"{error} New events are read as the first were, with {', '.join(named)}; to change that, "
                "fit again on all events."
            ) from error

    def _refit(self, data: "Interactions", batches: tuple[str, ...], progress: "Progress | None") -> Self:
        from mrfrec.data.growing import origin_of

        data.origin = replace(origin_of(data), batches=batches)
        return self.fit(data, progress=progress)

    def _origin(self, what: str) -> Origin:
        self._trained_on(what, "Fit it again, and save it with")
        if (origin := self._known_origin()) is None:
            raise DataError(f"{what}: the file does not say how its data was read. Fit again on all events.")
        return origin

    def _known_data(self, what: str) -> "Interactions":
        """Return the training data, also of a model that was loaded."""
        from mrfrec.data.interactions import Interactions

        training = self._trained_on(what, "Fit it again, and save it with")
        if hasattr(self, "_interactions"):
            return self._interactions
        matrix = training.histories.matrix()
        matrix = matrix.astype(np.float32)
        data = Interactions(matrix, training.users, self.items_, self.titles_, copy=False)
        data.origin = self._origin(what)
        return data


def _check_window(before: Origin | None, after: Origin | None) -> None:
    """Warn if a later time has taken all earlier pairs out of the window."""
    if before is None or after is None or before.times is None or after.times is None:
        return
    was, now = (np.datetime64(int(times.max()), "us") for times in (before.times, after.times))
    if now - was > np.timedelta64(before.window, "us"):
        warn(
            f"the latest time is now {now}, before it was {was}: none of the earlier events is left in the "
            "window. If that time is wrong, correct the new events and update the earlier model again."
        )
