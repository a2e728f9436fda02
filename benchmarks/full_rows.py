"""The rows of `full_conformal.py`, from its runs: means, standard errors, ratios."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

ALPHAS = (0.05, 0.1, 0.2)
KINDS: dict[str, dict[str, Any]] = {
    "stacked": {},
    "model alone": {"advice": None, "diffusion": 0},
    "panel alone": {"advice": "panel"},
}
RESAMPLED = 1000  # times that splits are drawn for a standard error


def rank_of(alpha: float, n: int) -> int:
    return int(alpha * (n + 1) + 1e-9)


def coverage_rows(name: str, rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    out = []
    for kind in KINDS:
        curve = {m: torch.tensor([row[kind][m] for row in rows]) for m in ("full", "jackknife+")}  # (splits, ranks, 2)
        for alpha in ALPHAS:
            rank = rank_of(alpha, n)
            at, plus = curve["full"][:, rank], curve["jackknife+"][:, rank]
            wanted = float(at[:, 0].mean())
            error = float(at[:, 0].std()) / len(rows) ** 0.5
            generator = torch.Generator().manual_seed(0)
            again = [torch.randint(len(rows), (len(rows),), generator=generator) for _ in range(RESAMPLED)]
            ratios = torch.tensor([size_ratio(at[some], curve["jackknife+"][some]) for some in again])
            out.append(
                {
                    "dataset": name,
                    "kind": kind,
                    "alpha": alpha,
                    "splits": len(rows),
                    "coverage": wanted,
                    "standard_error": error,
                    "size": float(at[:, 1].mean()),
                    "jackknife_coverage": float(plus[:, 0].mean()),
                    "jackknife_size": float(plus[:, 1].mean()),
                    "size_ratio": size_ratio(at, curve["jackknife+"]),
                    "ratio_error": float(ratios.std()),
                    "reached": wanted >= 1 - alpha - error,
                }
            )
    return out


def size_ratio(at: Tensor, curve: Tensor) -> float:
    """Mean size of full sets over that of jackknife+ sets whose level is moved until the mean coverage is the same.

    Shapes: at (splits, 2), curve (splits, ranks, 2) coverage and size.
    """
    means, (wanted, size) = curve.mean(dim=0), at.mean(dim=0).tolist()  # coverage falls with the rank
    below = int((means[:, 0] > wanted).sum().clamp(1, len(means) - 1))
    (c1, s1), (c0, s0) = means[below].tolist(), means[below - 1].tolist()
    return float(size / (s1 + (s0 - s1) * (wanted - c1) / max(c0 - c1, 1e-12)))


def class_rows(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for how in ("jackknife+, all", "jackknife+, class", "full, all", "full, class"):
        hits, nodes = (
            torch.tensor([row["stacked"]["classes"][how][part] for row in rows]).sum(dim=0).double()
            for part in ("hits", "nodes")
        )
        by_class = hits / nodes
        out.append(
            {
                "dataset": name,
                "sets": how,
                "splits": len(rows),
                "worst_class": float(by_class.min()),
                "coverage": float(hits.sum() / nodes.sum()),
                "size": mean(row["stacked"]["classes"][how]["size"] for row in rows),
                "too_few": mean(row["stacked"]["classes"][how]["too_few"] for row in rows),
            }
        )
    return out


def explore_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shares = {share: [r for r in rows if r["share"] == share] for share in (0.0, 0.2)}
    found: list[dict[str, Any]] = []
    for share, some in shares.items():
        if some:
            accuracies = [r["accuracy"] for r in some]
            found.append(
                {"share": share, "what": "accuracy", "runs": len(some), "value": mean(accuracies), "size": None}
            )
            for key in (k for k in some[0] if "vote" in k):
                covered = [r[key][0] for r in some]
                error = stdev(covered) / len(covered) ** 0.5 if len(covered) > 1 else None
                found.append(
                    {
                        **{"share": share, "what": key, "runs": len(some), "value": mean(covered)},
                        **{"size": mean(r[key][1] for r in some), "standard_error": error},
                    }
                )
    return found


def cost_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **{"dataset": r["name"], "kind": kind, "fit": r["fit"], "ratio": r[kind]["full"] / r[kind]["jackknife+"]},
            **{"with_fit": (r["fit"] + r[kind]["full"]) / (r["fit"] + r[kind]["jackknife+"]), "bound": 2 * r["C"]},
            **{"peak_megabytes": r["peak_megabytes"], **r[kind]},
        }
        for r in rows
        for kind in r
        if isinstance(r[kind], dict) and "full" in r[kind]
    ]
