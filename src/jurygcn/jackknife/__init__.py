"""The jackknife: jurors, their ballots, and the verdict."""

from jurygcn.jackknife.jury import Jury
from jurygcn.jackknife.verdict import Verdict

__all__ = ["Jury", "Verdict"]
