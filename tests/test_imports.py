"""The rooms, in the order that data walks through them: a room imports only from rooms above it."""

import ast
from collections.abc import Collection
from pathlib import Path

import normae

ROOT = Path(normae.__file__).parent
FOUNDATION = ["version", "errors", "files", "presets", "progress", "tensors"]
ROOMS = [
    *FOUNDATION, "statistics", "data", "jets", "sources", "figures", "report", "lattice", "coordinates",
    "components", "conditional", "energy", "sampling", "networks", "training", "posterior", "inference", "config",
    "zoo", "runs", "dual", "temperature", "evaluation", "estimator", "scoring", "export", "search", "paper", "bench",
    "cli",
]  # fmt: skip


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "normae":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names if alias.name in ROOMS}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("normae.")}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def source_files() -> list[Path]:
    return [p for p in ROOT.rglob("*.py") if room_of(p) not in ("__init__", "__main__")]


def test_every_room_is_known():
    assert {room_of(p) for p in source_files()} <= set(ROOMS)


def test_imports_point_upwards():
    wrong = [
        f"{path.relative_to(ROOT)} imports {room}"
        for path in source_files()
        for room in imported_rooms(path)
        if ROOMS.index(room) > ROOMS.index(room_of(path))
    ]
    assert not wrong


def modules() -> dict[str, Path]:
    names = {p: ".".join(["normae", *p.relative_to(ROOT).with_suffix("").parts]) for p in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imported_modules(path: Path, known: Collection[str]) -> set[str]:
    """Modules of the package that a file imports, at its top or within a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (full & set(known)) or {node.module} & set(known)
    return found


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that are left when those without imports are taken away, again and again."""
    left = {name: wanted - {name} for name, wanted in graph.items()}
    while free := {name for name, wanted in left.items() if not wanted}:
        left = {name: wanted - free for name, wanted in left.items() if name not in free}
    return set(left)


def test_no_module_imports_itself_in_a_circle():
    """Imports within functions count. What only stands on a circle's way is named too."""
    known = modules()
    assert not circles({name: imported_modules(path, known) for name, path in known.items()})
    assert circles({"a": {"b"}, "b": {"a"}, "c": set()}) == {"a", "b"}


def test_the_check_sees_a_wrong_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from normae.cli import app\nimport normae.config\nfrom normae import zoo\n")
    assert imported_rooms(bad) == {"cli", "config", "zoo"}


def test_figures_do_not_import_torch():
    for path in (ROOT / "figures").glob("*.py"):
        assert "import torch" not in path.read_text()


def test_training_knows_no_path():
    for path in (ROOT / "training").glob("*.py"):
        assert "pathlib" not in path.read_text()


def test_no_pickle_and_no_global_generator():
    for path in source_files():
        text = path.read_text()
        for word in ("import pickle\n", "torch.load(", "torch.manual_seed", "allow_pickle=True"):
            assert word not in text, f"{path} uses {word}"
