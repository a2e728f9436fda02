"""Which models are accepted, and what is said about the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.checks import all_finite
from jurygcn.engine.elsewhere import OF_GRAPH
from jurygcn.engine.refusals import check_rows, words_of_call
from jurygcn.engine.sparse_sums import close, takes_sparse
from jurygcn.errors import ModelError

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Outputs in the model's precision and in ours, with other sums, count as equal up to this share of the largest.
SAME_SUMS = 1e-5

# Rows of a softmax sum to 1 up to rounding in the model's own precision.
ROUNDING = 1e-5


def check_outputs(engine: GenericEngine) -> int:
    """The number of outputs; raise ModelError unless there is one finite, deterministic row of logits per node."""
    engine.takes_sparse = takes_sparse(engine)
    first = _first_outputs(engine)
    check_rows(first, engine.data)
    probe = engine.theta.clone().requires_grad_(True)
    followed = engine.outputs(probe)
    # Some layers differ under autograd.
    if not (engine.takes_sparse or torch.equal(first, followed) or torch.equal(first, _again(engine))):
        raise ModelError(
            "expected equal outputs of two forward passes in eval mode, got different ones; "
            "remove random operations (for example F.dropout without training=self.training)"
        )
    if not all_finite(first):
        raise ModelError("expected finite model outputs, got NaN or infinity; check the features and the model")
    engine.check_width(first.shape[1])
    if engine.loss.name == "cross_entropy" and are_probabilities(first):
        raise ModelError(
            "expected logits, got probabilities: every row of the model's output sums to 1; return what enters the "
            "softmax, or pass forward=lambda model, data: model(data.x, data.edge_index).log()"
        )
    z = followed[engine.train_nodes]
    if not z.requires_grad or torch.autograd.grad(z.sum(), probe, allow_unused=True)[0] is None:
        raise ModelError(
            "expected outputs that depend on the model's parameters, got others; remove torch.no_grad() and "
            ".detach() from the forward pass, and use the parameters of the model that is passed to it"
        )
    return first.shape[1]


def _again(engine: GenericEngine) -> Tensor:
    with torch.no_grad():
        return engine.outputs(engine.theta)


def are_probabilities(outputs: Tensor) -> bool:
    """Whether the rows look like a softmax: not all equal, between 0 and 1, of sum 1. Shapes: (N, C)."""
    if outputs.shape[1] < 2 or not bool((outputs != outputs[0]).any()):
        return False
    inside = bool((outputs >= 0).all()) and bool((outputs <= 1 + ROUNDING).all())
    return inside and bool(((outputs.sum(dim=1) - 1).abs() <= ROUNDING).all())


def _first_outputs(engine: GenericEngine) -> Tensor:
    """The outputs of all nodes; raise ModelError if the model cannot be called.

    Those with a sparse adjacency are compared with the model's own; if they differ, it gets its list of edges.
    """
    try:
        if engine.takes_sparse:
            listed = engine.cast(engine.source_dtype).trained_outputs
            summed = _again(engine) if engine.dtype == engine.source_dtype else engine.trained_outputs
            engine.takes_sparse = listed.shape == summed.shape and close(summed, listed.to(summed), SAME_SUMS)
            if not engine.takes_sparse:
                engine._clear_cached(*OF_GRAPH)
        return engine.trained_outputs
    except ModelError:
        raise
    except Exception as error:  # the caller's model may raise anything
        how = words_of_call(engine.data, engine.forward)
        if _runs_in_own_precision(engine):
            own, wanted = (str(dtype).removeprefix("torch.") for dtype in (engine.source_dtype, engine.dtype))
            raise ModelError(
                f"expected {how} to run in {wanted}, which derivatives need, got a failure there and none in {own}; "
                "take tensors from the data that is passed in, register those of the model as buffers, and create "
                "others with dtype=data.x.dtype"
            ) from error
        reason = " ".join(str(error).split())
        raise ModelError(
            f"expected {how} to run, got {type(error).__name__}: {reason}; pass a model that takes features and "
            "edges and returns a row per node, or forward=lambda model, data: ... that calls it"
        ) from error


def _runs_in_own_precision(engine: GenericEngine) -> bool:
    """Whether the model fails only because a tensor that it uses is in another precision than its parameters."""
    if engine.source_dtype == engine.dtype:
        return False
    try:
        own = engine.cast(engine.source_dtype)
        with torch.no_grad():
            own.outputs(own.theta)
    except Exception:  # it fails in any precision
        return False
    return True
