"""Do the latent chains of a jet run reach equilibrium, and with which steps?

    python bench/latent_mixing.py RUN [--factors 1,10,100] [--chains 64] [--blocks 10]

Chains of the run's length, one after the other, from noise and from the encoded jets of the validation sample, with
the run's step size times each factor (and the noise that belongs to it, where the factor is not 1). Printed: the mean
energy E(f_d(z)) after 1, 2, 4, ... chains, acceptance, and what samples at T on the decoder's manifold have.
"""

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from normae.config import read
from normae.networks import Layout
from normae.networks.reconstruction import ReconstructionEnergy
from normae.runs.load import load, run_of
from normae.sampling.chain import run_chain
from normae.sources import load_events
from normae.statistics import thermal_mean
from normae.temperature.estimates import EVEN_POINTS, even_energies, latent_energies
from normae.tensors import norm, normal, stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder or a model of the zoo")
    parser.add_argument("--factors", default="1,10,100")
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=10)
    given = parser.parse_args()
    model, config = load(given.run, "auto"), read(run_of(given.run).config)
    config = replace(config, sampling=model.sampling)  # with the step sizes that the training ended with
    layout = Layout.of(model.autoencoder)
    energy = ReconstructionEnergy(model.autoencoder, layout.views(layout.flatten([model.autoencoder])))
    jets = load_events(config.data, config.seed).validation.first(given.chains).dense()
    with torch.no_grad():
        encoded = energy.with_latent(jets.to(model.device))[1]
    print("E of encoded and decoded jets", latent_energies(energy, encoded).mean())
    print(
        "at T on the manifold",
        thermal_mean(even_energies(energy, encoded, config.seed, EVEN_POINTS), model.temperature),
    )
    noise = normal(encoded.shape, stream(config.seed, "mixing/start", model.device), encoded)
    starts = {"noise": noise / norm(noise, keepdim=True), "jets": encoded}
    for factor in map(float, given.factors.split(",")):
        for name, start in starts.items():
            print(f"steps x {factor:g} from {name}:", *follow(energy, start, config, model.temperature, factor, given))


def follow(energy: ReconstructionEnergy, z: Tensor, config, temperature: float, factor: float, given) -> list[str]:
    """Mean energies after 1, 2, 4, ... chains and at the end, and the acceptance of the last."""
    chain = config.sampling.latent
    noise = chain.noise if factor == 1 else None
    chain = replace(chain, step_size=factor * chain.step_size, noise=noise, adapt=None)
    generator, said = stream(config.seed, "mixing", z.device), []
    for block in range(1, given.blocks + 1):
        found = run_chain(energy.latent(), z, chain, temperature, generator)
        z = found.position.detach()
        if block & (block - 1) == 0 or block == given.blocks:
            said.append(f"{block * chain.steps}: {found.energy.mean().item():.3g}")
    return [*said, f"acceptance {found.acceptance.mean().item():.2f}"]


if __name__ == "__main__":
    main()
