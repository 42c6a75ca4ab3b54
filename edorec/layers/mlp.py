"""Multi-layer perceptron of the dense part."""

import torch
from torch import nn


class MLP(nn.Module):
    """Linear, optional batch normalization, ReLU and dropout for each width in ``hidden``.

    Args:
        in_features: width of the input.
        hidden: widths of the layers; empty makes this the identity.
        dropout: probability of dropping an activation while training.
        batch_norm: normalize before each ReLU.

    Attributes:
        out_features: width of the output.
    """

    def __init__(
        self, in_features: int, hidden: list[int], *, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = in_features
        for next_width in hidden:
            layers.append(nn.Linear(width, next_width))
            if batch_norm:
                layers.append(nn.BatchNorm1d(next_width))
            layers.append(nn.ReLU())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = next_width
        self.layers = nn.Sequential(*layers)
        self.out_features = width

    def forward(self, inputs_BI: torch.Tensor) -> torch.Tensor:
        """(B, in_features) to (B, out_features)."""
        outputs: torch.Tensor = self.layers(inputs_BI)
        return outputs
