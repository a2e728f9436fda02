"""Digests of tensors, models, settings and files.

Every value is encoded as its kind, its length and its content, so different values never give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

SEAL = "digest"  # the entry of a document that holds the digest of all other entries

_PARTS = {  # the methods that return the parts of a sparse tensor, by the name of its layout
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def fingerprint(*values: Any) -> str:
    """A SHA-256 digest of the values, cut to 32 hexadecimal digits.

    Tensors and arrays count by dtype, shape and numbers, independent of device and memory layout; mappings count in
    sorted order; lists and tuples are equal. Other types raise TypeError.
    """
    digest = hashlib.sha256()
    for value in values:
        for piece in _pieces(value):
            digest.update(piece)
    return digest.hexdigest()[:32]


def checksum(*values: Any) -> bytes:
    """A fast 128-bit checksum of the values, for use within this process, not for files.

    Accidental collisions are negligible, but the hash is not cryptographic: collisions can be constructed.
    """
    found = xxhash.xxh3_128()
    for value in values:
        for piece in _pieces(value):
            found.update(piece)
    return bytes(found.digest())


def architecture(model: nn.Module) -> list[tuple[str, str]]:
    """The name and type of each of a model's modules."""
    return [(name, type(module).__qualname__) for name, module in model.named_modules()]


def state(model: nn.Module) -> dict[str, tuple[Tensor, bool]]:
    """All parameters and buffers of a model by name, each with its ``requires_grad``."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tensor, tensor.requires_grad) for name, tensor in tensors}


def sealed(content: Mapping[str, Any], *others: Any) -> dict[str, Any]:
    """The content as JSON reads it back, with a digest of it and of ``others``."""
    plain = json.loads(json.dumps(content))
    return {**plain, SEAL: _seal(plain, others)}


def unsealed(document: Any, *others: Any) -> dict[str, Any]:
    """The content of a sealed document; raise ValueError if it or ``others`` do not match the digest."""
    content = dict(document)
    if content.pop(SEAL, None) != _seal(content, others):
        raise ValueError("its content does not match its digest, so it was altered or damaged")
    return content


def _seal(content: Mapping[str, Any], others: Iterable[Any]) -> str:
    return fingerprint(json.dumps(content, sort_keys=True), *others)


def _pieces(value: Any) -> Iterator[bytes | memoryview]:
    """The value as bytes: kind, length, content."""
    torch = sys.modules.get("torch")  # not imported for values without tensors: that takes seconds
    if value is None:
        yield _head("none", 0)
    elif isinstance(value, bool | np.bool_):
        yield from _text("bool", str(bool(value)))
    elif isinstance(value, Integral):
        yield from _text("int", str(int(value)))
    elif isinstance(value, Real):
        yield from _text("float", float(value).hex())
    elif isinstance(value, str):
        yield from _text("str", value)
    elif isinstance(value, bytes):
        yield _head("bytes", len(value))
        yield value
    elif torch is not None and isinstance(value, torch.Tensor):
        yield from _of_tensor(value)
    elif isinstance(value, np.ndarray):
        yield from _of_array(value)
    elif isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: fingerprint(item[0]))
        yield from _sequence("mapping", [part for item in items for part in item])
    elif isinstance(value, Sequence):
        yield from _sequence("list", value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _text("dataclass", type(value).__qualname__)
        yield from _pieces({field.name: getattr(value, field.name) for field in fields(value)})
    elif torch is not None and isinstance(value, torch.dtype | torch.layout):
        yield from _text("torch", str(value))
    else:
        raise TypeError(f"expected plain values, tensors, mappings or dataclasses, got {type(value).__name__}")


def _head(kind: str, length: int) -> bytes:
    return f"{kind}:{length}:".encode()


def _text(kind: str, text: str) -> Iterator[bytes]:
    content = text.encode("utf-8", "surrogatepass")
    yield _head(kind, len(content))
    yield content


def _sequence(kind: str, values: Sequence[Any]) -> Iterator[bytes | memoryview]:
    yield _head(kind, len(values))
    for value in values:
        yield from _pieces(value)


def _of_tensor(tensor: Tensor) -> Iterator[bytes | memoryview]:
    tensor, layout = tensor.detach(), str(tensor.layout)
    if layout in _PARTS:
        whole = tensor.coalesce() if layout == "torch.sparse_coo" else tensor
        parts = [getattr(whole, name)() for name in _PARTS[layout]]
        yield from _pieces((tensor.layout, tuple(tensor.shape), *parts))
        return
    if layout != "torch.strided" or tensor.is_quantized:
        raise TypeError(f"expected a dense or sparse tensor, got {tensor.layout} of {tensor.dtype}")
    dense = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    yield from _numbers(name, tuple(dense.shape), dense.reshape(-1).view(sys.modules["torch"].uint8).numpy())


def _of_array(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    if array.dtype.hasobject:
        raise TypeError(f"expected an array of numbers or text, got dtype {array.dtype}")
    dtype = array.dtype.newbyteorder("<")
    little = np.ascontiguousarray(array, dtype=dtype).reshape(-1)
    name = dtype.name if dtype.kind in "biufc" else str(dtype)  # torch's name, where torch has the dtype
    yield from _numbers(name, array.shape, np.frombuffer(little.tobytes(), dtype=np.uint8))


def _numbers(dtype: str, shape: tuple[int, ...], content: NDArray[Any]) -> Iterator[bytes | memoryview]:
    yield from _text("array", f"{dtype} {tuple(shape)}")
    yield _head("numbers", content.nbytes)
    yield content.data
