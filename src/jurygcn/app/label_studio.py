"""Label Studio's ML backend protocol: health, setup, predictions with scores, training, webhooks.

Label Studio shows tasks with low scores first, if its project samples by uncertainty. So a score here is an order:
nodes that the jury chose have scores below 0.5, best first; others have (1 + the prediction's probability) / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jurygcn.app.rounds import Source
from jurygcn.app.routes import read, reply, with_worker
from jurygcn.app.session import Caller, Session
from jurygcn.app.store import Answer
from jurygcn.errors import DataError, excerpt
from jurygcn.io import label_studio

LARGEST_TASKS = 32 << 20  # bytes of a request with many tasks
SAVED = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
DELETED = "ANNOTATIONS_DELETED"


def backend(session: Session, source: Source, *, on_failure: Callable[[], None]) -> Starlette:
    """The application that Label Studio calls."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "UP", "model_class": "jurygcn", "model_version": model_version(session)})

    async def act(request: Request) -> Response:
        asked, name = await read(request), request.path_params["action"]
        if asked is None or name not in ACTIONS:
            return JSONResponse({"error": "expected an action of the ML backend protocol with a JSON object"}, 400)
        return reply(lambda: ACTIONS[name](session, asked))

    async def versions(_: Request) -> Response:
        return JSONResponse({"versions": [model_version(session)]})

    routes = [
        Route("/", health),
        Route("/health", health),
        Route("/versions", versions),
        Route("/{action}", act, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=with_worker(session, source, on_failure))


def model_version(session: Session) -> str:
    """The version of the model: that of the program and the number of labels it has learned."""
    return f"jurygcn-{version('jurygcn')}-{session.used}"


def _setup(session: Session, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_version": model_version(session)}


def predict(session: Session, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction for every task. Before the first model it has no choice, only a score."""
    tasks = asked.get("tasks")
    if not isinstance(tasks, list):
        raise DataError(f"expected a list of tasks, got {excerpt(tasks)}; check the address in Label Studio")
    table, desk = session.opened()
    rank = {entry.node: place for place, entry in enumerate(desk.ranking)}
    results = []
    for task in tasks:
        node = _node(session, task)
        probability = 1.0 if session.view is None else float(session.view.probabilities[node])
        score = rank[node] / (2 * len(rank)) if node in rank else (1 + probability) / 2
        words = [] if session.view is None else [table.classes[int(session.view.predictions[node])]]
        result = [label_studio.choice(word) for word in words]
        results.append({"result": result, "score": score, "model_version": model_version(session)})
    return {"results": results, "model_version": model_version(session)}


def train(session: Session, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Take the annotations of all tasks, as far as they are sent, and start a round."""
    for task in asked.get("annotations") or []:
        for annotation in _field(task, "annotations"):
            _save(session, {"task": task, "annotation": annotation})
    session.learn()
    return {"model_version": model_version(session)}


def listen(session: Session, event: Mapping[str, Any]) -> dict[str, Any]:
    """Take an event: an annotation was saved or deleted, or training was asked for."""
    action = event.get("action")
    if action in SAVED:
        _save(session, event)
    elif action == DELETED:
        for annotation in event.get("annotations") or []:
            _delete(session, f"{_field(annotation, 'id')}")
    elif action == "START_TRAINING":
        session.learn()
    return {"status": "ok"}


def _save(session: Session, event: Mapping[str, Any]) -> None:
    annotation, node = _field(event, "annotation"), _node(session, _field(event, "task"))
    table, _ = session.opened()
    about = Caller.of({"annotator": f"Label Studio {_person(annotation)}"})
    words = [w for r in _field(annotation, "result") if r.get("type") == "choices" for w in r["value"]["choices"]]
    if annotation.get("was_cancelled"):
        words = []
    if len(words) > 1 or any(word not in table.classes for word in words):
        raise DataError(f"expected one of the classes of the graph, got {excerpt(words)}; correct the annotation")
    label = table.classes.index(words[0]) if words else None
    kind, key = "unknown" if label is None else "label", str(annotation.get("id", ""))
    known = session.answers.by_node.get(node, {}).get(about.annotator)
    if known is None or (known.label, known.request) != (label, key):
        session.take(Answer(node, about.annotator, kind, label, request=key))


def _delete(session: Session, annotation: str) -> None:
    for answer in [a for a in session.answers if a.request == annotation]:
        session.drop(answer)


def _person(annotation: Mapping[str, Any]) -> str:
    who = annotation.get("completed_by")
    return str(who.get("id", "") if isinstance(who, dict) else who)[:40]


def _node(session: Session, task: Any) -> int:
    about = _field(task, "data")
    node = session.opened()[0].find(_field(about, "node"), about.get("name"))
    if node is None:
        raise DataError(
            f"expected a task whose node is in the graph, got {excerpt(about['node'])}; import the tasks that "
            "jurygcn active next or the labelling page wrote"
        )
    return node


def _field(record: Any, name: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise DataError(f"expected {name} in Label Studio's request, got {excerpt(record)}; check its version")
    return record[name]


ACTIONS: dict[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]] = {
    "setup": _setup,
    "predict": predict,
    "train": train,
    "webhook": listen,
}
