"""`jurygcn label-studio`: the ML backend of a Label Studio project."""

from __future__ import annotations

from jurygcn.cli import options as given
from jurygcn.cli.label import AnswersFile, Batch, Classes, Host, LabelsFile, Port, Share, check_host, load_app, prepared
from jurygcn.cli.reporting import visible


def label_studio(
    data: given.Name,
    labels: LabelsFile = None,
    classes: Classes = None,
    answers: AnswersFile = None,
    batch: Batch = 20,
    port: Port = 9090,
    host: Host = "127.0.0.1",
    share: Share = False,
    seed: given.Seed = 0,
) -> None:
    """Serve predictions and the choice of the next tasks to Label Studio.

    Add the printed address as a model of the project, and let the project sample tasks by uncertainty. Import the tasks
    that jurygcn active next writes.
    """
    check_host(host, share)
    server = load_app("server")
    source, path = prepared(data, labels, classes, answers, seed)

    def announce(address: str) -> None:
        print(visible(f"Add this address as a model in Label Studio: {address}"), flush=True)
        print(visible(f"Answers are saved in {path}. Ctrl-C ends."), flush=True)

    settings = server.Settings(source, path, batch, 1, host, port)
    server.serve(settings, announce=announce, for_label_studio=True)
