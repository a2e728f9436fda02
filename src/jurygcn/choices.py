"""The values that settings can take, and the usual ones, without the code behind them.

The command line lists these names in its help texts, and need not import torch for that. The code behind SOLVERS,
METHODS, STRATEGIES, COMPARED and EXPERIMENTS is registered where it is defined; a test compares the names.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAVE_OUT = ("newton", "influence", "retrain", "printed")
CURVATURES = ("ggn", "hessian", "printed")
VOTES = ("auto", "exact", "linearized")
SETS = ("jackknife+", "full")  # the methods of label sets
CHOSEN = ("random", "per class", "actively")  # how labels were chosen
PRESETS = ("cora", "citeseer", "pubmed")  # graphs for which the authors of some methods use special settings

# Each average over neighbourhoods costs a sparse product and memory. After so many steps the votes on most graphs are
# averages over whole components, and further steps change nothing.
MOST_STEPS = 100

RANKED_BY = ("expected_accuracy", "log_loss", "calibrated_log_loss", "accuracy")  # measures that rank models
LEFT_OUT_BY = ("jurors", "folds")  # how a selection leaves labels out
TAKEN_AWAY = ("labels", "edges", "nodes", "features")  # what influences are of

SOLVERS = ("direct", "dual", "cg", "minres", "neumann")
METHODS = (
    *("gcn", "reweight", "self-train", "self-train-validated"),
    *("gat", "sgnn", "gpn", "mc-dropout", "ensemble", "temperature", "cagcn", "gats", "energy", "laplace"),
)
STRATEGIES = (
    *(
        "jury-design",
        "jury-gain",
        "jury",
        "jury-printed",
        "jury-ambiguity",
        "age",
        "anrmab",
        "coreset",
        "coreset-greedy",
    ),
    *("centrality", "degree", "random", "sopt", "entropy", "margin", "density", "pagerank", "featprop"),
    *("grain-nn", "grain-ball", "diffusal", "graphpart", "graphpart-far", "lscale", "rim", "esp", "badge"),
)
# what is learned with the labels of active learning
LEARNERS = ("gcn", "advised", "self-trained", "weighted", "screened")
COMPARED = (
    *("jury", "split conformal", "cf-gnn"),
    *("mc-dropout", "ensemble", "temperature", "energy", "laplace", "gpn", "sgnn"),
)
USUALLY_COMPARED = tuple(name for name in COMPARED if name != "cf-gnn")  # it takes several times as long as the others
COMPARED_SPLITS, COMPARED_ALPHA = 10, 0.1
EXPERIMENTS = ("table1", "table2", "figure1", "figure2", "figure3")


@dataclass(frozen=True)
class Recipe:
    """Settings of a GCN and of its training: the paper's, with the usual dropout and weight decay.

    All defaults in the library that stand for these settings are read from this class.
    """

    hidden: int = 16
    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    layers: int = 2
