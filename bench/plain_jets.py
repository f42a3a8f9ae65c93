"""The jet network and its NAE iteration as the public codes of the field write them: what `normae bench` compares with.

In our own words, and plainly: layers as the paper's tables list them (transposed convolutions, bilinear upsampling),
channels first, spectral normalization by torch's own hook, gradients by autograd, one gradient a step, no Metropolis
test.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import spectral_norm


def encoder(latent: int) -> nn.Sequential:
    """Images (N, 1, 40, 40) to latent points (N, d_z)."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.PReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(),
        nn.Conv2d(8, 1, 3, padding=1), nn.PReLU(), nn.Flatten(),
        nn.Linear(400, 100), nn.PReLU(), nn.Linear(100, latent),
    )  # fmt: skip


def decoder(latent: int) -> nn.Sequential:
    """Latent points (N, d_z) to images (N, 1, 40, 40)."""
    return nn.Sequential(
        nn.Linear(latent, 100), nn.PReLU(), nn.Linear(100, 400), nn.PReLU(), nn.Unflatten(1, (1, 20, 20)),
        nn.ConvTranspose2d(1, 8, 3, padding=1), nn.PReLU(),
        nn.ConvTranspose2d(8, 8, 3, padding=1), nn.PReLU(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(8, 8, 3, padding=1), nn.PReLU(),
        nn.ConvTranspose2d(8, 1, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip


class PlainJetNAE:
    """Network, optimizer and chains of one training.

    Args:
        latent: d_z.
        steps: of the latent and of the feature chain.
        sizes: their step sizes lambda.
        noises: their sigma.
    """

    def __init__(
        self,
        latent: int,
        temperature: float,
        steps: tuple[int, int],
        sizes: tuple[float, float],
        noises: tuple[float, float],
        device: str = "cpu",
        normalized: bool = True,
    ) -> None:
        self.encoder, self.decoder = encoder(latent).to(device), decoder(latent).to(device)
        for layer in (*self.encoder, *self.decoder):
            if normalized and hasattr(layer, "weight") and layer.weight.ndim > 1:
                spectral_norm(layer)
        self.latent, self.temperature, self.device = latent, temperature, device
        self.steps, self.sizes, self.noises = steps, sizes, noises
        weights = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam(weights, lr=1e-5)

    def energy(self, x: Tensor) -> Tensor:
        """Reconstruction error, (N, 1, 40, 40) -> (N,)."""
        return (x - self.decoder(normalize(self.encoder(x), dim=1))).square().mean((1, 2, 3))

    def chain(self, which: int, x: Tensor) -> Tensor:
        """The latent chain (0) on the sphere, or the feature chain (1) on images."""
        for k in range(self.steps[which]):
            x = x.detach().requires_grad_(True)
            energy = self.energy(x) if which else self.energy(self.decoder(x))
            (gradient,) = torch.autograd.grad(energy.sum(), x)
            noise = self.noises[which] / (1 + k * which)
            x = x.detach() - self.sizes[which] / self.temperature * gradient.clamp(-0.01, 0.01)
            x = x + noise * torch.randn_like(x)
            x = x.clamp(0, 1) if which else normalize(x, dim=1)
        return x

    def iteration(self, x: Tensor) -> None:
        """One update of the NAE from images."""
        z = self.chain(0, normalize(torch.randn(len(x), self.latent, device=self.device), dim=1))
        negative = self.chain(1, self.decoder(z).detach()).detach()
        positive_energy, negative_energy = self.energy(x).mean(), self.energy(negative)
        loss = positive_energy - negative_energy.mean() + 2.5e4 * negative_energy.square().mean()
        self._update(loss)

    def pretraining(self, x: Tensor) -> None:
        """One update of the autoencoder from images."""
        self._update(self.energy(x).mean() / self.temperature)

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
