"""Metrics of predictions, uncertainty scores and label sets against the true labels."""

from jurygcn.evaluation.calibration import Reliability, brier, ece, nll, reliability
from jurygcn.evaluation.conformal import split_conformal
from jurygcn.evaluation.label_sets import (
    coverage_by,
    coverage_by_class,
    coverage_by_degree,
    coverage_by_distance,
    coverage_by_size,
    distance_to_labels,
    empty_fraction,
    mean_set_size,
    set_coverage,
    singleton_accuracy,
)
from jurygcn.evaluation.metrics import accuracy, micro_f1
from jurygcn.evaluation.out_of_distribution import LeftOut, draw_nodes, leave_out_classes, shift_features
from jurygcn.evaluation.ranking import (
    RiskCoverage,
    aurc,
    error_aupr,
    error_auroc,
    excess_aurc,
    risk_coverage,
    success_aupr,
)

__all__ = [
    "LeftOut",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "aurc",
    "brier",
    "coverage_by",
    "coverage_by_class",
    "coverage_by_degree",
    "coverage_by_distance",
    "coverage_by_size",
    "distance_to_labels",
    "draw_nodes",
    "ece",
    "empty_fraction",
    "error_aupr",
    "error_auroc",
    "excess_aurc",
    "leave_out_classes",
    "mean_set_size",
    "micro_f1",
    "nll",
    "reliability",
    "risk_coverage",
    "set_coverage",
    "shift_features",
    "singleton_accuracy",
    "split_conformal",
    "success_aupr",
]
