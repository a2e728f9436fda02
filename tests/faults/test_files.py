"""Writing to a user's file: links, modes and other people's files stay, and nobody's change is lost."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from children import child, command, in_child, wait_for
from jurygcn import active
from jurygcn.active import Recipe
from jurygcn.active import labels as label_files
from jurygcn.data import synthetic
from jurygcn.errors import SettingError
from jurygcn.experiments.cells import Cells
from jurygcn.io import files
from jurygcn.io.files import changing, replacing, write_text


def aged(path: Path, text: str = "theirs") -> Path:
    path.write_text(text)
    os.utime(path, (time.time() - 2 * files.FRESH,) * 2)
    return path


NEIGHBOURS = (
    *(".labels.csv.swp", ".labels.csv.bak", ".labels.csv.jurygcn-", ".labels.csv.jurygcn-backup.csv"),
    *(".labels.csv.1a2b3c4d.csv", ".labels.csv.jurygcn-lock.csv", ".labels.csv~", f".other.csv.jurygcn-{'0' * 32}.csv"),
)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_files_of_others_are_left_alone(tmp_path: Path, name: str):
    theirs = aged(tmp_path / name)
    write_text(tmp_path / "labels.csv", "new")
    assert theirs.read_text() == "theirs"


def test_names_that_look_like_patterns(tmp_path: Path):
    """A file called `[a]*.csv` is that file, and its writer removes only its own leftovers."""
    theirs = aged(tmp_path / f".a.csv.jurygcn-{'0' * 32}.csv")
    ours = aged(tmp_path / f".[a]*.csv.jurygcn-{'0' * 32}.csv")
    write_text(tmp_path / "[a]*.csv", "new")
    assert theirs.exists()
    assert not ours.exists()


def test_a_name_as_long_as_the_system_allows(tmp_path: Path):
    path = tmp_path / ("é" * 125 + ".csv")
    write_text(path, "new")
    write_text(path, "newer")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "newer"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path: Path, there: bool):
    """Also through a second link, in another folder, and where the file is not there yet."""
    target = tmp_path / "shared" / "labels.csv"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    middle, link = tmp_path / "middle.csv", tmp_path / "mine" / "labels.csv"
    link.parent.mkdir()
    middle.symlink_to(Path("shared") / "labels.csv")
    link.symlink_to(Path("..") / "middle.csv")
    write_text(link, "new")
    assert link.is_symlink()
    assert middle.is_symlink()
    assert not target.is_symlink()
    assert target.read_text() == "new"


def test_links_in_a_circle_are_refused(tmp_path: Path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.symlink_to(two)
    two.symlink_to(one)
    with pytest.raises(OSError, match="symbolic links"):
        write_text(one, "new")
    assert one.is_symlink()
    assert two.is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o666])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int):
    path, seen = tmp_path / "labels.csv", []
    path.write_text("old")
    path.chmod(mode)
    with replacing(path) as temporary:
        temporary.write_text("new")
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert seen == [0o600], "nobody else reads it while it is written"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner(tmp_path: Path, monkeypatch):
    path = tmp_path / "labels.csv"
    path.write_text("old")
    os.chown(path, 1234, 2345)
    path.chmod(0o640)
    write_text(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    write_text(path, "newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "another group does not get what this one had"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_follows_the_umask(tmp_path: Path, mask: int, mode: int):
    def written() -> int:
        os.umask(mask)
        write_text(tmp_path / "new.csv", "new")
        return stat.S_IMODE((tmp_path / "new.csv").stat().st_mode)

    assert in_child(written) == mode


def test_threads_do_not_disturb_each_others_umask(tmp_path: Path, monkeypatch):
    """Reading the umask means to change it for a moment, in which another thread's file would be open to all."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask was changed"))
    write_text(tmp_path / "new.csv", "new")


def test_devices_and_pipes_are_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="device or pipe"):
            write_text(path, "new")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


# --- read, change, write --------------------------------------------------------------------------------------


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path):
    path = tmp_path / "numbers.txt"
    path.write_text("")
    link = tmp_path / "link.txt"
    link.symlink_to(path)

    def grow(name: Path, mark: str) -> None:
        for _ in range(20):
            with changing(name):
                text = name.read_text()
                time.sleep(0.001)
                write_text(name, text + mark)

    threads = [threading.Thread(target=grow, args=(link if k % 2 else path, str(k))) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text()) == sorted("012345" * 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.txt", "numbers.txt"], "no lock is left behind"


def test_a_killed_process_holds_nobody_up(tmp_path: Path):
    path, started = tmp_path / "labels.csv", tmp_path / "started"

    def hold() -> None:
        with changing(path):
            started.touch()
            time.sleep(300)

    with child(hold):
        wait_for(started.exists)
        with pytest.raises(SettingError, match="expected no other process"), changing(path, patience=0):
            pass
    with changing(path, patience=0):
        pass
    with pytest.raises(ZeroDivisionError), changing(tmp_path / "new" / "folder" / "labels.csv"):
        raise ZeroDivisionError
    assert [p.name for p in tmp_path.iterdir()] == ["started"]


def test_answers_of_six_people_at_once_are_all_kept(tmp_path: Path, monkeypatch):
    """Six processes add two answers each: twelve are in the file."""
    labels = tmp_path / "labels.csv"
    write = label_files.write_labels

    def slowly(*arguments: object) -> None:
        time.sleep(0.1)
        write(*arguments)

    monkeypatch.setattr(label_files, "write_labels", slowly)
    people = []
    for person in range(6):
        answers = tmp_path / f"{person}.csv"
        answers.write_text(f"node,label\n{2 * person},0\n{2 * person + 1},1\n")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = command("active", "add", "karate", "--answers", answers, "--labels", labels)[0]
            finally:
                os._exit(code)
        people.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in people] == [0] * 6
    assert sorted(pd.read_csv(labels)["node"]) == list(range(12))


def test_two_runs_do_not_share_a_history(tmp_path: Path):
    """The second is refused at once: it would overwrite the answers that the first was given."""
    path, asked = tmp_path / "history.json", tmp_path / "asked"
    graph = synthetic(num_nodes=90, num_edges=360, num_features=10, num_classes=3)
    settings = {"initial": 4, "budget": 8, "step": 4, "recipe": Recipe(hidden=4, epochs=5), "resume": path}

    def wait(nodes: object) -> list[int]:
        asked.touch()
        time.sleep(300)
        return []

    with child(lambda: active.run(graph, "margin", oracle=wait, **settings)):
        wait_for(asked.exists)
        with pytest.raises(SettingError, match="expected no other process"):
            active.run(graph, "margin", **settings)
    assert active.run(graph, "margin", **settings).stopped == "budget"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["asked", "history.json"]


def test_cells_of_several_processes_are_all_kept(tmp_path: Path):
    """Rows longer than one write of the system, by processes of which one was killed in the middle of a line."""
    kept = Cells("things", lambda _: "", folder=tmp_path)
    kept.measure([{"x": 0}], lambda x: {"row": "r" * 100_000})
    late = Cells("things", lambda _: "", folder=tmp_path)
    with (tmp_path / "things.jsonl").open("a") as file:
        file.write('{"cell": {"x": 99}, "st')
    late.measure([{"x": 1}], lambda x: {"row": "r"})
    pids = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                mine = [{"x": 10 * worker + k} for k in range(10, 20)]
                late.measure(mine, lambda x: {"row": str(x) * 50_000})
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    wanted = [{"x": x} for x in (0, 1, *range(10, 50))]
    assert len(Cells("things", lambda _: "", folder=tmp_path).rows(wanted)) == len(wanted)
    assert [p.name for p in tmp_path.iterdir()] == ["things.jsonl"]


def test_quantify_removes_only_its_own_counts(tmp_path: Path):
    theirs = tmp_path / "out" / ".batches" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    words = ("quantify", "karate", "--labels", 8, "--epochs", 5, "--hidden", 2, "--out", tmp_path / "out")
    assert command(*words)[0] == 0
    assert [p.name for p in theirs.parent.iterdir()] == ["notes.txt"]
