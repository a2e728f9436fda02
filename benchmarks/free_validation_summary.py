"""Means over splits of the benchmark of left-out labels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, pstdev
from typing import Any

import numpy as np

LABELS = 60
APART = {"held out": "estimates", "cleanlab": "errors"}  # parts measured apart, and the part that they belong to
FLAGS = ("flagged", "false", "found")
RIVALS = ("CaGCN", "GATS")  # measured apart, on fewer splits


def grouped(rows: Sequence[dict[str, Any]], part: str, *keys: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["part"] == part:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [(dict(zip(keys, values)), some) for values, some in groups.items()]


def joined(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was measured apart on the same split, in the row of the jury; without that row it is left out."""
    found = [dict(row) for row in rows if row["part"] not in APART]
    there = {(row["part"], *_cell(row)): row for row in found}
    for row in rows:
        whole = there.get((APART.get(row["part"], ""), *_cell(row)))
        if whole is not None:
            whole |= {key: {**whole.get(key, {}), **value} for key, value in row.items() if isinstance(value, dict)}
    return found


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("name", "kind", "rate", "flips", "seed"))


def estimates(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bias and error of the accuracy, over splits; the binomial standard error is that of as many labels."""
    found = []
    for about, some in grouped(rows, "estimates", "name", "kind"):
        for method in dict.fromkeys(method for row in some for method in row["estimates"]):
            measured = [row for row in some if method in row["estimates"]]
            mine = [row["estimates"][method] for row in measured]
            whose = "jury_accuracy" if method == "stacked jury" else "accuracy"
            target = np.array([row["test"][whose] for row in measured])
            off = np.array([m["accuracy"] for m in mine]) - target
            labels = LABELS // 2 if method == "30/30" else LABELS
            inside = [m["low"] <= t <= m["high"] for m, t in zip(mine, target)]
            found.append(
                {
                    "part": "accuracy",
                    **about,
                    "method": method,
                    "splits": len(mine),
                    "test": float(target.mean()),
                    "estimate": float(np.mean([m["accuracy"] for m in mine])),
                    "bias": float(off.mean()),
                    "rmse": float(np.sqrt((off**2).mean())),
                    "binomial": float(np.sqrt(target * (1 - target) / LABELS).mean()),
                    "covered": mean(map(float, inside)),
                    "labels": labels,
                    "trainings": mean(m.get("cost", 0.0) for m in mine),
                }
            )
    return found


def calibrations(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calibration errors; "validated" is that of the temperature of 500 validation labels on the same splits."""
    found = []
    for about, some in grouped(rows, "estimates", "name", "kind"):
        by_seed: dict[int, dict[str, Any]] = {
            row["seed"]: {method: found for method, found in row["calibration"].items() if method not in RIVALS}
            for row in some
        }
        if about["kind"] == "GCN":
            for row in rows:
                if row["part"] == "rivals" and row["name"] == about["name"] and row["seed"] in by_seed:
                    by_seed[row["seed"]] |= row["calibration"]
        for method in dict.fromkeys(method for there in by_seed.values() for method in there):
            mine = [there for there in by_seed.values() if method in there]
            row = {"part": "calibration", **about, "method": method, "splits": len(mine)}
            row |= {key: mean(there[method][key] for there in mine) for key in ("ece", "nll")}
            row["ece_sd"] = pstdev([there[method]["ece"] for there in mine])
            row["validated"] = mean(there["500 validation labels"]["ece"] for there in mine)
            found.append(row)
    return found


def selections(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "part": "selection",
            **about,
            "method": method,
            "splits": len(some),
            "accuracy": mean(row["accuracy"][method] for row in some),
            "accuracy_sd": pstdev([row["accuracy"][method] for row in some]),
            **({"relative_cost": mean(row["cost"][method] for row in some)} if method in some[0]["cost"] else {}),
            **({"tied": mean(row["tied"][method] for row in some)} if method in some[0]["tied"] else {}),
        }
        for about, some in grouped([{"kind": "GCN", **row} for row in rows], "selection", "name", "kind")
        for method in some[0]["accuracy"]
    ]


def errors(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for about, some in grouped(rows, "errors", "name", "kind", "rate", "flips"):
        row = {"part": "errors", **about, "splits": len(some)}
        row |= {words: mean(r["auroc"][words] for r in some) for words in _of_all(some, "auroc")}
        for who in ("jury", "cleanlab"):
            row |= {f"{who} {key}": mean(r[who][key] for r in some) for key in _of_all(some, who) if key in FLAGS}
        row |= {key: mean(r["jury"][key] for r in some) for key in ("noise", "estimated")}
        row |= {f"accuracy, {words}": mean(r["accuracy"][words] for r in some) for words in _of_all(some, "accuracy")}
        found.append(row)
    return found


def _of_all(rows: Sequence[dict[str, Any]], key: str) -> list[str]:
    """What was measured on every split, so that columns compare the same splits."""
    return [words for words in rows[0].get(key, {}) if all(words in row.get(key, {}) for row in rows)]
