"""Engines that can be sent to another process."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jurygcn.engine.protocol import Engine
from jurygcn.models.copies import dress, independent_copy, undress

Arrays = dict[str, np.ndarray[Any, Any]]


class PortableEngine:
    """A picklable engine with its tensors as NumPy arrays; calling it returns the engine.

    joblib maps large arrays into every process, and Dask does not copy them. Sparse matrices and other cached values
    are not sent; the receiver computes them again.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = light = copy.copy(engine)
        light.data, light.model, light.parameters = copy.copy(light.data), independent_copy(light.model), {}
        for name in vars(engine):
            if isinstance(getattr(type(light), name, None), cached_property):
                delattr(light, name)
        self.fields = as_arrays(vars(light))
        self.graph = as_arrays(dict(light.data.items()))
        self.weights = as_arrays(dict(light.model.named_parameters()))
        for name in self.fields:
            delattr(light, name)
        for name in self.graph:
            del light.data[name]
        for name in self.weights:
            light.model.get_parameter(name).data = torch.empty(0)
        undress(light.model)

    def __call__(self) -> Engine:
        """The engine, in the receiving process."""
        engine = copy.copy(self.engine)
        engine.data, engine.model = copy.copy(engine.data), independent_copy(engine.model)
        for name, tensor in as_tensors(self.fields):
            setattr(engine, name, tensor)
        for name, tensor in as_tensors(self.graph):
            engine.data[name] = tensor
        for name, tensor in as_tensors(self.weights):
            engine.model.get_parameter(name).data = tensor
        dress(engine.model)
        engine.parameters = {n: p.detach() for n, p in engine.model.named_parameters() if p.requires_grad}
        return engine


def as_arrays(values: Mapping[str, Any]) -> Arrays:
    """The dense tensors among the values, as arrays that share their memory."""
    dense = {name: v for name, v in values.items() if isinstance(v, Tensor) and v.layout == torch.strided}
    return {name: v.detach().cpu().numpy() for name, v in dense.items() if v.dtype != torch.bfloat16}


def as_tensors(arrays: Arrays) -> Iterator[tuple[str, Tensor]]:
    """The same values as tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # they are only read
        yield from [(name, torch.from_numpy(array)) for name, array in arrays.items()]
