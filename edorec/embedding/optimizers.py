"""Optimizers that run inside the update of table rows: what they keep and what they do.

For a row that a step looked up, g is the sum of its gradients and w its values; rows that were not
looked up stay bit for bit as they are, weight decay included. So do those whose g is zero, unless
decay or Adam moves them: to round them anew would only add noise. First w shrinks by learning_rate
* weight_decay * w (decoupled, as AdamW's), then

    sgd              w -= lr g
    rowwise_adagrad  a += mean(g^2), one number a row;     w -= lr g / (sqrt(a) + eps)
    adagrad          a += g^2;                             w -= lr g / (sqrt(a) + eps)
    adam             m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) mean(g^2), one number a row;
                     w -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), t the step

Counterparts in FBGEMM: EXACT_SGD, EXACT_ROWWISE_ADAGRAD, EXACT_ADAGRAD, PARTIAL_ROWWISE_ADAM.
A row's state follows its bytes: nothing, the accumulator in one of ``states.STATES``, D float32
accumulators, or D float32 moments and a float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from edorec.embedding.formats.row_format import as_numbers
from edorec.embedding.states import StateFormat

EPSILON = 1e-8
BETA_1, BETA_2 = 0.9, 0.999

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")


@dataclass(frozen=True)
class Step:
    """The numbers of one update.

    Attributes:
        learning_rate: of this step.
        weight_decay: decoupled, of the rows looked up.
        number: of this update, from 1.
    """

    learning_rate: float
    weight_decay: float
    number: int

    def numbers(self) -> np.ndarray:
        """What the numba kernel takes: lr, weight decay, Adam's two corrections; float32."""
        corrections = (1 - BETA_1**self.number, 1 - BETA_2**self.number)
        return np.array([self.learning_rate, self.weight_decay, *corrections], np.float32)


def keeps_idle_rows(optimizer: str, step: Step) -> bool:
    """Whether a row whose gradient is zero stays as it is."""
    return optimizer != "adam" and step.weight_decay == 0


def state_bytes(optimizer: str, *, dim: int, state: StateFormat) -> int:
    """Bytes of optimizer state of a row."""
    sizes = {"sgd": 0, "rowwise_adagrad": state.num_bytes, "adagrad": 4 * dim, "adam": 4 * dim + 4}
    return sizes[optimizer]


def initial_state(
    optimizer: str, *, dim: int, state: StateFormat, accumulator: float
) -> torch.Tensor:
    """The state of a new row, uint8 (state bytes): accumulators at a value, moments at 0."""
    if optimizer == "rowwise_adagrad":
        # Rounded up or down as log8 must be; to the nearest, as all rows start alike.
        return state.encode(torch.tensor([accumulator]), torch.tensor([0.5]))[0]
    if optimizer == "adagrad":
        return torch.full((dim,), accumulator).view(torch.uint8)
    return torch.zeros(state_bytes(optimizer, dim=dim, state=state), dtype=torch.uint8)


Update = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, StateFormat, torch.Tensor, Step],
    tuple[torch.Tensor, torch.Tensor],
]


def update_rows(
    optimizer: str,
    values_ND: torch.Tensor,
    gradients_ND: torch.Tensor,
    states_NS: torch.Tensor,
    *,
    state: StateFormat,
    noise_N: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    """New float32 values and uint8 states of rows; plain torch, on any device."""
    values_ND = values_ND * (1 - step.learning_rate * step.weight_decay)
    return UPDATES[optimizer](values_ND, gradients_ND, states_NS, state, noise_N, step)


def _sgd(
    values_ND: torch.Tensor,
    gradients_ND: torch.Tensor,
    states_NS: torch.Tensor,
    _state: StateFormat,
    _noise_N: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    return values_ND - step.learning_rate * gradients_ND, states_NS


def _rowwise_adagrad(
    values_ND: torch.Tensor,
    gradients_ND: torch.Tensor,
    states_NS: torch.Tensor,
    state: StateFormat,
    noise_N: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    accumulator_N = state.decode(states_NS) + gradients_ND.square().mean(dim=1)
    rate_N = step.learning_rate / (accumulator_N.sqrt() + EPSILON)
    return values_ND - rate_N.unsqueeze(1) * gradients_ND, state.encode(accumulator_N, noise_N)


def _adagrad(
    values_ND: torch.Tensor,
    gradients_ND: torch.Tensor,
    states_NS: torch.Tensor,
    _state: StateFormat,
    _noise_N: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    accumulator_ND = as_numbers(states_NS, torch.float32) + gradients_ND.square()
    values_ND = values_ND - step.learning_rate * gradients_ND / (accumulator_ND.sqrt() + EPSILON)
    return values_ND, accumulator_ND.view(torch.uint8)


def _adam(
    values_ND: torch.Tensor,
    gradients_ND: torch.Tensor,
    states_NS: torch.Tensor,
    _state: StateFormat,
    _noise_N: torch.Tensor,
    step: Step,
) -> tuple[torch.Tensor, torch.Tensor]:
    states = as_numbers(states_NS, torch.float32)
    dim = gradients_ND.shape[1]
    moment_ND = BETA_1 * states[:, :dim] + (1 - BETA_1) * gradients_ND
    square_N1 = BETA_2 * states[:, dim:] + (1 - BETA_2) * gradients_ND.square().mean(1, True)
    moment_correction = 1 - BETA_1**step.number
    square_correction = 1 - BETA_2**step.number
    scale_N1 = (square_N1 / square_correction).sqrt() + EPSILON
    values_ND = values_ND - step.learning_rate / moment_correction * moment_ND / scale_N1
    return values_ND, torch.cat([moment_ND, square_N1], dim=1).view(torch.uint8)


UPDATES: dict[str, Update] = {
    "sgd": _sgd,
    "rowwise_adagrad": _rowwise_adagrad,
    "adagrad": _adagrad,
    "adam": _adam,
}
