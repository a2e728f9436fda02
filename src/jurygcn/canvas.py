"""The style of all figures: a colour-blind safe palette (Okabe and Ito) and light axes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jurygcn.io.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#B4BCC6"
# In the order of use; markers differ as well, for print and for colour-blind readers.
COLOURS = (BLUE, "#D55E00", "#009E73", "#CC79A7", ORANGE, "#56B4E9", "#8C564B", "#999933", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "*")


def canvas(
    panels: int, *, width: float, height: float = 3.2, share_y: bool = False, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of ``columns``; outside pyplot, which would keep it in memory."""
    columns = min(columns or panels, panels)
    rows = -(-panels // columns)
    figure = _kind_of_figure()(figsize=(width, height * rows), layout="constrained")
    axes: list[Any] = list(np.atleast_1d(figure.subplots(rows, columns, sharey=share_y)).ravel())
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


@cache
def _kind_of_figure() -> type[Figure]:
    """A figure that a notebook shows as a picture, also where pyplot has not been imported."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            png = BytesIO()
            self.savefig(png, format="png", dpi=100)
            return png.getvalue()

    return NotebookFigure


def legend_below(figure: Figure, panels: Iterable[Axes], *, columns: int | None = None, **style: Any) -> None:
    """One legend below all panels, with each label once; by default in one row."""
    handles = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels())}
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns or len(handles), "frameon": False, **style}
    figure.legend(handles.values(), handles.keys(), **place)


def looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """A colour and a marker for each name."""
    return {
        name: {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        for place, name in enumerate(dict.fromkeys(names))
    }


def save_figure(figure: Figure, path: Path, **metadata: str | None) -> Path:
    """Write a PNG atomically; the same figure gives the same file."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={"Software": None, **metadata})
    return path


def plain_text(name: object) -> str:
    """A name with dollar signs escaped, so that matplotlib does not read it as a formula."""
    return str(name).replace("$", r"\$")
