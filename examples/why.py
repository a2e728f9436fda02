"""Why does the model predict this class? The edges of a handwritten digit, and what is predicted without each.

python examples/why.py                 # a table
python examples/why.py --picture FILE  # and a picture
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch_geometric.utils import degree

import jurygcn
from jurygcn.canvas import BLUE, COLOURS, canvas, save_figure
from jurygcn.data import paper_split, random_labels

ORANGE, SKY = COLOURS[1], COLOURS[5]


def main() -> None:
    """Print the influence of each edge of a doubted node, and draw it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="a PNG file to write")
    chosen = parser.parse_args()

    data = jurygcn.load_dataset("digits")
    split = paper_split(data, seed=0)
    train_nodes = random_labels(split.pool, 100, seed=0)
    model = jurygcn.GCN(data.num_features, 16, data.num_classes)
    jurygcn.train(model, data, train_nodes, epochs=300)
    jury = jurygcn.Jury(model, data, train_nodes, weight_decay=5e-4).fit()
    verdict = jury.verdict()

    neighbours = degree(data.edge_index[1], data.num_nodes)
    node = next(n for n in verdict.ranking().tolist() if neighbours[n] <= 11)
    predicted = int(verdict.predicted_class[node])
    edges = jury.influence_on(node, of="edges")
    touching = (edges["source"] == node) | (edges["target"] == node)
    edges = edges[touching].head(8).reset_index(drop=True)
    print(f"node {node}: predicted {predicted}, true class {int(data.y[node])}")
    print(edges.to_string(float_format="%.3f"))
    first = edges.iloc[0]
    after = jury.what_if(remove_edges=[(int(first["source"]), int(first["target"]))])
    print(f"without the first edge: {after.health.words}")
    if chosen.picture:
        draw(data, verdict.predicted_class, node, edges, chosen.picture)


def draw(data: Any, classes: torch.Tensor, node: int, edges: Any, path: Path) -> None:
    """The images around the node on the left, edges by influence; what each edge adds on the right."""
    figure, (graph, bars) = canvas(2, width=9, height=3.8)
    most = float(edges["support"].abs().max())
    names = []
    for place, (_, edge) in enumerate(edges.iterrows()):
        other = int(edge["source"] + edge["target"]) - node
        angle = math.pi / 2 - 2 * math.pi * place / len(edges)
        x, y = math.cos(angle), math.sin(angle)
        supports = edge["support"] > 0
        look = {"color": BLUE if supports else ORANGE, "linestyle": "-" if supports else (0, (2, 1))}
        graph.plot([0, x], [0, y], linewidth=1 + 7 * abs(edge["support"]) / most, zorder=1, **look)
        image(graph, data.x[other], x, y, f"{chr(65 + place)}: predicted {int(classes[other])}")
        names.append(chr(65 + place))
    image(graph, data.x[node], 0, 0, f"predicted {int(classes[node])}", edge="black")
    graph.set(xlim=(-1.5, 1.5), ylim=(-1.45, 1.45), aspect="equal")
    graph.axis("off")

    direct, through = edges["direct"].to_numpy(), edges["through_parameters"].to_numpy()
    places = range(len(edges))
    bars.barh([p - 0.18 for p in places], direct, height=0.34, color=SKY, label="by message passing")
    bars.barh([p + 0.18 for p in places], through, height=0.34, color="#333333", label="through training")
    bars.axvline(0, color="black", linewidth=0.8)
    bars.set(title=f"What each edge adds to the probability of {int(classes[node])}")
    bars.set_yticks(list(places), [f"edge to {name}" for name in names])
    bars.invert_yaxis()
    if (edges["support"] > 0).any():
        bars.plot([], [], color=BLUE, linewidth=4, label="edge supports the prediction")
    if (edges["support"] <= 0).any():
        bars.plot([], [], color=ORANGE, linestyle=(0, (2, 1)), linewidth=4, label="edge opposes it")
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, path)
    print(f"wrote {path.name}")


def image(axes: Any, pixels: torch.Tensor, x: float, y: float, words: str, *, edge: str = "#B4BCC6") -> None:
    """A digit at a place, with words on the side that no edge crosses: above in the upper half, below elsewhere."""
    half = 0.2
    inset = axes.inset_axes([x - half, y - half, 2 * half, 2 * half], transform=axes.transData)
    inset.imshow(pixels.reshape(8, 8), cmap="Greys")
    inset.set(xticks=[], yticks=[])
    inset.spines[:].set(visible=True, color=edge, linewidth=2)
    side = 1 if y > half else -1
    look = {"textcoords": "offset points", "ha": "center", "va": "bottom" if side > 0 else "top", "fontsize": 8}
    axes.annotate(words, (x, y + side * half), xytext=(0, 5 * side), bbox={"color": "white", "pad": 0.5}, **look)


if __name__ == "__main__":
    main()
