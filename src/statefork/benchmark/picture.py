"""Measurements as a picture: an SVG that is drawn here, so that no plotting library is needed.

Both scales are logarithmic: backends differ by a factor of a hundred. A bar is the median, the thin line reaches to the
95th percentile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from statefork.benchmark.measure import Measurement
from statefork.stats import percentile

__all__ = ["as_svg"]

_TIMES = {
    "snapshot": ("snapshot", "#4878a8"),
    "restore": ("restore", "#d08040"),
    "answer": ("restore until the first verified answer", "#a85050"),
    "fork": ("fork and first command", "#5a9a5a"),
}
_SIZE = {"size": ("a snapshot adds on disk", "#7a6a9a")}
_LOWEST = -3  # milliseconds, kilobytes
_LEFT, _WIDTH, _RIGHT = 100, 500, 90
_BAR, _GAP, _HEAD, _LEGEND = 11, 9, 26, 16


@dataclass(frozen=True, slots=True)
class _Panel:
    """Bars of one unit: for each backend the values of each series."""

    title: str
    unit: str
    series: Mapping[str, tuple[str, str]]
    rows: Sequence[tuple[str, Mapping[str, Sequence[float]]]]

    @property
    def height(self) -> int:
        bars = sum(len(values) for _, values in self.rows)
        return _HEAD + _LEGEND * len(self.series) + bars * _BAR + len(self.rows) * _GAP + 26

    def draw(self, top: int) -> list[str]:
        scale = _Scale.over([value for _, row in self.rows for values in row.values() for value in values])
        lines = [_text(10, top + 16, self.title, "bold")]
        y = top + _HEAD
        for label, colour in self.series.values():
            lines += [_rect(_LEFT, y, 10, 10, colour), _text(_LEFT + 15, y + 9, label)]
            y += _LEGEND
        y += 4
        bottom = top + self.height - 18
        for decade in scale.decades():
            x = _LEFT + scale.position(decade) * _WIDTH
            lines.append(
                f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{bottom - 4}" stroke="#ddd" stroke-width="1"/>'
            )
            lines.append(_text(x, bottom + 8, f"{decade:g} {self.unit}", anchor="middle"))
        for name, row in self.rows:
            lines.append(_text(10, y + _BAR * len(row) / 2 + 4, name))
            for series, values in row.items():
                lines += self._bar(y, values, scale, self.series[series][1])
                y += _BAR
            y += _GAP
        return lines

    def _bar(self, y: int, values: Sequence[float], scale: "_Scale", colour: str) -> list[str]:
        median, late = percentile(values, 50), percentile(values, 95)
        width, end = scale.position(median) * _WIDTH, scale.position(late) * _WIDTH
        middle = y + _BAR / 2 - 0.5
        return [
            _rect(_LEFT, y, width, _BAR - 1, colour),
            f'<line x1="{_LEFT + width:.1f}" y1="{middle}" x2="{_LEFT + end:.1f}" y2="{middle}" stroke="{colour}"/>',
            _text(_LEFT + end + 4, y + _BAR - 2, f"{median:.3g}", size=10),
        ]


@dataclass(frozen=True, slots=True)
class _Scale:
    """Powers of ten from ``low`` to ``high``."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Sequence[float]) -> "_Scale":
        shown = [value for value in values if value > 0] or [1.0]
        low = max(_LOWEST, math.floor(math.log10(min(shown))))
        return cls(low, max(low + 1, math.ceil(math.log10(max(shown)))))

    def position(self, value: float) -> float:
        """From 0 to 1; what is not positive is at the beginning."""
        if value <= 0:
            return 0.0
        return max(0.0, (math.log10(value) - self.low) / (self.high - self.low))

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def as_svg(measurements: Sequence[Measurement]) -> str:
    """Bars for times and for sizes, side by side for each backend."""
    times = [
        (found.backend, {name: found.times(name) for name in _TIMES if found.times(name)})
        for found in measurements
    ]
    sizes = [
        (found.backend, {"size": [sample.size_bytes / 1e6 for sample in found.samples if sample.size_bytes]})
        for found in measurements
    ]
    workload = ", ".join(dict.fromkeys(found.workload for found in measurements))
    panels = [
        _Panel(f"Seconds (workload: {workload})", "s", _TIMES, [row for row in times if row[1]]),
        _Panel("Megabytes", "MB", _SIZE, [row for row in sizes if row[1]["size"]]),
    ]
    lines, top = [], 0
    for panel in panels:
        lines += panel.draw(top)
        top += panel.height + 10
    width = _LEFT + _WIDTH + _RIGHT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            *lines,
            "</svg>\n",
        )
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, weight: str = "normal", *, anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text, quote=False)}</text>"
    )
