"""The life of the server process."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from jurygcn.app.guard import LARGEST_BODY, Asgi, Guard
from jurygcn.app.label_studio import LARGEST_TASKS, backend
from jurygcn.app.rounds import Source
from jurygcn.app.routes import application, page_of, policy_of
from jurygcn.app.session import Session
from jurygcn.app.store import Answers
from jurygcn.errors import DataError, SettingError
from jurygcn.io.files import changing

GRACE = 3  # seconds for open requests when the server ends
MOST_REQUESTS = 512  # at once


@dataclass(frozen=True)
class Settings:
    """Settings of the application.

    Attributes:
        source: what to label.
        answers: the file of answers.
        batch, overlap: see ``Session``.
        host, port: where to listen; port 0 is a free one.
        annotator: the name that the page suggests.
    """

    source: Source
    answers: Path
    batch: int = 20
    overlap: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    annotator: str = ""


def serve(settings: Settings, *, announce: Callable[[str], Any], for_label_studio: bool = False) -> None:
    """Serve the page, or Label Studio, until the process is told to end.

    ``announce`` gets the address when it can be opened.
    """
    with changing(settings.answers, patience=0):  # one server for one file
        new, answers = not settings.answers.exists(), Answers(settings.answers)
        try:
            source = settings.source
            if source.classes is None and "classes" in answers.facts:
                source = replace(source, classes=tuple(answers.facts["classes"]))
            session = Session(answers, settings.batch, settings.overlap)
            page = page_of(annotator=settings.annotator, overlap=settings.overlap)
            run(
                (lambda end: backend(session, source, on_failure=end))
                if for_label_studio
                else (lambda end: application(session, source, page, on_failure=end)),
                host=settings.host,
                port=settings.port,
                policy=policy_of(page),
                announce=announce,
                browsers=not for_label_studio,
                largest=LARGEST_TASKS if for_label_studio else LARGEST_BODY,
            )
        finally:
            answers.close()
        if new and session.table is None:  # the graph could not be loaded, so nobody has answered
            settings.answers.unlink()
    if session.failed:
        raise DataError(session.failed)


def run(
    make: Callable[[Callable[[], None]], Asgi],
    *,
    host: str,
    port: int,
    policy: str,
    announce: Callable[[str], Any],
    browsers: bool = True,
    largest: int = LARGEST_BODY,
) -> None:
    """Serve an application behind a ``Guard``. ``make`` gets a function that ends the server."""
    token = secrets.token_urlsafe(24)
    with listening(host, port) as listener:
        found = listener.getsockname()[1]
        server: uvicorn.Server

        def end() -> None:
            server.should_exit = True

        guard = Guard(make(end), token, host, found, policy, browsers, largest)
        config = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,  # addresses hold the token
            server_header=False,
            ws="none",
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=32 << 10,
        )
        server = uvicorn.Server(config)
        announce(f"http://{f'[{host}]' if ':' in host else host}:{found}/{token}/")
        server.run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; raise SettingError if the port is taken or the host is not this machine."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise SettingError(
            f"expected to listen on {host}, port {port}, got {error.strerror or error}; choose another --port or --host"
        ) from error
