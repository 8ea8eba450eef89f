"""Draw docs/images/time.svg, what events count by age and by place: `python tools/time_picture.py`.

The weights are those of `mrfrec.core.ages`. The picture has colours for light and dark pages.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mrfrec.core.ages import Recency

OUTPUT = Path(__file__).parents[1] / "docs" / "images" / "time.svg"
DAY = 86_400e6  # microseconds
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 180, 40, 46, 50  # of a panel, and of the margins
STYLE = """
    text { font: 12px sans-serif; fill: #333 } .title { font-weight: bold } .quiet { fill: #666 }
    .axis { stroke: #999; fill: none } .grid { stroke: #8884; fill: none }
    .a { --c: #00796b } .b { --c: #c2410c } .c { --c: #4338ca }
    .line { stroke: var(--c); stroke-width: 2; fill: none }
    .name { fill: var(--c) } .dash { stroke-dasharray: 5 4 }
    @media (prefers-color-scheme: dark) {
      text { fill: #ddd } .quiet { fill: #aaa } .axis { stroke: #777 }
      .a { --c: #4db6ac } .b { --c: #fb923c } .c { --c: #a5b4fc } .name { fill: var(--c) }
    }"""


def value(rule: Recency, ages: Iterable[float]) -> list[float]:
    """Return what the events of one history count, of these ages in days before the last."""
    times = -np.round(np.array([0.0, *ages]) * DAY).astype(np.int64)
    return list(map(float, rule.factors(np.array([0, len(times)]), times)[1:]))


def faded(half_life: float, ages: list[float], *, in_training: bool) -> list[float]:
    found = value(Recency(half_life * DAY), ages)
    return [x**2 for x in found] if in_training else found  # w = r² where the user's last event is now


def panel(
    number: int,
    title: str,
    below: str,
    most: float,
    ticks: Iterable[float],
    lines: Iterable[tuple[str, str, Callable[[list[float]], list[float]], float, float]],
    xs: list[float],
) -> str:
    """Return a panel; a line has a class, a name, a function of x, and the place of its name."""

    def at(x: float, y: float) -> str:
        return f"{x / most * WIDTH:.1f},{(1 - y) * HEIGHT:.1f}"

    parts = [f'<g transform="translate({LEFT + number * (WIDTH + GAP)} {TOP})">']
    parts.append(f'<text class="title" y="-26">{title}</text>')
    for y in (0.0, 0.5, 1.0):
        parts.append(f'<path class="grid" d="M{at(0, y)} L{at(most, y)}"/>')
        parts.append(f'<text x="-8" y="{(1 - y) * HEIGHT + 4:.0f}" text-anchor="end">{y:g}</text>')
    parts.append(f'<path class="axis" d="M{at(0, 1)} L{at(0, 0)} L{at(most, 0)}"/>')
    for x in ticks:
        middle = f'x="{x / most * WIDTH:.0f}" y="{HEIGHT + 18}" text-anchor="middle"'
        parts.append(f"<text {middle}>{x:g}</text>")
    parts.append(f'<text class="quiet" x="{WIDTH / 2}" y="{HEIGHT + 38}" text-anchor="middle">{below}</text>')
    for kind, name, of, x, y in lines:
        path = " L".join(at(*point) for point in zip(xs, of(xs), strict=True))
        parts.append(f'<path class="line {kind}" d="M{path}"/>')
        left, top = at(x, y).split(",")
        parts.append(f'<text class="name {kind}" x="{left}" y="{top}">{name}</text>')
    return "\n".join([*parts, "</g>"])


def picture() -> str:
    """Return the SVG."""
    ages = list(np.linspace(0, 365, 74))
    places = list(map(float, range(11)))

    def recent(recency: float) -> Callable[[list[float]], list[float]]:
        # Place 0 is the last event itself: `value` puts one before all, so it is left out.
        return lambda xs: [1.0, *value(Recency(recency=recency), xs[1:])]

    panels = [
        panel(
            0, "half_life: the age of an event", "days before the last event", 365, (0, 90, 180, 270, 365),
            [
                ("a", '"90d", in training', lambda xs: faded(90, xs, in_training=True), 8, 0.12),
                ("a dash", '"90d", in a history', lambda xs: faded(90, xs, in_training=False), 218, 0.44),
                ("b", '"365d", in training', lambda xs: faded(365, xs, in_training=True), 190, 0.79),
            ],
            ages,
        ),
        panel(
            1, "recency: the place in a history", "moments after it", 10, (0, 2, 4, 6, 8, 10),
            [
                ("a", "0.95", recent(0.95), 8.8, 0.73), ("b", "0.8", recent(0.8), 5.0, 0.40),
                ("c", "0.5", recent(0.5), 3.4, 0.14),
            ],
            places,
        ),
    ]  # fmt: skip
    width, height = LEFT + 2 * WIDTH + GAP + 20, TOP + HEIGHT + 50
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", *panels, "</svg>"]) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(picture(), encoding="utf-8")
