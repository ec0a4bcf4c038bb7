"""Pictures of results. matplotlib is loaded only when one is drawn, and never needs a display."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

from registry.cli.output import printable
from registry.core.comparison import Comparison, EngineResult, TensorResult
from registry.core.errors import Refused, shortened
from registry.disk import translated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
