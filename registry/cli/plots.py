"""Pictures of results. matplotlib is loaded only when one is drawn, and never needs a display."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from registry.cli.output import printable
from registry.core.comparison import Comparison, EngineResult, TensorResult, Verdict
from registry.core.errors import Refused, shortened
from registry.core.summary import ScorePoint
from registry.disk import translated

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAYER = re.compile(r"\.([0-9]{1,6})\.")
_NOTHING = float("nan")
_TALLEST = 60  # inches
_MOST, _LABEL = 300, 80  # rows or columns of one picture, and characters beside a row


def require_matplotlib() -> None:
    """Find out before the work whether there will be a picture of it.

    Raises:
        Refused: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError as error:
        raise Refused("a plot needs matplotlib", hint="pip install 'aorlta-registry[plot]'") from error


def draw_comparison(comparison: Comparison, path: str) -> None:
    """Write a PNG: for each engine, how much of the update arrived and how far it is from the merge, layer by module.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415

    grids = [_Grid(result) for result in comparison.engines]
    height = min(sum(1.2 + 0.28 * len(grid.kinds) for grid in grids), _TALLEST)
    width = min(6 + 0.2 * max(len(grid.layers) for grid in grids), _TALLEST)
    figure = Figure(figsize=(max(width, 9), height), layout="constrained")
    figure.suptitle(
        f"{comparison.verdict}: base + adapter ({comparison.recipe}) against what was served", parse_math=False
    )
    axes = figure.subplots(len(grids), 2, squeeze=False)
    for (left, right), grid in zip(axes, grids, strict=True):
        title = f"{_label(grid.result.engine)}: {grid.result.verdict}"
        _draw(left, grid, f"{title}\npart of the update that arrived", [_arrived(cell) for cell in grid.cells], (0, 1))
        _draw(right, grid, "\nlargest distance from the merge, ULP", [_distance(cell) for cell in grid.cells], (0, 16))
    with translated(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters that no font here has, and of names that leave little room
        figure.savefig(path, format="png", dpi=150)


class _Grid:
    """An engine's tensors by layer (columns) and by what they are within it (rows)."""

    def __init__(self, result: EngineResult) -> None:
        self.result = result
        places = [(*_place(tensor.name), tensor) for tensor in result.tensors]
        self.layers = sorted({layer for layer, _, _ in places})[:_MOST]
        self.kinds = sorted({kind for _, kind, _ in places})[:_MOST]
        rows = {kind: number for number, kind in enumerate(self.kinds)}
        columns = {layer: number for number, layer in enumerate(self.layers)}
        self.cells = [
            (rows[kind], columns[layer], tensor) for layer, kind, tensor in places if kind in rows and layer in columns
        ]


def _place(name: str) -> tuple[int, str]:
    """The layer's number (-1 for none) and the name within the layer."""
    match = _LAYER.search(name)
    return (-1, name) if match is None else (int(match[1]), name[match.end() :].removesuffix(".weight"))


def _label(name: str) -> str:
    return shortened(printable(name), _LABEL)


_Cell = tuple[int, int, TensorResult]


def _arrived(cell: _Cell) -> float:
    return _NOTHING if cell[2].arrived is None else cell[2].arrived


def _distance(cell: _Cell) -> float:
    """log2 of the distance, moved up so that equality is 0 and one ULP is 1."""
    return _NOTHING if cell[2].max_ulp is None else float(cell[2].max_ulp.bit_length())


def _draw(axes: Axes, grid: _Grid, title: str, values: list[float], limits: tuple[int, int]) -> None:
    image = [[_NOTHING] * len(grid.layers) for _ in grid.kinds]
    for (row, column, _), value in zip(grid.cells, values, strict=True):
        image[row][column] = value
    is_share = limits == (0, 1)
    drawn = axes.imshow(image, aspect="auto", cmap="RdYlGn" if is_share else "RdYlGn_r", vmin=limits[0], vmax=limits[1])
    axes.set_title(title, fontsize=9, loc="left", parse_math=False)
    axes.set_xticks(range(len(grid.layers)), ["-" if layer < 0 else str(layer) for layer in grid.layers], fontsize=7)
    axes.set_yticks(
        range(len(grid.kinds)), list(map(_label, grid.kinds)) if is_share else [], fontsize=7, parse_math=False
    )
    axes.set_xlabel("layer", fontsize=8)
    bar: Any = axes.figure.colorbar(drawn, ax=axes)
    if is_share:
        bar.set_ticks([0, 0.5, 1], labels=["none", "half", "all"])
    else:
        bar.set_ticks([0, 1, 4, 8, 12, 16], labels=["equal", "1", "8", "128", "2048", "32768"])


_MARKS: dict[Verdict, tuple[str, str]] = {  # shape and colour, so that neither has to be told apart alone
    Verdict.IDENTICAL: ("o", "#1a7f37"),
    Verdict.WITHIN_ULP: ("s", "#57ab5a"),
    Verdict.VACUOUS: ("d", "#6e7781"),
    Verdict.INCOMPLETE: ("P", "#bf8700"),
    Verdict.PARTIAL: ("^", "#e16f24"),
    Verdict.DIFFERENT: ("v", "#cf222e"),
    Verdict.BASE_ONLY: ("X", "#82071e"),
}
_NOT_COMPARED = "not compared"
_FEW = 60  # points: more get smaller marks
_LONG = 36  # characters


def draw_scores(run: str, metric: str, points: Sequence[ScorePoint], path: str) -> None:
    """Write a PNG: a metric's value for each adapter of a run, by iteration, marked with the adapter's verdict.

    Raises:
        Refused: no iteration is known of any point.
        StorageError: the file cannot be written.
    """
    figure = score_figure(run, metric, points)
    with translated(path), warnings.catch_warnings(action="ignore", category=UserWarning):  # a letter the font lacks
        figure.savefig(path, format="png", dpi=150)


def score_figure(run: str, metric: str, points: Sequence[ScorePoint]) -> Figure:
    """What `draw_scores` draws: a line, and on it a kind of mark for each verdict, told in the legend.

    Raises:
        Refused: no iteration is known of any point.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    placed = [(point.iteration, point.value, point.verdict) for point in points if point.iteration is not None]
    if not placed:
        raise Refused("no iteration is known of what was scored", key=run, found=f"{len(points)} adapters without one")
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([x for x, _, _ in placed], [y for _, y, _ in placed], color="#afb8c1", linewidth=1.2, zorder=1)
    size = 70 if len(placed) <= _FEW else 22
    for verdict in (*Verdict, None):
        of = [(x, y) for x, y, each in placed if each is verdict]
        if not of:
            continue
        marker, colour = ("o", "#8c959f") if verdict is None else _MARKS[verdict]
        axes.scatter(
            [x for x, _ in of],
            [y for _, y in of],
            s=size,
            marker=marker,
            facecolors="white" if verdict is None else colour,
            edgecolors=colour,
            linewidths=1.2,
            label=f"{_NOT_COMPARED if verdict is None else verdict} ({len(of)})",
            zorder=2,
        )
    title = f"{_short(metric)} by iteration of run {_short(run)}"
    axes.set_title(title, loc="left", fontsize=11, pad=12, parse_math=False)
    axes.set_xlabel("iteration")
    axes.set_ylabel(_short(metric), parse_math=False)
    axes.margins(x=0.04, y=0.12)
    if len({x for x, _, _ in placed}) == 1:
        axes.set_xlim(placed[0][0] - 1, placed[0][0] + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.grid(visible=True, color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    plain: dict[str, Any] = {"frameon": False, "fontsize": 9, "alignment": "left"}
    axes.legend(title="served as", loc="center left", bbox_to_anchor=(1.01, 0.5), **plain)
    return figure


def _short(text: str) -> str:
    line = printable(text)
    return line if len(line) <= _LONG else f"{line[: _LONG - 3]}..."
