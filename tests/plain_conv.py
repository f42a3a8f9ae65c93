"""The paper's convolutional autoencoder as its tables write it: transposed convolutions, bilinear upsampling."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from normae.networks import Autoencoder


class PlainConv(nn.Module):
    """Energies (N,) of images (N, 1, side, side), with the weights of `autoencoder`, channels first."""

    def __init__(self, autoencoder: Autoencoder) -> None:
        super().__init__()
        assert isinstance(autoencoder.encoder, nn.Sequential)
        assert isinstance(autoencoder.decoder, nn.Sequential)
        self.encoder = autoencoder.encoder
        self.decoder = nn.Sequential(*[plain_layer(layer) for layer in autoencoder.decoder])

    def forward(self, x: Tensor) -> Tensor:
        out = self.decoder(normalize(self.encoder(x), dim=1))
        return (x - out).square().mean((1, 2, 3))


def plain_layer(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        plain = nn.ConvTranspose2d(layer.in_channels, layer.out_channels, 3, padding=1)
        with torch.no_grad():
            plain.weight.copy_(layer.weight.transpose(0, 1).flip(2, 3))
            plain.bias.copy_(layer.bias)
        return plain
    return nn.Upsample(scale_factor=2, mode="bilinear") if type(layer).__name__ == "Upsample" else layer
