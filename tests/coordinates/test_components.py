"""Jets as a table of components: a basis of known properties, and a model that takes and gives pictures."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import normae
from normae.components import ComponentsConfig, ComponentsCoordinates, principal, shipped
from normae.config import read
from normae.data import SparseEvents
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate, report
from normae.export.onnx import export_onnx
from normae.runs.door import planned
from normae.runs.ensemble import gather
from normae.runs.folder import RunFolder
from normae.runs.session import train
from normae.sources import read_sparse
from tiny_jets import SAMPLE

TINY = [
    "device=cpu", "data.train=60", "data.test=20", "data.validation=20", "contrast.iterations=50", "contrast.batch=20",
    "network.hidden=[16]", "coordinates.components.number=4", "sampling.buffer=64", "training.batch=20",
    "pretraining.batch=20", "contrast.draws=2000", "contrast.every=10", "base.gaussians=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def qcd() -> SparseEvents:
    return read_sparse(SAMPLE, "qcd")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("components") / "run"
    assert train(read("jets-components-qcd", [*TINY, f"data.path={SAMPLE}"]), folder)
    return folder


def test_the_shipped_basis_is_orthonormal_and_white(qcd):
    _, basis, width = shipped()
    flat = basis.double().flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(64, dtype=torch.float64), atol=1e-6)
    assert bool((width.diff() <= 0).all())
    y = ComponentsCoordinates.of(ComponentsConfig(), qcd).rows(qcd)
    assert y.shape == (100, 12)
    assert float(y.std(0).sub(1).abs().max()) < 0.35  # 100 jets: an error of 0.07 for a Gaussian, more with tails
    assert float(y.mean(0).abs().max()) < 0.4


def test_own_components_are_the_covariance_s_eigenvectors(qcd):
    centre, basis, width = principal(qcd, 0.5, 5)
    u = qcd.dense().flatten(1).double().numpy() ** 0.5
    values, vectors = np.linalg.eigh(np.cov(u, rowvar=False, bias=True))
    assert np.allclose(centre.flatten(), u.mean(0), atol=1e-5)
    assert np.allclose(width, np.sqrt(values[::-1][:5]), rtol=1e-3)
    overlap = np.abs(basis.flatten(1).numpy() @ vectors[:, ::-1][:, :5])
    assert np.allclose(overlap, np.eye(5), atol=1e-2)
    to = ComponentsCoordinates.of(ComponentsConfig(5, basis="own"), qcd)
    assert np.allclose(np.cov(to.rows(qcd).numpy(), rowvar=False, bias=True), np.eye(5), atol=1e-3)


def test_there_and_back(qcd):
    to = ComponentsCoordinates.of(ComponentsConfig(60), qcd)
    y = to.rows(qcd.first(20))
    pictures = to.inverse(y)
    assert pictures.shape == (20, 1, 40, 40)
    assert torch.allclose(pictures.sum((1, 2, 3)), torch.ones(20))
    again = to.forward(pictures)
    assert float((again - y)[:, :4].abs().median()) < 0.1  # what is left: pixels that would be negative, and the sum
    flat = to.centre + 0.01 * to.basis[0].double()  # positive everywhere it matters, and with its own sum
    x = flat.clamp_min(0) ** 2
    assert torch.allclose(to.forward(x[None])[0, 1:3], torch.zeros(2, dtype=torch.float64), atol=0.02)
    assert float(to.forward(x[None])[0, 0] * to.width[0]) == pytest.approx(0.01, rel=0.02)


def test_noise_is_part_of_the_rows_and_not_of_a_score(qcd):
    to = ComponentsCoordinates.of(ComponentsConfig(3, noise=0.5), qcd)
    y = torch.zeros(20_000, 3, dtype=torch.float64)
    noisy = to.noisy(y, 2, torch.Generator().manual_seed(0))
    assert noisy.shape == (40_000, 3)
    assert torch.allclose(noisy.std(0), torch.full((3,), 0.5, dtype=torch.float64), atol=0.01)
    x = qcd.first(5).dense()
    assert torch.equal(to.forward(x), to.forward(x))
    assert not to.log_slope(x).any()


def test_parts_over_pixels_add_up(qcd):
    to = ComponentsCoordinates.of(ComponentsConfig(12), qcd)
    step, slope = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(to.picture(step, slope).sum((1, 2, 3)), (step * slope).sum(1))


def test_a_run_takes_and_gives_pictures(run, qcd, tmp_path):
    model = normae.load(run)
    x = qcd.first(12).dense().numpy()
    assert model.event == (1, 40, 40)
    assert model.coordinates.kind == "components"
    assert model.log_z.error < 0.3
    score = model.score(x)
    assert np.allclose(model.log_prob(x), -score - model.log_z.value, atol=1e-4)
    assert model.rows(x).scores.shape == (1, 12)
    parts = model.explain(x[:3])
    assert parts.shape == (3, 1, 40, 40)
    assert np.allclose(parts.sum((1, 2, 3)), score[:3], rtol=1e-4)
    made = model.sample(10)
    assert made.shape == (10, 1, 40, 40)
    assert np.allclose(made.sum((1, 2, 3)), 1, atol=1e-5)
    tensor = torch.from_numpy(x).requires_grad_(True)
    assert bool(torch.autograd.grad(model.score(tensor).sum(), tensor)[0].isfinite().all())
    assert max(one.largest for one in export_onnx(run, tmp_path / "model.onnx").values()) < 1e-2
    with pytest.raises(InputError, match=r"expected events of shape \(1, 40, 40\)"):
        model.score(x[:, 0])


def test_a_density_of_components_is_normalized(run):
    """The share of draws of a wide Gaussian, weighted, is one: log p in components and no other units."""
    model = normae.load(run)
    generator = torch.Generator().manual_seed(0)
    y = 1.5 * torch.randn(40_000, 4, generator=generator)
    log_q = -0.5 * (y / 1.5).square().sum(1) - 4 * np.log(1.5 * np.sqrt(2 * np.pi))
    energy = model.energy_function(y)
    weight = (-energy / model.temperature - model.log_z.value - log_q).exp()
    assert float(weight.mean()) == pytest.approx(1, abs=4 * float(weight.std()) / 200 + 2 * model.log_z.error)


def test_halves_share_their_components(tmp_path):
    changes = [*TINY, f"data.path={SAMPLE}", 'coordinates.components.basis="own"', "ensemble.members=4"]
    changes += ["ensemble.events=half", "contrast.iterations=10"]
    assert train(read("jets-components-top", changes), tmp_path / "run")
    model = normae.load(tmp_path / "run")
    x = read_sparse(SAMPLE, "qcd").first(6).dense().numpy()
    bases = [member.coordinates.basis for member in model.members]
    assert all(torch.equal(one, bases[0]) for one in bases)
    members = np.stack([member.log_prob(x) for member in model.members])
    assert np.allclose(model.log_prob(x), members.mean(0), atol=1e-4)
    assert model.rows(x).spread().shape == (6,)


def test_seeds_are_joined_to_a_mixture(tmp_path):
    folder = tmp_path / "jets"
    folder.mkdir()
    for name in ("train", "val", "test"):
        shutil.copy(SAMPLE, folder / f"{name}.npz")
    changes = [*TINY, f"data.path={folder}", "contrast.iterations=10"]
    assert train(read("jets-components-qcd", changes), tmp_path / "seeds", seeds=[0, 1, 2])
    gather([tmp_path / "seeds"], tmp_path / "mixture")
    model = normae.load(tmp_path / "mixture")
    x = read_sparse(SAMPLE, "top").first(5).dense().numpy()
    each = [normae.load(tmp_path / "seeds" / f"seed-{k}").log_prob(x) for k in range(3)]
    assert np.allclose(model.log_prob(x), np.mean(each, axis=0), atol=1e-4)
    assert model.sample(9).shape == (9, 1, 40, 40)
    facts = [RunFolder(tmp_path / "seeds" / f"seed-{k}").read_provenance()["data_sha256"] for k in range(3)]
    assert facts == [read_sparse(SAMPLE, "qcd").first(60).sha256()] * 3


def test_components_of_another_run(run, tmp_path):
    changes = [*TINY, f"data.path={SAMPLE}", f"coordinates.components.basis={run}", "contrast.iterations=5"]
    assert train(read("jets-components-top", [*changes, "coordinates.components.number=3"]), tmp_path / "run")
    mine, theirs = normae.load(tmp_path / "run").coordinates, normae.load(run).coordinates
    assert torch.equal(mine.basis, theirs.basis[:3])
    with pytest.raises(InputError, match="has 4 of pixels to the power of 0.5, expected 5"):
        train(read("jets-components-top", [*changes, "coordinates.components.number=5"]), tmp_path / "more")
    with pytest.raises(InputError, match="expected a run in components, got jets-qcd-nae"):
        train(read("jets-components-top", [*changes, "coordinates.components.basis=jets-qcd-nae"]), tmp_path / "zoo")


def test_what_is_refused():
    path = f"data.path={SAMPLE}"
    with pytest.raises(InputError, match="1 to 64, got 65"):
        read("jets-components-qcd", [path, "coordinates.components.number=65"])
    with pytest.raises(InputError, match="has 0.5, got 0.25"):
        read("jets-components-qcd", [path, "coordinates.components.power=0.25"])
    with pytest.raises(InputError, match="expected kind"):
        read("jets-components-qcd", [path, "coordinates.kind=identity"])
    with pytest.raises(InputError, match="data.jets"):
        read("jets-paper-qcd-nae", [path, "coordinates.kind=components", "coordinates.components.number=3"])


def test_a_file_of_jets_is_judged_and_reported(run, tmp_path):
    metrics = evaluate(run, figures=True)
    assert metrics["auc_samples"].value < 0.9
    assert 0 <= metrics["auc"].value <= 1
    assert "wasserstein component 3" in metrics
    assert "density of jets in 4 components" in report(run).read_text()
    assert (run / "figures" / "pictures.svg").is_file()
    chosen, _ = planned(SAMPLE, tmp_path / "run", changes=["data.jets=qcd"])
    assert chosen.coordinates.kind == "components"
    assert (chosen.data.test, chosen.data.validation, chosen.contrast.batch) == (20, 10, 17)


def test_a_file_of_one_class_is_judged_and_reported(tmp_path):
    """Without an AUC, which needs the other one."""
    every = normae.jets.read(SAMPLE)
    normae.jets.write(tmp_path / "qcd.h5", every[every.labels == 0])
    assert train(read("jets-components-qcd", [*TINY, f"data.path={tmp_path / 'qcd.h5'}"]), tmp_path / "run")
    assert "auc" not in evaluate(tmp_path / "run", figures=True)
    assert "Jets of the other class" not in report(tmp_path / "run").read_text()
