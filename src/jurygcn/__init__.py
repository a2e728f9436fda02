"""Jackknife uncertainty for graph neural networks: which predictions to trust, which node to label next.

Names are imported at first use, so that `jurygcn --help` and Ctrl-C do not wait for torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers recognise this name; importing `typing` would be slow
if TYPE_CHECKING:
    from typing import Any

    from jurygcn import active, bandit, learning
    from jurygcn.data import load_dataset
    from jurygcn.errors import JuryError
    from jurygcn.jury import Jury
    from jurygcn.leave_one_out.retraining import Retraining
    from jurygcn.models import GCN, Recipe, train
    from jurygcn.selection import select
    from jurygcn.settings import LeaveOut, Run, Votes
    from jurygcn.verdict import Verdict

    __version__: str

_HOMES = {
    "GCN": "models",
    "Jury": "jury",
    "JuryError": "errors",
    "LeaveOut": "settings",
    "Recipe": "models",
    "Retraining": "leave_one_out.retraining",
    "Run": "settings",
    "Verdict": "verdict",
    "Votes": "settings",
    "load_dataset": "data",
    "select": "selection",
    "train": "models",
}
__all__ = [
    "GCN",
    "Jury",
    "JuryError",
    "LeaveOut",
    "Recipe",
    "Retraining",
    "Run",
    "Verdict",
    "Votes",
    "__version__",
    "active",
    "bandit",
    "learning",
    "load_dataset",
    "select",
    "train",
]


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package."""
    from importlib import import_module

    if name == "__version__":
        value = import_module("importlib.metadata").version("jurygcn")
    elif name in _HOMES:
        value = getattr(import_module(f"jurygcn.{_HOMES[name]}"), name)
    else:
        try:
            value = import_module(f"jurygcn.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"jurygcn.{name}":  # a package that the module needs
                raise
            raise AttributeError(f"module 'jurygcn' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
