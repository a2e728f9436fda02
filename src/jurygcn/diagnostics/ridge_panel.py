r"""A panel of ridge regressions on averaged features, whose leave-one-out predictions are exact in closed form.

The panel does not use the model. Features are averaged over closed neighbourhoods 0, 1, 2, 4, 8 and 16 times. Ridge
regressions fit the labels to each of these views, and to all views together. Each regression has an exact
leave-one-out error, and a smaller error gives it more weight. On homophilous graphs the views with many averages get
most weight, on heterophilous graphs those with few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import layout_of, why_no_neighbours
from jurygcn.errors import SettingError
from jurygcn.graph.features import averaged_features

HOPS = (0, 1, 2, 4, 8, 16)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0)  # penalties, for views whose rows have a mean length of 1
CONSTANT = 1e-9  # rows of length 1 that differ by less are equal: float64 rounds by 1e-16, times hops and features
SHARPNESS = 10.0  # a relative excess error e above the smallest multiplies a regression's weight by exp(-10 e)


@dataclass(frozen=True, eq=False)
class RidgePanel:
    """The weighted mean of the regressions.

    Attributes:
        shares: of every class at every node, (N, C); rows sum to 1, but entries may leave [0, 1]. At a training node
            they are leave-one-out predictions.
        regressions: hops ("all" for all views side by side), ridge, leave-one-out error and weight of each.
    """

    shares: Tensor
    regressions: pd.DataFrame = field(repr=False)

    def doubt(self, nodes: Tensor, labels: Tensor) -> Tensor:
        """One minus the share of a label at each node, (m,), (m,) -> (m,)."""
        return 1.0 - self.shares[nodes.cpu()].gather(1, labels.cpu()[:, None]).squeeze(1)


def check_panel(data: Data) -> None:
    """Raise SettingError for a type of nodes without features, or without relations among themselves."""
    layout = layout_of(data)
    if layout is None:
        return
    missing = "relations" if why_no_neighbours(data) else "features" if "x" not in layout.entries else ""
    if missing:
        raise SettingError(
            f"expected features and relations among {layout.node_type} nodes for the ridge panel, got no {missing}; "
            "leave the panel out"
        )


def views(data: Data) -> Iterator[Tensor]:
    """Features averaged over each number of hops, (N, F): rows of equal length, then centred, of mean length 1.

    Many averages make all rows nearly equal, so centring needs float64. If only rounding error is left, the view is all
    zeros.
    """
    for _, x in averaged_features(data, HOPS, dtype=torch.float64):
        view = functional.normalize(torch.from_numpy(x), dim=1)
        view -= view.mean(dim=0)
        spread = view.norm(dim=1).mean()
        view *= 1.0 / spread if spread > CONSTANT else 0.0
        yield view.float()


def fit_ridge_panel(data: Data, nodes: Tensor, labels: Tensor, classes: int) -> RidgePanel:
    """Fit all regressions to the labels of ``nodes``, (n,), and average them by weight."""
    targets = functional.one_hot(labels.cpu(), classes).double() - 1.0 / classes
    rows = [view[nodes.cpu()].double() for view in views(data)]
    together = torch.cat(rows, dim=1) / len(rows) ** 0.5
    fits = [fit for design in (*rows, together) for fit in ridge_fits(design, targets)]
    errors = torch.stack([(targets - left_out).square().sum(dim=1).mean() for _, left_out in fits])
    weights = torch.softmax(-SHARPNESS * errors / errors.min().clamp_min(1e-12), dim=0)
    own = torch.einsum("k,knc->nc", weights, torch.stack([left_out for _, left_out in fits]))
    by_view = torch.zeros(len(rows), rows[0].shape[1], classes, dtype=torch.float64)
    for place, (weight, (coefficients, _)) in enumerate(zip(weights, fits)):
        view = place // len(RIDGES)
        if view < len(rows):
            by_view[view] += weight * coefficients
        else:
            by_view += weight * coefficients.view_as(by_view) / len(rows) ** 0.5
    shares = torch.full((int(data.num_nodes), classes), 1.0 / classes, dtype=torch.float32)
    for seen, coefficients in zip(views(data), by_view.float()):
        shares += seen @ coefficients
    shares[nodes.cpu()] = (own + 1.0 / classes).float()
    said = [(hops, ridge) for hops in (*HOPS, "all") for ridge in RIDGES]
    table = pd.DataFrame(said, columns=["hops", "ridge"])
    return RidgePanel(shares, table.assign(loo_error=errors.numpy(), weight=weights.numpy()))


def ridge_fits(design: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    r"""Ridge regressions for every penalty, each with its leave-one-out predictions.

    .. math::
        B = (\Phi^T \Phi + \lambda I)^{-1} \Phi^T Y, \qquad
        y_i - f_{-i}(i) = \frac{y_i - f(i)}{1 - H_{ii}}, \quad H = \Phi (\Phi^T \Phi + \lambda I)^{-1} \Phi^T

    Shapes: design (n, D), targets (n, C) -> coefficients (D, C), left-out predictions (n, C).
    """
    U, s, Vh = torch.linalg.svd(design, full_matrices=False)
    projected = U.T @ targets
    for ridge in RIDGES:
        kept = s.square() / (s.square() + ridge)
        residual = targets - U @ (kept[:, None] * projected)
        left_out = targets - residual / (1.0 - U.square() @ kept)[:, None]
        yield Vh.T @ ((s / (s.square() + ridge))[:, None] * projected), left_out
