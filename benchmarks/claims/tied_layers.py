"""S3: a 4-layer Transformer over histories, each two layers one module, against four modules.

The claim: 30 % fewer parameters at 98.7 % of the metric.
"""

from benchmarks.claims.row import (
    Options,
    Row,
    auc_figures,
    side,
    speed_figure,
    train_pairs,
)
from benchmarks.figures import Figure
from edorec.config import load_config
from edorec.layers.sequences import Transformer

CONFIG = "kuairand"
NAME = "S3 tied layers, KuaiRand"
HISTORIES = [
    f"features.sparse.hist_{entity}={{vocabulary: {entity}, pooling: transformer, max_length: 20}}"
    for entity in ("video", "author")
]
UNTIED = [*HISTORIES, "model.transformer={num_layers: 4}"]
TIED = [*HISTORIES, "model.transformer={num_layers: 4, share_layers: 2}"]
MARGIN = 0.001


def row(options: Options) -> Row:
    """Trains both."""
    pairs = train_pairs(CONFIG, UNTIED, TIED, options=options)
    sizes = [num_parameters(overrides) for overrides in (UNTIED, TIED)]
    baseline, edorec = (
        side([pair[k] for pair in pairs], size=sizes[k], unit="parameters") for k in (0, 1)
    )
    ratio = edorec.auc["click"] / baseline.auc["click"]
    return Row(
        NAME,
        baseline,
        edorec,
        [
            Figure(
                f"{NAME}: encoder parameters of untied", sizes[1] / sizes[0], "ratio", at_most=0.7
            ),
            Figure(f"{NAME}: click AUC of untied", ratio, "ratio", at_least=0.987),
            *auc_figures(NAME, pairs, margin=MARGIN),
            speed_figure(NAME, pairs),
        ],
    )


def num_parameters(overrides: list[str]) -> int:
    """Weights of the encoders of all histories."""
    config = load_config(CONFIG, overrides).config
    total = 0
    for feature in config.features.sparse.values():
        if feature.pooling == "transformer":
            assert feature.max_length is not None
            encoder = Transformer(
                config.embedding.dim,
                max_length=feature.max_length,
                **config.model.transformer.model_dump(),
                dropout=config.model.dropout,
            )
            total += sum(parameter.numel() for parameter in encoder.parameters())
    return total
