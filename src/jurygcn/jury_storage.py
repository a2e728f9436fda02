"""A jury on disk: a folder with one file of arrays and settings, sealed with a digest; nothing is pickled.

The file says what the jurors were found from. It is read back for the same model, graph, labels and settings, and every
number in it must be one that a jury can have.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.checks import all_finite
from jurygcn.data import check_graph, graph_of
from jurygcn.data.contents import PARTS
from jurygcn.data.heterogeneous import model_inputs
from jurygcn.errors import DataError, SettingError
from jurygcn.io.archives import read_sealed, write_sealed
from jurygcn.io.fingerprints import architecture, fingerprint, state
from jurygcn.leave_one_out.jurors import CompressedJurors, Jurors
from jurygcn.settings import LeaveOut, Run, Votes

if TYPE_CHECKING:
    from jurygcn.jury import Jury

FORMAT, FILE = 8, "jury.npz"
_NUMBER = (int, float)
# the settings of a jury that are kept, and the types they have in JSON
SETTINGS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("loss", "curvature", "decay", "leave_out", "votes", "memory", "chosen"), (str,)),
    **{"rank": (int, str), "max_jurors": (int,), "damping": _NUMBER},
    **{"weight_decay": (type(None), dict, *_NUMBER), "dropout_masks": (type(None), int), "corrected_by": (int,)},
    "iterations": (int,),
    **{"node_type": (type(None), str)},
}
FREE = {"memory", "chosen"}  # may be said anew when the jury is loaded
DRAWN = "drawn"  # the training nodes that were drawn at random and have jurors, if others were chosen actively
DECAY = "weight_decay"  # is compared as a vector: there are several ways to say the same
SOLVE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("leave_out", "solver", "reason", "why_slow"), (str,)),
    **{"residual": _NUMBER, "iterations": (int,), "discarded": _NUMBER, "dropout_masks": (int,)},
}
ROUNDING = 1e-4  # by which a leverage may lie outside of 0..1, and outputs of the same model may differ


def save_jury(jury: Jury, folder: Path) -> Path:
    """Write the fitted jury, in one piece: a folder holds the jury of before or this one."""
    values = vars(jury.jurors)
    tensors = {"train_nodes": jury.train_nodes, "outputs": jury.engine.train_outputs}
    if jury.drawn:
        tensors[DRAWN] = jury.train_nodes[jury.positions]
    tensors |= {key: value for key, value in values.items() if isinstance(value, Tensor)}
    about = {
        "format": FORMAT,
        "origin": {
            **_graph_origin(jury.data, jury.engine.forward),
            **_model_origin(jury),
            DECAY: fingerprint(jury.engine.decay),
        },
        "settings": _settings_of(jury),
        "solve": {key: value for key, value in values.items() if key in SOLVE},
    }
    write_sealed(folder / FILE, about, {key: value.detach().cpu().numpy() for key, value in tensors.items()})
    return folder


def load_jury(cls: type[Jury], folder: Path, model: nn.Module, data: Data | HeteroData, **overrides: Any) -> Jury:
    """Read a jury back, if it belongs to this model and graph and its numbers are those of a jury."""
    if not (folder / FILE).exists():
        raise DataError(f"expected a folder written by jury.save() at {folder}, got no {FILE} there; check the path")
    try:
        about, arrays = read_sealed(folder / FILE)
        if about.get("format") != FORMAT:
            raise ValueError(f"a jury of format {FORMAT} was expected, format {about.get('format')!r} came")
        settings, solve, origin = (about[part] for part in ("settings", "solve", "origin"))
        _check_entries(settings, SETTINGS, "settings")
        tensors: dict[str, Any] = {key: torch.from_numpy(array) for key, array in arrays.items()}
        train_nodes, outputs, drawn = tensors.pop("train_nodes"), tensors.pop("outputs"), tensors.pop(DRAWN, None)
        if any(nodes is not None and nodes.dtype != torch.int64 for nodes in (train_nodes, drawn)):
            raise ValueError("the training nodes are not node numbers")
        if drawn is not None and not bool(torch.isin(drawn, train_nodes).all()):
            raise ValueError("the drawn nodes are not training nodes")
        if not isinstance(origin, dict):
            raise ValueError("it does not say what the jury was made from")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _incomplete(folder, error) from error
    seen = check_graph(graph_of(data, overrides.get("node_type", settings["node_type"])))
    graph = _graph_origin(seen, overrides.get("forward"))
    _compare(origin, graph, folder)
    jury = cls(model, data, train_nodes, **{**_as_given(settings), DRAWN: drawn, **overrides})
    _compare(origin, {**graph, **_model_origin(jury)}, folder)
    _compare_settings(settings, origin, jury, folder)
    if jury.drawn != (drawn is not None) or (jury.drawn and not torch.equal(jury.train_nodes[jury.positions], drawn)):
        raise SettingError(f"{folder} holds jurors of other {DRAWN} nodes: leave {DRAWN} out, or fit a new jury.")
    if outputs.shape != jury.engine.train_outputs.shape or not torch.allclose(
        outputs.to(jury.engine.train_outputs), jury.engine.train_outputs, rtol=ROUNDING, atol=ROUNDING
    ):
        raise _foreign(folder, ["model outputs at the training nodes"])
    try:
        jury._jurors = _jurors_of(jury, tensors, solve)
    except (ValueError, TypeError, AttributeError) as error:
        raise _incomplete(folder, error) from error
    return jury


def _settings_of(jury: Jury) -> dict[str, Any]:
    decay = jury.engine.weight_decay
    return {
        "loss": jury.engine.loss.name,
        "weight_decay": None if jury.decay_assumed else dict(decay) if isinstance(decay, Mapping) else decay,
        "leave_out": jury.leave_out.how,
        "curvature": jury.leave_out.curvature,
        "decay": jury.leave_out.decay,
        "damping": float(jury.leave_out.damping),
        "votes": jury.votes.how,
        "rank": jury.votes.rank if isinstance(jury.votes.rank, str) else int(jury.votes.rank),
        "max_jurors": len(jury.positions),
        "dropout_masks": jury.leave_out.dropout_masks,
        "corrected_by": jury.leave_out.corrected_by,
        "iterations": jury.leave_out.iterations,
        "memory": jury.run.memory,
        "chosen": jury.chosen,
        "node_type": jury.node_type,
    }


def _as_given(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The saved settings as arguments of ``Jury``."""
    how, curvature, damping = saved["leave_out"], saved["curvature"], saved["damping"]
    return {
        **{name: saved[name] for name in ("loss", "weight_decay", "chosen", "node_type")},
        "leave_out": LeaveOut(
            *(how, curvature),
            damping=damping,
            **{name: saved[name] for name in ("decay", "max_jurors", "dropout_masks", "corrected_by", "iterations")},
        ),
        "votes": Votes(saved["votes"], saved["rank"]),
        "run": Run(memory=saved["memory"]),
    }


def _graph_origin(data: Data, forward: object) -> dict[str, str]:
    """Fingerprints of what a model sees of the graph; a forward function may look at all of its tensors."""
    seen = {words: data.get(name) for name, words in PARTS.items()}
    seen["edges"] = seen["edges"].long()
    further = model_inputs(data) if forward is None else [key for key in data.keys() if key != "y"]  # noqa: SIM118
    seen |= {f"`{key}`": data[key] for key in further if isinstance(data[key], Tensor) and key not in PARTS}
    return {"forward function": fingerprint(forward is not None), **{key: fingerprint(v) for key, v in seen.items()}}


def _model_origin(jury: Jury) -> dict[str, str]:
    """Fingerprints of the model and its labels."""
    engine = jury.engine
    return {
        "labels": fingerprint(engine.targets),
        "training nodes": fingerprint(engine.train_nodes),
        "kind of model": fingerprint(architecture(engine.model)),
        "model parameters": fingerprint(state(engine.model)),
    }


def _compare(origin: Mapping[str, Any], here: Mapping[str, str], folder: Path) -> None:
    other = [part for part, digest in here.items() if origin.get(part) != digest]
    if other:
        raise _foreign(folder, other)


def _compare_settings(saved: Mapping[str, Any], origin: Mapping[str, Any], jury: Jury, folder: Path) -> None:
    """Refuse other settings than the jurors were found with."""
    now = _settings_of(jury)
    other = [name for name in now if name not in {*FREE, DECAY} and now[name] != saved[name]]
    other += [DECAY] * (origin.get(DECAY) != fingerprint(jury.engine.decay))
    for name in other[:1]:
        raise SettingError(
            f"{folder} holds jurors that were found with another {name} than {now[name]!r}: leave {name} out, or fit a "
            "new jury."
        )


def _foreign(folder: Path, parts: list[str]) -> DataError:
    return DataError(
        f"{folder} was saved for other {', other '.join(parts)}: load it with the model, graph and labels it was made "
        "from, or fit a new jury."
    )


def _incomplete(folder: Path, error: Exception) -> DataError:
    return DataError(
        f"{folder} is not a complete saved jury ({type(error).__name__}: {error}): expected {FILE} as written by "
        "jury.save()."
    )


def _check_entries(found: Any, wanted: Mapping[str, tuple[type, ...]], what: str) -> None:
    """Refuse other entries than these: a folder says what the jury is, never where this process connects to."""
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        strange = sorted({*found} ^ {*wanted}) if isinstance(found, dict) else [type(found).__name__]
        raise ValueError(f"its {what} lack or should not have {strange[0]!r}")
    for name, kinds in wanted.items():
        if not isinstance(found[name], kinds) or (isinstance(found[name], bool) and bool not in kinds):
            raise ValueError(f"its {name} is {found[name]!r}")
        if isinstance(found[name], _NUMBER) and found[name] < 0:
            raise ValueError(f"its {name} is below 0")


def _jurors_of(jury: Jury, tensors: dict[str, Any], solve: Any) -> Jurors | CompressedJurors:
    """The jurors, if each array and number is one that the jurors of this jury can have."""
    n, P, C = len(jury.positions), jury.engine.num_parameters, jury.engine.num_outputs
    compressed = jury.votes.how == "linearized"
    kind = "influence" if jury.leave_out.printed else jury.leave_out.how
    _check_entries(solve, {key: SOLVE[key] for key in SOLVE if compressed or key != "discarded"}, "solve")
    if solve["leave_out"] != kind:
        raise ValueError(f"its jurors are of kind {solve['leave_out']}, not {kind}")
    if solve.get("discarded", 0) > 1:
        raise ValueError("its discarded share is above 1")
    shapes: dict[str, tuple[int, ...]] = {"steps": (n, P)}
    if compressed:
        k = len(tensors.get("directions", ()))
        shapes = {"directions": (k, P), "coefficients": (n, k), "own_outputs": (n, C)}
    if compressed or kind == "newton":
        shapes["leverage"] = (n,)
    if {key: tuple(tensor.shape) for key, tensor in tensors.items()} != shapes:
        raise ValueError(f"its arrays do not have the shapes of {n} jurors with {P} parameters")
    if not all(t.is_floating_point() and all_finite(t) for t in tensors.values()):
        raise ValueError("its arrays are not all finite numbers")
    leverage = tensors.get("leverage", torch.zeros(1))
    if float(leverage.min()) < -ROUNDING or float(leverage.max()) > 1 + ROUNDING:
        raise ValueError("its leverages are not between 0 and 1")
    return (CompressedJurors if compressed else Jurors)(**tensors, **solve)
