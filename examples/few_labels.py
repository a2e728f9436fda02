"""Train on twenty labels: a plain GCN, the paper's reweighting and the jury's self-training. Needs no network."""

from __future__ import annotations

import jurygcn
from jurygcn import learning
from jurygcn.data import paper_split, random_labels
from jurygcn.evaluation import accuracy, error_auroc


def main() -> None:
    """Compare three methods on the digits graph with twenty labels."""
    data = jurygcn.load_dataset("digits")
    split = paper_split(data, seed=0)
    train_nodes = random_labels(split.pool, 20, seed=0)
    truth = data.y[split.test]

    methods = {
        "GCN": learning.GCNClassifier(),
        "reweighted": learning.Reweighting(),
        "self-trained": learning.SelfTraining(),
    }
    for name, method in methods.items():
        fitted = method.fit(data, train_nodes, seed=0)
        predicted = fitted.predict(split.test)
        auroc = error_auroc(fitted.uncertainty(nodes=split.test), predicted != truth)
        print(f"{name}: accuracy {accuracy(predicted, truth):.1%}, AUROC for wrong predictions {auroc:.3f}")


if __name__ == "__main__":
    main()
