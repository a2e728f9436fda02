"""Disable torch's global modes inside the library.

The caller may use ``torch.autocast``, ``torch.inference_mode``, ``torch.no_grad`` or a default device. Our results
must not depend on them: autocast rounds to half precision, inference mode and no_grad disable gradients, and a default
device such as "meta" would apply to our own index tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

# The device types with autocast; torch warns about others.
AUTOCAST = ("cpu", "cuda", "xpu", "mps")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Full precision, ordinary tensors, gradients, new tensors on the CPU; also a decorator, ``@plain_torch()``."""
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in AUTOCAST:
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.empty(0).device.type != "cpu":
            modes.enter_context(torch.device("cpu"))
        yield
