"""`jurygcn data list|info|fetch`: list, describe and download graphs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.cli.reporting import AsJson, shown
from jurygcn.data import DATASETS, cache_folder, find_dataset, load_dataset
from jurygcn.data.places import find_raw_folder, find_reddit

if TYPE_CHECKING:
    from torch_geometric.data import Data

app = typer.Typer(help="List, inspect and download graphs.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A dataset name, an .npz file, or a folder with nodes.csv and edges.csv.")]


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List the graphs that can be loaded by name."""
    rows = [
        {
            "name": d.name,
            **d.sizes._asdict(),
            "source": d.source,
            "ready": _is_ready(d.name),
            "about": d.about,
        }
        for d in DATASETS.values()
    ]
    if as_json:
        typer.echo(json.dumps({"folder": str(cache_folder()), "datasets": rows}))
        return
    table = Table("name", box=box.SIMPLE_HEAD)
    for column in ("nodes", "edges", "features", "classes"):
        table.add_column(column, justify="right")
    table.add_column("source")
    table.add_column("ready")
    for row in rows:
        counts = [f"{row[key]:,}" for key in ("nodes", "edges", "features", "classes")]
        table.add_row(str(row["name"]), *counts, str(row["source"]), "yes" if row["ready"] else "no")
    console = Console()
    console.print(table)
    console.print(
        shown(f"Data folder: {cache_folder()} (change it with JURYGCN_DATA)"), soft_wrap=True, highlight=False
    )


@app.command()
def info(name: Name, as_json: AsJson = False) -> None:
    """Load a graph, downloading it if necessary, and describe it."""
    facts = describe(load_dataset(name, normalize_features=False))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    if "class_names" in facts:
        facts["class_counts"] = dict(zip(facts.pop("class_names"), facts["class_counts"]))
    table = Table("property", "value", title=shown(facts["name"]))
    for key, value in facts.items():
        if key != "name":
            table.add_row(key.replace("_", " "), shown(_as_text(value)))
    Console().print(table)


@app.command()
def fetch(name: Name, as_json: AsJson = False) -> None:
    """Download a graph into the data folder, so that it loads without network."""
    from jurygcn.data import sizes

    dataset = find_dataset(name)
    started = time.perf_counter()
    size = sizes(load_dataset(dataset.name, normalize_features=False))
    facts = {
        "name": dataset.name,
        **size._asdict(),
        "folder": None if dataset.source == "embedded" else str(cache_folder()),
        "seconds": round(time.perf_counter() - started, 2),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    where = f"is in {facts['folder']}" if facts["folder"] else "comes with the library"
    Console().print(
        shown(
            f"{dataset.name} {where}: {size.nodes:,} nodes, {size.edges:,} edges, {size.features:,} features, "
            f"{size.classes} classes ({facts['seconds']} s)"
        ),
        soft_wrap=True,
        highlight=False,
    )


def describe(data: Data) -> dict[str, Any]:
    """Facts about a clean graph, as plain values."""
    import torch

    from jurygcn.data import labelled, sizes

    source, target = data.edge_index
    degrees = torch.bincount(source, minlength=data.x.shape[0])
    known = labelled(data)
    facts: dict[str, Any] = {
        "name": data.name,
        **sizes(data)._asdict(),
        "labelled_nodes": int(known.sum()),
        "isolated_nodes": int((degrees == 0).sum()),
        "mean_degree": round(float(degrees.float().mean()), 2),
        "max_degree": int(degrees.max()),
        "public_split": {
            part: data[f"{part}_mask"].reshape(data.x.shape[0], -1).sum(dim=0).tolist()
            for part in ("train", "val", "test")
            if f"{part}_mask" in data
        },
    }
    if data.num_classes:
        both = known[source] & known[target]
        same = (data.y[source] == data.y[target])[both]
        facts["class_counts"] = torch.bincount(data.y[known], minlength=data.num_classes).tolist()
        if data.get("class_names") is not None:
            facts["class_names"] = list(data.class_names)
        facts["homophily"] = round(float(same.float().mean()), 4) if same.numel() else None
    return facts


def _is_ready(name: str) -> bool:
    """Whether the graph loads without network."""
    folder = cache_folder()
    if DATASETS[name].source == "embedded":
        return True
    if name == "reddit":
        return find_reddit(folder) is not None
    return (folder / f"{name}.npz").is_file() or find_raw_folder(name, folder) is not None


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_as_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list) and len(value) > 2 and len(set(value)) == 1:
        return f"{_as_text(value[0])} in each of {len(value)}"
    if isinstance(value, list):
        return " / ".join(_as_text(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
