"""What cannot be judged, each with one sentence that says what to do."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import layout_of
from jurygcn.errors import ModelError
from jurygcn.models.calling import Forward


def check_layers(model: nn.Module) -> None:
    """Raise ModelError for batch normalisation without running statistics.

    It takes the mean over all nodes of a call in eval mode too, so a node's output depends on which others are asked.
    """
    for name, module in model.named_modules():
        missing = "running_mean" in module._buffers and module._buffers["running_mean"] is None
        if missing and not isinstance(module, _InstanceNorm):
            raise ModelError(
                f"expected batch normalisation with running statistics, got none in {name or type(module).__name__} "
                "(track_running_stats=False), so that its outputs depend on the batch in eval mode too; train with "
                "track_running_stats=True, or use LayerNorm"
            )


def check_rows(outputs: Tensor, data: Data) -> None:
    """Raise ModelError unless there is one row of outputs per node."""
    rows, nodes = len(outputs), int(data.num_nodes)
    if rows == nodes:
        return
    layout = layout_of(data)
    per = "node" if layout is None else f"{layout.node_type} node"
    batch, pairs = data.get("batch"), data.get("edge_label_index")
    graphs = {1} if batch is None else {1, int(batch.max()) + 1}
    edges = {int(data.edge_index.shape[1])} if pairs is None else {int(data.edge_index.shape[1]), int(pairs.shape[1])}
    remedy = "pass forward=lambda model, data: ... that returns the logits of all nodes"
    if rows in graphs:
        remedy = (
            "a jury judges nodes, and this looks like one row per graph: pass forward=lambda model, data: ... that "
            "returns the logits before the pooling"
        )
    elif rows in edges:
        remedy = (
            "a jury judges nodes, and this looks like one row per edge: make the edges nodes of a graph "
            "(torch_geometric.transforms.LineGraph) and train a model of nodes on it"
        )
    raise ModelError(f"expected one row of outputs per {per} ({nodes}), got {rows}; {remedy}")


def words_of_call(data: Data, forward: Forward | None) -> str:
    """How the model was called, in words."""
    if forward is not None:
        return "forward(model, data)"
    return "model(data.x, data.edge_index)" if layout_of(data) is None else "model(data.x_dict, data.edge_index_dict)"


def check_devices(model: nn.Module, data: Data) -> None:
    """Raise ModelError if model and graph are on different devices."""
    places = sorted({str(p.device) for p in model.parameters()} | {str(data.x.device)})
    if len(places) > 1:
        raise ModelError(
            f"expected model and graph on one device, got {' and '.join(places)}; use model.to(device) and "
            "data.to(device)"
        )
