"""What each part of jury-design brings, and where its constants come from.

Each row changes one thing: the weights of the nodes, where they enter, the ridge, the window, the trust in few
jurors. Means of test accuracy over the five query sizes of the paper's protocol, on splits that the comparison with
other strategies never uses. The last row reads the protocol the other way: query
sizes that do not count the initial labels. Interrupted runs go on where they stopped.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import options, save, table
from jurygcn import active
from jurygcn.active import Design, Scene
from jurygcn.active.gain import Gain
from jurygcn.active.windows import Window
from jurygcn.data import cache_folder
from jurygcn.graph.similarity import AVERAGES, WALKS, View
from protocol import CITATION, graph

FIRST_SEED, SPLITS, QUICK_SPLITS = 1000, 6, 1
VERSION = 2
Array = NDArray[Any]


class Unweighted(Design):
    """All nodes count the same: no jury."""

    def weights(self, scene: Scene) -> Array:
        """As the class says."""
        return np.ones(int(scene.data.num_nodes))


class Entropy(Design):
    """The model's entropy in place of the jury's ambiguity."""

    def weights(self, scene: Scene) -> Array:
        """As the class says."""
        share = self.share(scene)
        return (1.0 - share) + share * scene.entropy / np.log(scene.num_classes)


class Influence(Design):
    """The paper's influence jurors in place of newton ones."""

    def weights(self, scene: Scene) -> Array:
        """As the class says."""
        share = self.share(scene)
        return (1.0 - share) + share * scene.jury(leave_out="influence").verdict(advice=None).ambiguity.numpy()


class Variance(Design):
    """How far single labels move the prediction (the jackknife variance) in place of ambiguity."""

    def weights(self, scene: Scene) -> Array:
        """As the class says."""
        moved = np.sqrt(scene.verdict.loo_variance.double().numpy())
        share = self.share(scene)
        return (1.0 - share) + share * moved / max(float(moved.max()), 1e-12)


class Everywhere(Design):
    """Weights on candidates and labelled nodes as well, not only on the nodes to be predicted (the prototype's)."""

    def window(self, scene: Scene) -> Window:
        """As the class says."""
        return Window.of(super().window(scene).rows * np.sqrt(super().weights(scene))[:, None])

    def weights(self, scene: Scene) -> Array:
        """As the class says."""
        return np.ones(int(scene.data.num_nodes))


class FixedRidge(Design):
    """Ridge 1 whatever the number of labels (the prototype's)."""

    def ridge(self, scene: Scene, _: Window) -> float:
        """As the class says."""
        return 1.0 / (len(scene.labelled) + scene.batch)


class TwoHops(Design):
    """Features propagated twice, as the GCN does, are the only window (the first version's)."""

    def window(self, scene: Scene) -> Window:
        """As the class says."""
        return Window.of(scene.statistics.propagated)


class OneKind(Design):
    """Views of one kind alone: averaged features, or walks."""

    kind = AVERAGES

    def shares(self, scene: Scene, usual: dict[View, float]) -> dict[View, float]:
        """As the class says."""
        return super().shares(scene, {view: share for view, share in usual.items() if view.kind == self.kind})


class Walks(OneKind):
    """Walks alone."""

    kind = WALKS


VARIANTS: dict[str, Design] = {
    "jury-design": Design(),
    "no jury: all nodes weigh the same": Unweighted(),
    "entropy in place of ambiguity": Entropy(),
    "influence jurors": Influence(),
    "jackknife variance in place of ambiguity": Variance(),
    "weights on candidates too": Everywhere(),
    "ridge 1": FixedRidge(),
    "directions 1.5": Design(directions=1.5),
    "directions 6": Design(directions=6.0),
    "trust 0: ambiguity alone": Design(trust=0.0),
    "trust 10": Design(trust=10.0),
    "two hops: the only window": TwoHops(),
    "all views alike: labels do not choose": Design(evidence=math.inf),
    "no share of its own for what the model sees": Design(seen=0.0),
    "averaged features alone": OneKind(seen=0.0),
    "walks alone": Walks(seen=0.0),
    "expected gain: jury-gain": Gain(),
    "jury-design, initial labels on top": Design(),
}


def main() -> None:
    chosen = options(__doc__)
    names = CITATION[:1] if chosen.quick else CITATION
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_SPLITS if chosen.quick else SPLITS))
    variants = dict(list(VARIANTS.items())[:2]) if chosen.quick else VARIANTS
    path = Path(os.environ.get("JURYGCN_RUNS", cache_folder() / "benchmarks")) / "active_design.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        run = json.loads(line)
        if run["version"] == VERSION:
            done[run["dataset"], run["variant"], run["settings"], run["seed"]] = run["accuracy"]
    rows = []
    for words, design in variants.items():
        row: dict[str, Any] = {"variant": words}
        for name in names:
            found = []
            for seed in seeds:
                key = (name, words, repr(design), seed)
                if key not in done:
                    history = active.run(graph(name), design, seed=seed, count_initial="on top" not in words)
                    done[key] = [100 * step.accuracy for step in history.steps[1:]]
                    run = dict(zip(("dataset", "variant", "settings", "seed"), key))
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"version": VERSION, **run, "accuracy": done[key]}) + "\n")
                found.append(done[key])
            row[name] = {
                "by_size": [mean(column) for column in zip(*found)],
                "mean": mean(map(mean, found)),
                "sd": pstdev(map(mean, found)),
            }
        row["mean"] = mean(row[name]["mean"] for name in names)
        rows.append(row)
        cells = [" ".join(f"{value:.1f}" for value in row[name]["by_size"]) for name in names]
        print(f"{words}: {' | '.join(cells)} | mean {row['mean']:.2f}", flush=True)
    table(
        f"Test accuracy (%) over the five query sizes, {len(seeds)} splits",
        ["variant", *names, "mean"],
        [[r["variant"], *(f"{r[n]['mean']:.1f}" for n in names), f"{r['mean']:.1f}"] for r in rows],
    )
    save("active_design", rows, quick=chosen.quick, splits=len(seeds), first_seed=FIRST_SEED)


if __name__ == "__main__":
    main()
