"""`jurygcn demo`: the whole library on Cora in one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jurygcn.cli.doctor import examine, plain_report
from jurygcn.cli.options import AsJson, Page
from jurygcn.cli.output import check_page
from jurygcn.cli.quantify import present
from jurygcn.cli.reporting import say
from jurygcn.errors import DataError

if TYPE_CHECKING:
    from torch_geometric.data import Data


def demo(page: Page = None, as_json: AsJson = False) -> None:
    """Download Cora, train a GCN on 100 random labels, and show which predictions to trust.

    Uses the embedded digits if no package index can be reached. The report of the doctor is the quick one; jurygcn
    doctor cora also retrains some jurors.
    """
    from jurygcn.cli.trained_model import DEFAULT_LABELS, Settings, start_session
    from jurygcn.cli.verdicts import judge

    check_page(page)
    session = start_session(*demo_graph(), Settings(labels=DEFAULT_LABELS))
    judgement = judge(session)
    checkup = examine(session, judgement.jury, retrain=0)
    present(judgement, "demo", page=page, as_json=as_json, checkup=checkup, report=plain_report(*checkup))


def demo_graph() -> tuple[Data, float]:
    """Cora, or digits if Cora cannot be downloaded, and the loading time in seconds."""
    from jurygcn.cli.trained_model import load_graph
    from jurygcn.data.package_index import IndexUnreachableError

    try:
        return load_graph("cora")
    except DataError as error:
        if not isinstance(error.__cause__, IndexUnreachableError):
            raise
        say(f"Note: {error.__cause__}, so the demo uses the embedded digits instead of Cora", style="yellow")
        return load_graph("digits")
