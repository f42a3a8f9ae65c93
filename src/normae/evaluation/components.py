"""The study of a run on jets in components: a table, judged as one, whose rows are pictures.

Rows held out have the noise that the training added, since the density is theirs; all other jets have none.
"""

from contextlib import suppress
from typing import ClassVar

import numpy as np
import torch

from normae.components import ComponentsCoordinates
from normae.data import SparseEvents
from normae.errors import InputError
from normae.evaluation import jets
from normae.evaluation.evaluate import Captions, Draw, Metrics
from normae.evaluation.jet_study import draw_generated, draw_pictures
from normae.evaluation.table import ROWS, TableStudy, table_metrics, table_test
from normae.inference import Model
from normae.jets.imaging import NAMES
from normae.runs.load import load
from normae.sources import Events, pieces
from normae.tensors import stream

SHOWN = 8  # jets that are shown


class ComponentsStudy(TableStudy):
    """A run on one class of jets, in components."""

    own: ClassVar = {
        "auc": "AUC of the score, jets of the other class against held-out ones",
        "rejection_30": "background rejection at signal efficiency 0.3",
        **TableStudy.own,
        "log_z": "log Z",
        **{f"wasserstein_{name}": f"Wasserstein distance of {name} of generated jets" for name in NAMES},
    }
    of_jets = True

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:
        """What a table's study says of the components, and tagging and generated jets."""
        model, events = load(self.run.path, device), self.run.events(self.config)
        rows = component_events(model, events, self.config.seed)
        test = table_test(model.in_components(), self.config, rows)
        metrics = table_metrics(model.in_components(), self.config, test)
        found, made = None, None
        with suppress(InputError):  # the file may have no jets of the other class
            found = jets.held_out_jets(self.config, self.run.known)
        if found is not None:
            sides = (found.signal, found.background)
            signal, background = (np.concatenate([model.score(x) for x in pieces(one)]) for one in sides)
            metrics |= jets.separation(signal, background)
            if generated:
                made = jets.generated_jets(self.run, model, found.background, generated, self.config.seed)
                metrics |= {} if made is None else jets.generation_metrics(made, self.config.seed)

        def draw() -> None:
            self._draw(test)
            self._draw_pictures(model, events.test.numpy())
            if found is not None:
                scores, tagged = jets.JetScores(background[None], signal[None], 1.0), 1 - found.label
                curve = jets.roc_curve_of(f"AUC {metrics['auc']}", scores, tagged)
                jets.draw_roc(self.run, curve, len(background))
            if made is not None:
                draw_generated(self.run.figures, {int(self.config.data.jets == "top"): (made, metrics)})

        return metrics, draw

    def _draw_pictures(self, model: Model, pictures: np.ndarray) -> None:
        """The least likely test jets, what their components say of them, and where the score comes from."""
        scores = np.concatenate([model.score(part) for part in np.array_split(pictures, -(-len(pictures) // 4096))])
        worst = np.argsort(-scores, kind="stable")[:SHOWN]
        x = pictures[worst]
        seen = model.coordinates.inverse(model.coordinates.forward(torch.from_numpy(x).to(model.device))).cpu().numpy()
        rows = {"picture": x[:, 0], "its components": seen[:, 0], "parts": model.explain(x)[:, 0]}
        draw_pictures(self.run.figures, "pictures", rows, [f"$E/T$ = {score:.3g}" for score in scores[worst]])

    def title(self) -> str:
        ensemble, jets_of = self.config.ensemble, "QCD" if self.config.data.jets == "qcd" else "top"
        which = f"seed {self.config.seed}" if ensemble is None else f"a mixture of {ensemble.members} trainings"
        return f"a normalized autoencoder of {jets_of} jets in components, {which}"

    def summary(self, metrics: Metrics) -> str:
        number = sum(name.startswith("wasserstein component") for name in metrics)
        tags = f" Jets of the other class score higher in {100 * metrics['auc'].value:.1f} % of pairs (AUC)."
        return (
            f"The model is a density of jets in {number} components of their pictures, with the noise that is stated "
            "below; the score of a jet is the negative log-likelihood of its components. A classifier tells samples of "
            f"the model from held-out jets with AUC {metrics['auc_samples']} (0.5: not at all)."
            + (tags if "auc" in metrics else "")
        )

    def sample(self) -> dict[str, str]:
        data, given = self.config.data, self.config.coordinates.components
        assert given is not None
        size = f"{data.train:,}" if data.train else "all other"
        what = f"{given.number} of pixel^{given.power:g}, basis {given.basis}, noise {given.noise:g} of a component's"
        samples = {"training sample": f"{size} {data.jets} jets", "test sample": f"{data.test:,} jets"}
        return samples | {"components": f"{what} width"}

    def captions(self, metrics: Metrics) -> Captions:
        found = super().captions(metrics)
        found["pictures"] = (
            "The least likely jets",
            "Test jets of the class trained on with the highest scores: the picture, the picture that its components "
            "alone make, and the parts of the score, compared with a likely jet. Pictures are on a logarithmic scale.",
        )
        if "auc" in metrics:
            found["roc"] = ("ROC curve", "Jets of the other class kept over held-out jets kept. Dotted: a coin.")
        if "generated_jets" in metrics:
            found["generated"] = ("Observables of generated jets", "Generated (dashed) and true jets (solid).")
        return found

    def limits(self) -> str:
        return (
            "log p is that of the components with their noise: what a picture has beside them does not count. A "
            "likelihood ratio asks a density far outside its own sample, where it is an extrapolation. A density is not"
            " a tagger: a jet of another class can lie where this class is dense."
        )


def component_events(model: Model, events: Events, seed: int) -> Events:
    """Training and test jets as rows of components, with their noise, at most so many as are looked at."""
    coordinates = model.coordinates.to("cpu")
    assert isinstance(coordinates, ComponentsCoordinates)

    def noisy(name: str, y: torch.Tensor) -> torch.Tensor:
        return coordinates.noisy(y, 1, stream(seed, f"evaluation/noise/{name}"))

    def train() -> torch.Tensor:
        assert isinstance(events.train, SparseEvents)
        return noisy("train", coordinates.rows(events.train.first(ROWS)))

    names = tuple(f"component {k}" for k in range(model.seen_event[0]))
    test = noisy("test", coordinates.forward(events.test[:ROWS]))
    return Events(train, lambda: None, lambda: test, None, lambda: names)
