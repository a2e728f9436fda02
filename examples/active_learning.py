"""Choose nodes to label: compare two strategies on a synthetic graph, then print a batch of tasks. Runs in seconds."""

from __future__ import annotations

from jurygcn import active
from jurygcn.data import synthetic


def main() -> None:
    """Compare the accuracy of two strategies with the same number of labels."""
    data = synthetic(num_nodes=800, num_edges=3200, num_features=24, num_classes=5)
    for strategy in ("random", "jury-design"):
        history = active.run(data, strategy, initial=5, budget=40, step=10, seed=0)
        curve = "  ".join(f"{step.labels}: {step.accuracy:.1%}" for step in history.steps)
        print(f"{strategy:>12}  {curve}")

    labels = dict(zip(history.labelled.tolist(), history.labels.tolist()))
    for task in active.next_tasks(data, labels, batch=3):
        print(f"label node {task.node}: {task.reason}; neighbours: {task.neighbours}")


if __name__ == "__main__":
    main()
