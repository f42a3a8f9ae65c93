"""A supervised classifier of jets as a run: trained, stopped and resumed like any other, and loaded as a reference.

The score of the finished network is measured, and where it is not calibrated corrected, on the validation sample, which
also chose the epoch: one of some hundred by a mean over all of it, which moves a correction of one or two numbers by
far less than its error. The test sample is not touched.

The logit f of a network trained with n_1 events of class 1 and n_0 of class 0 tends to log r + log(n_1 / n_0),
Eq. (lr_clf) of the paper for n_1 = n_0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from normae.config import Run, choose_device, read
from normae.errors import InputError, refuse
from normae.files import write_json
from normae.networks.autoencoder import conv_encoder
from normae.networks.reconstruction import prefixed
from normae.runs.folder import RunFolder, locked, read_tensors, write_tensors
from normae.runs.load import run_of
from normae.runs.writing import Journal, Watch
from normae.sources import jets_hashes, load_both
from normae.statistics import Estimate, IsotonicRecalibration, LinearRecalibration, Recalibration, auc
from normae.statistics.calibration import calibration, choose_correction
from normae.tensors import stream
from normae.training import Trainer, classifier_trainer
from normae.training.supervised import Classification

PIECE = 4096
KNOTS = ("calibration.x", "calibration.y")  # the tensors of an isotonic correction


@dataclass(eq=False)
class Classifier:
    """log r of events, from a network.

    Args:
        network: maps events (N, *event) to logits (N, 1).
        scale: what events are multiplied with first.
        prior: log(n_1 / n_0) of the training sample.
        event: shape of one event.
        correction: of log r, from held-out events; None for a score that needs none.
        name: for messages.

    >>> from torch import nn
    >>> from normae import Classifier
    >>> classifier = Classifier(nn.PReLU(), scale=2.0, prior=0.0, event=(1,))
    >>> classifier.log_ratio([[0.0], [1.0]]), classifier.probability([[0.0], [1.0]]).round(2)
    (array([0., 2.]), array([0.5 , 0.88]))
    """

    network: nn.Module
    scale: float
    prior: float
    event: tuple[int, ...]
    correction: Recalibration | None = None
    name: str = "classifier"

    def __post_init__(self) -> None:
        self.network.eval().requires_grad_(False)

    def log_ratio(self, x: Any, corrected: bool = True) -> NDArray[np.float64]:
        """log p_1 - log p_0 with shape (N,), for events with shape (N, *event), numpy or torch.

        Args:
            corrected: with the calibration that held-out events asked for.
        """
        events = x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x, dtype=np.float32))
        if tuple(events.shape[1:]) != self.event:
            raise InputError(f"{self.name}: expected events of shape {self.event}, got {tuple(events.shape[1:])}")
        device = next(self.network.parameters()).device
        with torch.no_grad():
            pieces = [self.network(piece.to(device).float() * self.scale) for piece in torch.split(events, PIECE)]
        logit = torch.cat(pieces).squeeze(1).double().cpu().numpy() if pieces else np.zeros(0)
        if (spoiled := np.flatnonzero(~np.isfinite(logit))).size:
            raise InputError(f"{self.name}: expected finite events, row {spoiled[0]} gives none")
        ratio: NDArray[np.float64] = logit - self.prior
        return ratio if self.correction is None or not corrected else self.correction(ratio)

    def probability(self, x: Any, corrected: bool = True) -> NDArray[np.float64]:
        """The probability of class 1 in a sample of equal parts, with shape (N,)."""
        return np.asarray(expit(self.log_ratio(x, corrected)))


def train_classifier(
    config: Run, folder: RunFolder, watch: Watch | None, deadline: float | None, check: Callable[[], None]
) -> bool:
    """Train into a folder that is new, or holds this very run, as `check` says; whether it is finished."""
    device = choose_device(config.device)
    known = {"jets_sha256": jets_hashes(config.data)}  # before they are read
    train, held = load_both(config.data, config.seed, known)
    network = build_network(config, tuple(train[0].shape[1:]))
    hashes = [images.sha256() for images in (*train, *held)]
    with locked(folder.path):
        check()
        if folder.finished():
            return True
        assert config.classifier is not None
        trainer = classifier_trainer(network, train, held, config.classifier, config.seed, device)
        journal = Journal(folder, [folder], [config], [hashes], jets=known["jets_sha256"])
        journal.open(trainer)
        finished = journal.follow(trainer, watch, deadline)
        if finished:
            _finish(config, trainer, journal)
        return finished


def build_network(config: Run, event: tuple[int, ...]) -> nn.Sequential:
    """The encoder of the paper's table with one output."""
    network = config.network
    return conv_encoder(event[1], network.channels, network.hidden[0], 1, stream(config.seed, "init"))


def _finish(config: Run, trainer: Trainer, journal: Journal) -> None:
    phase, setup = trainer.current, trainer.setup
    assert isinstance(phase, Classification)
    logit = phase.held_logits(phase.best).cpu().numpy() - phase.prior
    labels = phase.held_labels.cpu().numpy() == 1
    method, correct = choose_correction(logit, labels, config.seed)
    tensors, numbers = _correction_tensors(correct)
    weights = {name: view[0] for name, view in prefixed(setup.layout.views(phase.best), "energy.").items()}
    header: dict[str, Any] = {"event": list(setup.data.event), "scale": phase.scale, "prior": phase.prior}
    header["calibration"] = {"method": method, **numbers}
    raw = calibration(logit, labels, config.seed).error
    measured = {
        "auc": auc(logit[labels], logit[~labels]), "ece": raw.measured, "ece_perfect": raw.perfect,
        "ece_corrected": calibration(correct(logit), labels, config.seed).error.measured,
        "loss": Estimate(float(phase.best_loss), 0.0),
    }  # fmt: skip
    pairs = {name: {"value": m.value, "error": m.error} for name, m in measured.items()}
    write_json(journal.group.provenance, journal.facts(trainer, 0) | {"calibration": method, "validation": pairs})
    write_tensors(journal.group.model, weights | tensors, header)


def _correction_tensors(correct: Recalibration) -> tuple[dict[str, Tensor], dict[str, float]]:
    """A correction as tensors and numbers of the model's file; neither where there is none."""
    if isinstance(correct, IsotonicRecalibration):
        return {name: torch.from_numpy(knots) for name, knots in zip(KNOTS, (correct.x, correct.y), strict=True)}, {}
    return {}, vars(correct) if isinstance(correct, LinearRecalibration) else {}


def load_classifier(name: str | Path, device: str = "cpu") -> Classifier:
    """The classifier called `name`, a run folder or a name of the zoo: `log_ratio(x)` is calibrated log p_top/p_QCD.

    Args:
        device: "cpu", "cuda" or "auto".

    >>> import normae
    >>> jet = normae.jets.from_lists([[[500.0, 0.0, 0.0], [50.0, 0.1, 0.2]]])
    >>> normae.load_classifier("jets-classifier").probability(normae.jets.images(jet)) < 0.5
    array([ True])
    """
    run = run_of(name)
    config = read(run.config)
    refuse(config.classifier is None, f"{name}: an autoencoder, not a classifier; train one with jets-paper-classifier")
    tensors, header = read_tensors(run.model)
    try:
        event, given = tuple(int(n) for n in header["event"]), header["calibration"]
        network = build_network(config, event)
        network.load_state_dict({key: tensor for key, tensor in tensors.items() if key not in KNOTS})
        correction = _correction(given, tensors)
        scale, prior = float(header["scale"]), float(header["prior"])
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: model.safetensors does not belong to config.toml ({error})") from None
    return Classifier(network.to(choose_device(device)), scale, prior, event, correction, str(name))


def _correction(given: dict[str, Any], tensors: dict[str, Tensor]) -> Recalibration | None:
    if given["method"] == "none":
        return None
    if given["method"] == "isotonic":
        return IsotonicRecalibration(*(tensors[name].numpy() for name in KNOTS))
    return LinearRecalibration(float(given["slope"]), float(given["offset"]))
