"""The generator: what it selects, that the seed alone decides, and that a stopped run takes up where it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from normae import jets
from normae.cli.jets import app
from normae.errors import InputError
from normae.jets import generator
from normae.jets.generator import Batch, Process, holds
from watched import watched

pytest.importorskip("pythia8mc")


def job(kind: str = "qcd", count: int = 6, seed: int = 4, block: int = 3, **options: Any) -> jets.Job:
    return jets.Job(Process(kind, **options), count, seed, block)


@pytest.fixture(scope="module")
def qcd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "qcd.h5"
    jets.generate(job(), path)
    return path


def same(a: jets.Jets, b: jets.Jets) -> None:
    for name in ("labels", "offsets", "pt", "eta", "phi"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(("kind", "label"), [("qcd", 0), ("top", 1)])
def test_selection(kind: str, label: int) -> None:
    made = generator.generate_block(job(kind), 0, 12)
    assert (made.labels == label).all()
    for i in range(12):
        one = made[i : i + 1]
        p = [np.sum(one.pt * f) for f in (np.cos(one.phi), np.sin(one.phi), np.sinh(one.eta))]
        assert 549.9 < np.hypot(p[0], p[1]) < 650.1
        assert abs(np.arcsinh(p[2] / np.hypot(p[0], p[1]))) < 2
        assert (np.diff(one.pt) <= 0).all()
    assert (made.counts <= 200).all()
    mass = jets.observables(made)["mass"]
    assert mass.mean() < 150 if kind == "qcd" else mass.mean() > 140


@pytest.mark.parametrize(
    ("pt", "eta", "kept"),
    [(600, 1.95, True), (600, -1.95, True), (600, 2.15, False), (600, -2.15, False), (530, 0.5, False),
     (570, 0.5, True), (630, 0.5, True), (670, 0.5, False)],
)  # fmt: skip
def test_jets_are_kept_by_pt_and_eta(pt: float, eta: float, kept: bool) -> None:
    """One photon: 550 to 650 GeV, up to |eta| = 2. Its tower is 0.1 wide, its resolution some GeV."""
    p = np.array([[pt, 0.0, pt * np.sinh(eta), pt * np.cosh(eta)]])
    one, none = np.array([22]), np.zeros((1, 2), dtype=np.int64)
    batch = Batch(np.array([0, 1]), one, np.zeros(1), np.ones(1, dtype=bool), none, p, np.zeros((1, 3)))
    found = generator.find_jet(batch, 0, "qcd", np.random.default_rng(0))
    assert (found is not None) == kept


@pytest.mark.parametrize("kind", ["qcd", "top"])
def test_the_preselection_loses_no_jet_that_is_kept(kind: str) -> None:
    """A detector that adds or loses 7 % leaves 550 GeV within the window, and so does one of 650."""
    low, high = Process(kind).window
    assert low < 550 * 0.93
    assert high > 650 * 1.07
    hook = generator._preselection(__import__("pythia8mc"), (low, high))

    class OneJet:
        def __init__(self, pt: float) -> None:
            self.pt = pt

        def analyze(self, event: Any) -> None:
            assert event is None

        def sizeJet(self) -> int:
            return 1

        def pT(self, _: int) -> float:
            return self.pt

    for pt, veto in ((low - 1, True), (low + 1, False), (high - 1, False), (high + 1, True)):
        hook.jets = OneJet(pt)
        assert hook.doVetoPartonLevel(None) == veto


def test_workers_do_not_matter(qcd: Path, tmp_path: Path) -> None:
    jets.generate(job(), tmp_path / "two.h5", workers=2)
    same(jets.read(tmp_path / "two.h5"), jets.read(qcd))


def test_first_jets_do_not_depend_on_how_many_follow(qcd: Path, tmp_path: Path) -> None:
    jets.generate(job(count=4), tmp_path / "few.h5")
    same(jets.read(tmp_path / "few.h5"), jets.read(qcd, 4))


def test_seeds_and_blocks_differ(qcd: Path) -> None:
    read = jets.read(qcd)
    other = generator.generate_block(job(seed=5), 0, 1)
    firsts = [read.pt[0], read.pt[read.offsets[3]], other.pt[0]]
    assert len(set(firsts)) == 3


def test_origin_is_recorded(qcd: Path) -> None:
    found = jets.info(qcd).attributes
    assert (found["kind"], found["seed"], bool(found["mpi"])) == ("qcd", 4, False)
    assert not qcd.with_name("qcd.h5.parts").exists()


def test_restart(qcd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "stopped.h5", generator.generate_block
    calls: list[int] = []

    def stops(task: jets.Job, block: int, size: int) -> jets.Jets:
        calls.append(block)
        if calls == [0, 1]:
            raise KeyboardInterrupt
        return real(task, block, size)

    monkeypatch.setattr(generator, "generate_block", stops)
    with pytest.raises(KeyboardInterrupt):
        jets.generate(job(), path)
    assert not path.exists()
    assert (tmp_path / "stopped.h5.parts" / "block-00000-3.h5").exists()
    with pytest.raises(InputError, match=r"another run \(seed differ\)"):
        jets.generate(job(seed=9), path)
    told: list[tuple[int, int]] = []
    with watched(lambda done, total: told.append((done, total))):
        jets.generate(job(), path)
    assert calls == [0, 1, 1]
    assert told[:2] == [(3, 6), (6, 6)]
    same(jets.read(path), jets.read(qcd))
    assert [p.name for p in tmp_path.iterdir()] == ["stopped.h5"]


def begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of three blocks that stopped with its last; they come from no Pythia."""

    def fake(task: jets.Job, block: int, size: int) -> jets.Jets:
        return jets.from_lists([[(600 + block, 0, 0), (50, 0.1, 0.2)]] * size)

    def stops(task: jets.Job, block: int, size: int) -> jets.Jets:
        if block == 2:
            raise KeyboardInterrupt
        return fake(task, block, size)

    monkeypatch.setattr(generator, "generate_block", stops)
    with pytest.raises(KeyboardInterrupt):
        jets.generate(job(count=9), path)
    monkeypatch.setattr(generator, "generate_block", fake)
    return path.with_name(path.name + ".parts")


@pytest.mark.parametrize("damage", ["a bit", "cut to nothing", "no checksum", "empty checksum", "gone"])
def test_a_damaged_block_is_made_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.h5"
    block = begun(path, monkeypatch) / "block-00000-3.h5"
    content, said = block.read_bytes(), block.with_suffix(".sha256")
    place = content.index(np.float32([600, 50]).tobytes())
    match damage:
        case "a bit":
            block.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        case "cut to nothing":
            block.write_bytes(b"")
        case "no checksum":
            said.unlink()
        case "empty checksum":
            said.write_bytes(b"")
        case "gone":
            block.unlink()
    told: list[tuple[int, int]] = []
    with watched(lambda done, total: told.append((done, total))):
        jets.generate(job(count=9), path)
    assert told[0] == (3, 9), "the other block is kept"
    found = jets.read(path)
    np.testing.assert_array_equal(found.pt[::2], np.repeat([600, 601, 602], 3))
    assert (found.pt[1::2] == 50).all()
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_a_block_that_is_damaged_at_once_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "a.h5", monkeypatch)
    real = generator.write

    def damaged(part: Path, *rest: Any, **more: Any) -> None:
        real(part, *rest, **more)
        (part.with_name("block-00000-3.h5")).write_bytes(b"")

    monkeypatch.setattr(generator, "write", damaged)
    with pytest.raises(InputError, match=r"block-00000-3\.h5: damaged after it was written; the same command"):
        jets.generate(job(count=9), tmp_path / "a.h5")
    monkeypatch.setattr(generator, "write", real)
    jets.generate(job(count=9), tmp_path / "a.h5")
    assert jets.info(tmp_path / "a.h5").attributes["normae"] == generator.__version__


def test_locks_of_killed_jobs_go_with_the_blocks_and_the_recipe_goes_last(tmp_path, monkeypatch) -> None:
    """A job killed while it clears up leaves what the next one still knows as its own."""
    path, real = tmp_path / "a.h5", generator.clear
    folder = begun(path, monkeypatch)
    for name in (".block-00000-3.h5.lock", ".block-00002-3.h5.lock"):
        (folder / name).touch()

    def killed(place: Path, pattern: str = "") -> None:
        if "recipe" in pattern:
            raise KeyboardInterrupt
        real(place, **({"pattern": pattern} if pattern else {}))

    monkeypatch.setattr(generator, "clear", killed)
    with pytest.raises(KeyboardInterrupt):
        jets.generate(job(count=9), path)
    assert [p.name for p in folder.iterdir()] == ["recipe.json"]
    monkeypatch.setattr(generator, "clear", real)
    jets.generate(job(count=9), path, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_blocks_of_another_version_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "a.h5", monkeypatch)
    monkeypatch.setattr(generator, "__version__", "0.1.0")
    with pytest.raises(InputError, match=r"blocks of another run \(normae differ\): remove it first"):
        jets.generate(job(count=9), tmp_path / "a.h5")


def test_bad_jobs(qcd: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="qcd, top, w"):
        Process("higgs")
    with pytest.raises(InputError, match="positive number"):
        job(count=0)
    with pytest.raises(InputError, match="seed"):
        job(seed=-1)
    with pytest.raises(InputError, match="at least one worker"):
        jets.generate(job(), tmp_path / "a.h5", workers=0)
    with pytest.raises(InputError, match="exists already"):
        jets.generate(job(), qcd)


def test_pythia_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pythia8mc", None)
    with pytest.raises(InputError, match=r"pythia8mc.*pip install 'normae\[jets\]'"):
        generator.generate_block(job(), 0, 1)


def test_multi_parton_interactions_are_a_switch() -> None:
    off, on = (" ".join(Process("qcd", mpi).commands(1)) for mpi in (False, True))
    assert "PartonLevel:MPI = off" in off
    assert "PartonLevel:MPI = on" in on
    assert "6:m0 = 171.0" in " ".join(Process("top", top_mass=171.0).commands(1))


def top_event() -> Batch:
    """t -> t -> b W, W -> W -> q q, all along eta = 0.2, phi = 1."""
    pdg = np.array([90, 6, 6, 5, 24, 24, 2, -1])
    daughters = np.array([(0, 0), (2, 2), (3, 4), (0, 0), (5, 5), (6, 7), (0, 0), (0, 0)])
    direction = np.array([np.cos(1.0), np.sin(1.0), np.sinh(0.2), np.cosh(0.2)])
    p = 100 * np.tile(direction, (8, 1))
    return Batch(np.array([0, 8]), pdg, np.zeros(8), np.ones(8, bool), daughters, p, np.zeros((8, 3)))


def test_top_matching() -> None:
    event = top_event()
    assert holds(6, event.pdg, event.daughters, event.p, 0.2, 1.0)
    assert not holds(6, event.pdg, event.daughters, event.p, 0.2, 2.0)
    for quark in (3, 6, 7):
        moved = event.p.copy()
        moved[quark] = [-100, 0, 0, 100]
        assert not holds(6, event.pdg, event.daughters, moved, 0.2, 1.0)
        assert holds(24, event.pdg, event.daughters, moved, 0.2, 1.0) == (quark == 3)  # a W does not need the b
    leptonic = event.pdg.copy()
    leptonic[6:] = [-11, 12]
    assert not holds(6, leptonic, event.daughters, event.p, 0.2, 1.0)


@pytest.mark.parametrize("mass", [float("nan"), float("inf"), -5.0, 99.0, 251.0])
def test_top_mass(mass: float) -> None:
    with pytest.raises(InputError, match="top mass from 100 to 250 GeV"):
        Process("top", top_mass=mass)


def test_pythia_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "commands", lambda *_: ["Print:quiet = on", "No:such = on"])
    with pytest.raises(InputError, match="Pythia refuses the setting 'No:such = on'"):
        generator.generate_block(job(), 0, 1)
    monkeypatch.setattr(Process, "commands", lambda *_: ["Print:quiet = on", "Beams:eCM = 1"])
    with pytest.raises(InputError, match="Pythia could not be initialized"):
        generator.generate_block(job(), 0, 1)


@pytest.mark.parametrize("recipe", ["{", "[1]", None])
def test_folder_that_is_not_ours(recipe: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "a.h5.parts"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    if recipe is not None:
        (folder / "recipe.json").write_text(recipe)
    with pytest.raises(InputError, match="is damaged" if recipe else "is no folder of a stopped run"):
        jets.generate(job(), tmp_path / "a.h5")
    assert (folder / "thesis.txt").read_text() == "mine"


def test_foreign_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(task: jets.Job, block: int, size: int) -> jets.Jets:
        (tmp_path / "a.h5.parts" / "thesis.txt").write_text("mine")
        return jets.from_lists([[(1, 0, 0)]] * size)

    monkeypatch.setattr(generator, "generate_block", fake)
    jets.generate(job(), tmp_path / "a.h5")
    assert [p.name for p in (tmp_path / "a.h5.parts").iterdir()] == ["thesis.txt"]


def test_checks_come_before_the_bar(tmp_path: Path) -> None:
    there = tmp_path / "there.h5"
    there.touch()
    for out, more, words in ((there, [], "exists already"), (tmp_path / "b.h5", ["--workers", "0"], "one worker")):
        result = CliRunner().invoke(app, ["generate", "qcd", "-o", str(out), *more])
        assert isinstance(result.exception, InputError)
        assert words in str(result.exception)
        assert "jets" not in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["there.h5"]
