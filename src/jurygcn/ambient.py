"""Torch's ambient modes, set aside where a caller's code enters ours.

The caller may stand inside ``torch.autocast``, ``torch.inference_mode``, ``torch.no_grad`` or a default device. Our
numbers must not depend on that: autocast rounds to half precision, inference mode and no_grad take the gradients away,
and a default device such as "meta" would take in our own index tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

# The kinds of device for which torch has autocast; asking for a kind that is not there would warn.
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
