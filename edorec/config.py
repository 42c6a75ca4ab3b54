"""The table of contents of a run: every section of the YAML, each defined beside the code that reads it."""

from pydantic import Field

from edorec.data.schema import DataConfig, FeaturesConfig, TaskConfig, VocabularyConfig
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig
from edorec.models.config import ModelConfig
from edorec.optimization import TrainConfig
from edorec.sections import Section


class RunConfig(Section):
    """A whole run."""

    name: str | None = Field(None, description="Name of the run; default the config file's name.")
    data: DataConfig
    features: FeaturesConfig
    tasks: dict[str, TaskConfig] = Field(description="Tasks by name, at least one.", min_length=1)
    vocabularies: dict[str, VocabularyConfig] = Field(
        {}, description="Settings by vocabulary; a feature without one here has the defaults."
    )
    embedding: EmbeddingConfig = EmbeddingConfig()
    memory: MemoryConfig = MemoryConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
