"""A sequence of image layers forward only, as a CPU likes it.

Libraries block the channels of a convolution by eight or sixteen, so that eight channels in work well with channels
last, and one channel out costs as much as sixteen. There the nine taps are one product of the C channels of every
pixel with a matrix (C, 9), and nine shifted images are added. Where eight channels come out, four neighbours in a row
are 32 channels of a convolution with stride 4, whose result has the same order in memory. Values are those of the
layers, up to rounding.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, leaky_relu, leaky_relu_, pad

from normae.networks.conv import Upsample

FOLD = 4
"""Neighbours in a row of a large image that are computed as if they were channels of one pixel."""
CHUNK = 64
"""Images at a time: their activations stay in the caches."""


@torch.no_grad()
def forward_only(network: nn.Sequential, x: Tensor) -> Tensor:
    """`network(x)` without its gradient."""
    given = x
    for layer in network:
        if isinstance(layer, nn.PReLU) and layer.num_parameters == 1:
            mine = x.data_ptr() != given.data_ptr()
            x = (leaky_relu_ if mine else leaky_relu)(x, float(layer.weight))
        else:
            x = _forward(layer, x)
    return x


def _forward(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, nn.Conv2d) and _is_3x3(layer):
        return _narrow(layer, x) if layer.out_channels == 1 else _convolve(layer, x)
    if isinstance(layer, nn.MaxPool2d) and _is_2x2(layer) and not (x.shape[2] % 2 or x.shape[3] % 2):
        rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])
    if isinstance(layer, Upsample):
        return interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    out: Tensor = layer(x)
    return out


def _is_3x3(layer: nn.Conv2d) -> bool:
    plain = layer.stride == layer.dilation == layer.padding == (1, 1) and layer.groups == 1
    return plain and layer.kernel_size == (3, 3) and layer.padding_mode == "zeros"


def _is_2x2(layer: nn.MaxPool2d) -> bool:
    plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
    return plain and layer.kernel_size == layer.stride == 2


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    weight, bias, out = layer.weight, layer.bias, layer.out_channels
    if c == 1 or out > 8 or w < 32 or w % FOLD:
        return conv2d(_channels_last(x), _channels_last(weight), bias, padding=1)
    folded = torch.stack([pad(weight, (k, FOLD - 1 - k)) for k in range(FOLD)]).flatten(0, 1)
    bias = None if bias is None else bias.repeat(FOLD)
    y = conv2d(_channels_last(x), _channels_last(folded), bias, stride=(1, FOLD), padding=1)
    return y.permute(0, 2, 3, 1).reshape(n, h, w, out).permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    """Also for one channel, where the order in memory is the same and only the strides tell."""
    n, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided((n, c, h, w), (c * h * w, 1, c * w, c))


def _narrow(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """C channels to one: images (N, C, h, w) to (N, 1, h, w)."""
    n, c, h, w = x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(-1, c)
    taps = (layer.weight[0].reshape(c, 9).T @ pixels.T).view(9, n, h, w)
    out = taps[4].clone() if layer.bias is None else taps[4] + layer.bias
    for k in (0, 1, 2, 3, 5, 6, 7, 8):
        dy, dx = k // 3 - 1, k % 3 - 1
        to = out[:, max(0, -dy) : h - max(0, dy), max(0, -dx) : w - max(0, dx)]
        to += taps[k, :, max(0, dy) : h + min(0, dy), max(0, dx) : w + min(0, dx)]
    return out[:, None]
