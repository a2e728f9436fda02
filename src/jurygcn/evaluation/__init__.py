"""How good predictions, uncertainty scores and label sets are, given the truth."""

from jurygcn.evaluation.metrics import accuracy, error_auroc, mean_set_size, micro_f1, set_coverage

__all__ = ["accuracy", "error_auroc", "mean_set_size", "micro_f1", "set_coverage"]
