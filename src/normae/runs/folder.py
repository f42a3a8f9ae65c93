"""The run folder: what it holds, its lock, and files that appear whole or not at all.

config.toml            the complete configuration
model.safetensors      weights, coordinates, base, chains; temperature and log Z in the header
data.npz               the training table, where it came as an array or as a data frame
checkpoint/            what resuming needs, and the state before it, should that be damaged
metrics.jsonl          one line a window of iterations
metrics.json           final figures, each {"value": v, "error": e}
provenance.json        versions, commit, seed, data hash, device, wall time
figures/               each as SVG and PDF, with its numbers as CSV
report.html
pretrained/            the autoencoder that the NAE phase began with: a run folder of its own
start.safetensors      of an autoencoder: the weights as a training holds them, for an NAE that starts there
background.npz         scores of the held-out background, once something was scored
scores.npz             jets: energies of the test sample, for every weight draw
generated.npz          jets: observables of generated and of true jets
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeGuard

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save
from torch import Tensor, nn

from normae.config import Run, read
from normae.coordinates import Coordinates
from normae.errors import InputError, refuse
from normae.files import atomic_path, clear, digest, held
from normae.sources import Events, load_events

log = logging.getLogger(__name__)
WEIGHTS_FORMAT = "normae-2"
DATA = "data.npz"  # the file of a table that came as an array or as a data frame
CHECKSUM = re.compile(rb'\\"checksum\\": \\"([0-9a-f]{64})\\"')  # in the header of a file, JSON in a text of JSON
COORDINATES, BASE, HALF = "coordinates.", "base.", "half."  # prefix of the tensors of the coordinates there
CHAINS = "chains"  # name of the persistent chains there, with shape (M, *event)
MOST_LINES = 20_000  # of metrics.jsonl that are held; a report of a million lines would take gigabytes
PROVENANCE = (
    "normae", "commit", "python", "torch", "seed", "device", "backend", "rollbacks", "wall_seconds", "data_sha256",
)  # fmt: skip
"""What every provenance.json holds at least, with the hash of the data, which no one could tell from others without."""


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config, self.model = self.path / "config.toml", self.path / "model.safetensors"
        self.checkpoint = self.path / "checkpoint" / "state.safetensors"
        self.earlier = self.path / "checkpoint" / "earlier.safetensors"
        self.history, self.metrics = self.path / "metrics.jsonl", self.path / "metrics.json"
        self.provenance, self.background = self.path / "provenance.json", self.path / "background.npz"
        self.figures, self.report = self.path / "figures", self.path / "report.html"
        self.start, self.pretrained = self.path / "start.safetensors", self.path / "pretrained"
        self.scores, self.generated = self.path / "scores.npz", self.path / "generated.npz"

    @classmethod
    def existing(cls, path: str | Path) -> "RunFolder":
        """The folder at `path`, which must be a run folder."""
        run = cls(path)
        refuse(run.path.is_file(), f"{path}: a file, not a folder; expected a run folder")
        refuse(not run.path.is_dir(), f"{path}: no such run folder; make one with `normae train DATA -o {path}`")
        names = "" if run.config.is_file() else ", ".join(member.path.name for member in run.members())
        refuse(names, f"{path}: holds several runs, name one of them: {names}")
        refuse(not run.config.is_file(), f"{path}: not a run folder, it has no config.toml")
        return run

    @property
    def checkpoints(self) -> list[Path]:
        """Those that are there, the newest first."""
        return [path for path in (self.checkpoint, self.earlier) if path.exists()]

    def finished(self) -> bool:
        """Whether the model is there, and as it was written for this configuration, with its provenance."""
        if self.model.exists():
            try:
                return bool(self.read_provenance() and read_tensors(self.model))
            except InputError as error:
                log.warning("%s. It is made again", error)
        return False

    def members(self) -> list["RunFolder"]:
        """The runs of a folder that was made with several seeds."""
        named = [p for p in self.path.glob("seed-*") if p.name.removeprefix("seed-").isdigit()]
        found = [p for p in named if (p / "config.toml").is_file()]
        return [RunFolder(p) for p in sorted(found, key=lambda p: int(p.name.removeprefix("seed-")))]

    def read_metrics(self) -> dict[str, dict[str, float]]:
        """The final figures, or an error that says how to make them."""
        refuse(not self.metrics.is_file(), f"{self.path}: not evaluated yet; run `normae evaluate {self.path}` first")
        content = read_json(self.metrics)
        pairs = content.values() if isinstance(content, dict) else [None]
        if not all(is_pair(m) and all(map(is_number, m.values())) for m in pairs):
            raise InputError(f"{self.metrics}: expected names with value and error; run `normae evaluate {self.path}`")
        return dict(content)

    def read_provenance(self) -> dict[str, Any]:
        """What provenance.json says; one clear sentence if it is not one of ours."""
        content = read_json(self.provenance)
        if not isinstance(content, dict) or not set(PROVENANCE) <= set(content):
            raise InputError(f"{self.provenance}: expected the keys {', '.join(PROVENANCE)}")
        return content

    def log_z_failure(self) -> str | None:
        """Why the annealing found no log Z, where it did not."""
        facts = read_json(self.provenance) if self.provenance.is_file() else None  # several seeds have none together
        found = facts.get("log_z") if isinstance(facts, dict) else None
        return found.get("failed") if isinstance(found, dict) else None

    def events(self, config: Run) -> Events:
        """Those of the finished run; rows, and jets unless others are given, must be those that it was trained with."""
        lost = config.data.file == DATA and not Path(DATA).is_file()  # one in the folder has a whole path
        refuse(lost, f"{self.path}: lacks its rows; an estimator saves up to 100,000, normae.train(x, out=RUN) all")
        own = config.data.path == read(self.config).data.path
        return load_events(config.data, config.seed, known=self.read_provenance() | {"own": own})

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl, in one write."""
        with self.history.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())

    @property
    def length(self) -> int:
        """Bytes of metrics.jsonl."""
        return self.history.stat().st_size if self.history.exists() else 0

    def cut_back(self, length: int) -> None:
        """Forget the lines of metrics.jsonl after so many bytes."""
        if self.length > length:
            os.truncate(self.history, length)

    def read_history(self, most: int | None = MOST_LINES) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; of more than `most` every k-th, with those of rollbacks and the last."""
        if not self.history.is_file():
            return []
        lines: list[dict[str, Any]] = []
        with self.history.open("rb") as file:
            count = sum(1 for _ in file)
            every = 1 if most is None else max(1, -(-count // most))
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if number % every and number != count and b'"rollback"' not in line:
                    continue
                content = None
                with suppress(ValueError, RecursionError):
                    content = json.loads(line)
                if not isinstance(content, dict) or not {"phase", "iteration"} <= set(content):
                    raise InputError(f"{self.history}: line {number} is not a line of metrics")
                lines.append(content)
        return lines


def is_pair(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is a value with its error, whatever they are."""
    return isinstance(content, dict) and set(content) == {"value", "error"}


def is_number(content: Any) -> bool:
    """Whether JSON gave a number that a float can hold, infinities and NaN included."""
    return isinstance(content, float) or (type(content) is int and abs(content) < 2**63)


def read_json(path: Path) -> Any:
    """The content of a JSON file, or one clear sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, or of several seeds, for this process, without what killed jobs had begun in it."""
    with held(folder / ".lock", folder):
        runs = [folder, *folder.glob("seed-*")]
        clear(*(run / inside for run in runs for inside in ("", "checkpoint", "figures", "pretrained")))
        yield


def _checksum(content: bytes) -> tuple[str, int, int]:
    """SHA-256 of a file of tensors with zeros where its checksum stands, which is from byte a to b."""
    found = CHECKSUM.search(content, 8, 8 + int.from_bytes(content[:8], "little"))
    a, b = found.span(1) if found else (0, 0)
    view = memoryview(content)
    summed = hashlib.sha256(view[:a])
    summed.update(b"0" * (b - a))
    summed.update(view[b:])
    return summed.hexdigest(), a, b


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], earlier: Path | None = None
) -> None:
    """Tensors with a header of JSON values, bound by hashes to their content and to config.toml beside it.

    The header is one entry of the metadata: with several, their order on disk would be random. What had the name
    before becomes `earlier`.
    """
    bound = {**header, "checksum": "0" * 64, "config": digest(path.with_name("config.toml"))}
    metadata = {WEIGHTS_FORMAT: json.dumps(bound, sort_keys=True)}
    content = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, metadata)
    checksum, a, b = _checksum(content)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content[:a] + checksum.encode() + content[b:])
        if earlier is not None and path.exists():
            os.replace(path, earlier)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header that `write_tensors` wrote; one clear sentence for any other file."""
    return read_stored(path)[:2]


def model_digest(path: Path) -> str:
    """Stands for a file of tensors, wherever its run is and whatever paths it names."""
    return read_stored(path)[2]


def read_stored(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """As `read_tensors`, with the digest that stands for both."""
    refuse(not path.is_file(), f"{path}: no such file; the run is not finished, go on with `normae train ... --resume`")
    try:
        content = path.read_bytes()
        tensors = dict(sorted(load_tensors(content).items()))  # in an order of its own: draws depend on it
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path}: truncated or not a safetensors file ({error})") from None
    if WEIGHTS_FORMAT not in metadata:
        hint = "; bench/seal.py brings files of normae-1 up to date" if "normae-1" in metadata else ""
        raise InputError(f"{path}: a safetensors file, but not one of normae ({WEIGHTS_FORMAT}){hint}")
    header: Any = None
    with suppress(ValueError, RecursionError):
        header = json.loads(metadata[WEIGHTS_FORMAT])
    refuse(not isinstance(header, dict), f"{path}: the header cannot be read")
    if header.pop("checksum", None) != _checksum(content)[0]:
        raise InputError(f"{path}: damaged, its checksum is not that of what it holds; take it from a copy")
    config, bound = path.with_name("config.toml"), header.pop("config", None)
    if bound is not None and config.is_file() and digest(config) != bound:
        raise InputError(f"{config}: not the one that {path.name} was made with; put that back, or train again")
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    found.update(memoryview(content)[8 + length :])
    return tensors, header, found.hexdigest()


def stored(coordinates: Coordinates, base: nn.Module | None = None) -> dict[str, Tensor]:
    """The tensors of coordinates by the names that they have in model.safetensors."""
    found = {f"{COORDINATES}{name}": tensor for name, tensor in coordinates.tensors().items()}
    return found | ({} if base is None else {f"{BASE}{name}": tensor for name, tensor in base.named_buffers()})
