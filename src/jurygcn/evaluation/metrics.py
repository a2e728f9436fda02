"""Metrics of predictions; they accept tensors, arrays and lists."""

from __future__ import annotations

from jurygcn.evaluation.arrays import Values, as_pair


def accuracy(predicted: Values, truth: Values) -> float:
    """Share of nodes whose predicted class is the true one. Shapes: (m,), (m,)."""
    guess, true = as_pair(predicted, truth, "predictions", "true labels")
    return float((guess == true).mean())


def micro_f1(predicted: Values, truth: Values) -> float:
    r"""Micro-averaged F1, :math:`2 TP / (2 TP + FP + FN)` with the counts summed over classes. Shapes: (m,), (m,).

    With one label per node every error is one false positive and one false negative, so this equals `accuracy`.
    """
    from sklearn.metrics import f1_score  # here, because it takes most of a second to import

    guess, true = as_pair(predicted, truth, "predictions", "true labels")
    return float(f1_score(true, guess, average="micro"))
