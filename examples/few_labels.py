"""Twenty labels: a plain GCN, the paper's reweighting, and self-training led by the jury. Needs no network."""

from __future__ import annotations

import jurygcn
from jurygcn import learning
from jurygcn.data import paper_split, random_labels
from jurygcn.evaluation import accuracy, error_auroc


def main() -> None:
    """Learn the digits from twenty of them."""
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
        print(f"{name}: accuracy {accuracy(predicted, truth):.1%}, AUROC of its uncertainty for errors {auroc:.3f}")


if __name__ == "__main__":
    main()
