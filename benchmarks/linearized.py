"""What do linearised jurors lose? Their p-values and label sets beside exact ones, for several numbers of directions.

Labels are random, 1,000 of them; votes are not averaged over neighbourhoods, in either mode. "reddit/50" is the
synthetic stand-in at a fiftieth of Reddit's size. Rank 0 keeps no direction: jurors differ from the model at their own
node only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import Jury, Votes, load_dataset
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.models.training import fit_gcn
from protocol import PLAIN

DECAY, RANKS = PLAIN.weight_decay, (0, 8, 32, 128, 512)


def graph(name: str) -> Data:
    if name != "reddit/50":
        return load_dataset(name)
    return synthetic(
        num_nodes=4659, num_edges=2_292_316, num_features=602, num_classes=41, separation=1.0, homophily=0.3, seed=0
    )


def measure(name: str, labels: int) -> list[dict[str, Any]]:
    data = graph(name)
    split = paper_split(data, seed=0)
    nodes, test = random_labels(split.pool, labels, seed=0), split.test
    model, _ = fit_gcn(data, nodes, PLAIN, seed=0)
    exact = Jury(model, data, nodes, weight_decay=DECAY, votes="exact").fit().verdict(test, diffusion=0, advice=None)
    jury = Jury(model, data, nodes, weight_decay=DECAY, votes=Votes("linearized", rank=max(RANKS))).fit()
    whole, rows = jury.jurors, []
    assert isinstance(whole, CompressedJurors)
    energy = float(whole.coefficients.double().square().sum()) / (1 - whole.discarded)
    for rank in RANKS:
        kept = whole.coefficients[:, :rank]  # directions come in order of importance
        held = float(kept.double().square().sum()) / energy
        part = (kept, whole.directions[:rank]) if rank else (0 * whole.coefficients[:, :1], whole.directions[:1])
        jury._jurors = replace(whole, coefficients=part[0], directions=part[1], discarded=1 - held)
        linear = jury.verdict(test, advice=None)
        change = (linear.p_values - exact.p_values).abs()
        rows.append(
            {
                "dataset": name,
                "labels": labels,
                "rank": rank,
                "discarded": 1 - held,
                "mean_change": float(change.mean()),
                "largest_change": float(change.max()),
                "same_sets": float((linear.label_sets(0.1) == exact.label_sets(0.1)).all(dim=1).double().mean()),
                "coverage": float(linear.label_sets(0.1).gather(1, data.y[test][:, None]).double().mean()),
                "exact_coverage": float(exact.label_sets(0.1).gather(1, data.y[test][:, None]).double().mean()),
            }
        )
    return rows


def main() -> None:
    chosen = options(__doc__)
    names = ["cora"] if chosen.quick else ["cora", "pubmed", "reddit/50"]
    rows = [row for name in names for row in measure(name, 300 if chosen.quick else 1000)]
    table(
        "Linearised against exact: p-values of test nodes, label sets at 0.9",
        ["graph, directions", "steps outside", "mean |Δp|", "largest |Δp|", "same set", "coverage", "exact coverage"],
        [
            [
                f"{r['dataset']}, {r['rank']}",
                f"{r['discarded']:.1%}",
                f"{r['mean_change']:.4f}",
                f"{r['largest_change']:.3f}",
                f"{r['same_sets']:.1%}",
                f"{r['coverage']:.3f}",
                f"{r['exact_coverage']:.3f}",
            ]
            for r in rows
        ],
    )
    print(save("linearized", rows, quick=chosen.quick, weight_decay=DECAY))


if __name__ == "__main__":
    main()
