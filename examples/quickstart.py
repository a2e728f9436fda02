"""Train a GCN on a few labels, fit its jury and print the verdict. Runs in seconds and needs no network."""

from __future__ import annotations

import jurygcn
from jurygcn.data import paper_split, random_labels
from jurygcn.evaluation import error_auroc, mean_set_size, set_coverage


def main() -> None:
    """Quantify the digits graph with 60 labels."""
    data = jurygcn.load_dataset("digits")
    split = paper_split(data, seed=0)
    train_nodes = random_labels(split.pool, 60, seed=0)

    model = jurygcn.GCN(data.num_features, 16, data.num_classes)
    jurygcn.train(model, data, train_nodes, epochs=200)

    jury = jurygcn.Jury(model, data, train_nodes, weight_decay=5e-4).fit()
    verdict = jury.verdict(split.test)
    print(f"{len(jury.jurors.steps)} jurors; {jury.jurors.reason}; votes averaged {verdict.diffusion} times")

    truth = data.y[split.test]
    sets = verdict.label_sets(alpha=0.1)
    print(f"label sets at alpha = 0.1 contain the true label of {set_coverage(sets, truth):.1%} of the test nodes")
    print(f"label sets have {mean_set_size(sets):.2f} labels on average")
    wrong = verdict.predicted_class != truth
    print(f"AUROC of the doubt for wrong predictions: {error_auroc(verdict.uncertainty(), wrong):.3f}")

    frame = verdict.to_frame().set_index("node")
    frame["right"] = (verdict.predicted_class == truth).numpy()
    frame = frame.loc[verdict.ranking().tolist()]  # most uncertain first
    shown = frame[["predicted_class", "probability", "label_set", "doubt", "jury_class", "right"]]
    print("\nthe five most uncertain test nodes")
    print(shown.head().to_string(float_format="%.3f"))
    print("\nthe five least uncertain test nodes")
    print(shown.tail().to_string(float_format="%.3f"))
    half = len(frame) // 2
    print(f"\naccuracy of the more certain half: {frame['right'][half:].mean():.1%}, of the other half: ", end="")
    print(f"{frame['right'][:half].mean():.1%}")


if __name__ == "__main__":
    main()
