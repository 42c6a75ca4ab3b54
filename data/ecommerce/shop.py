"""The shop behind the log: its ids, what they are and what they do.

Nothing is stored about an id. What it is (an item's category, a user's city) and what it does to
the labels' probabilities are functions of its number and the seed, through a 64-bit mixer, so that

* an effect is drawn once per id, independently of how frequent the id is;
* a shop of any size costs the same memory;
* every block of rows can be made alone, and always comes out the same.

Ids are numbered by popularity (0 is the most frequent); files hold a mixed 64-bit value or a name.
"""

import hashlib
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Floats = NDArray[np.float32]

TASKS = ("click", "cart", "buy")
SYLLABLES = [first + second for first, second in product("bdfgklmnprstvz", "aeiou")]


@dataclass(frozen=True)
class Entity:
    """One kind of id.

    Attributes:
        size: ids that exist at any one time.
        exponent: of the Zipf distribution of their popularity.
        grows: the size follows the scale of the shop.
        churn: share of ids that appear during the log, each in place of another one that ends.
        effects: standard deviation of an id's effect on the log-odds of click, of cart given
            click and of buy given cart.
    """

    size: int
    exponent: float = 1.05
    grows: bool = False
    churn: float = 0.0
    effects: tuple[float, float, float] = (0.0, 0.0, 0.0)


ENTITIES = {
    "user": Entity(500_000, 1.05, True, 0.3, (0.5, 0.4, 0.4)),
    "item": Entity(450_000, 1.05, True, 0.3, (0.55, 0.5, 0.4)),
    "query": Entity(400_000, 1.05, True, 0.3, (0.45, 0.3, 0.0)),
    "seller": Entity(60_000, 1.05, True, effects=(0.3, 0.3, 0.3)),
    "brand": Entity(20_000, 1.05, True, effects=(0.35, 0.2, 0.3)),
    "category": Entity(2_000, 1.05, effects=(0.5, 0.3, 0.3)),
    "department": Entity(30, 1.05, effects=(0.4, 0.2, 0.1)),
    "campaign": Entity(40_000, 0.2, True, 0.1, (0.8, 0.3, 0.0)),
    "coupon": Entity(25_000, 1.05, True, 0.5, (0.2, 0.4, 0.6)),
    "referrer": Entity(10_000, 1.05, True, 0.1, (0.35, 0.2, 0.0)),
    "device": Entity(3_000, 1.05, effects=(0.3, 0.1, 0.1)),
    "city": Entity(8_000, 1.05, effects=(0.2, 0.0, 0.1)),
    "region": Entity(200, 1.05, effects=(0.2, 0.0, 0.2)),
    "warehouse": Entity(300, 1.05, effects=(0.0, 0.2, 0.2)),
    "position": Entity(60, 0.6, effects=(0.5, 0.0, 0.0)),
    "membership": Entity(5, 0.6, effects=(0.3, 0.2, 0.3)),
    "hour": Entity(24, 0.0, effects=(0.2, 0.1, 0.1)),
    "weekday": Entity(7, 0.0, effects=(0.1, 0.1, 0.1)),
    "viewed": Entity(0, effects=(0.5, 0.3, 0.3)),  # second effect of an item: as one viewed before
    "bought": Entity(0, effects=(0.4, 0.2, 0.4)),  # third: as one bought before
}


def mix(values: Hashes) -> Hashes:
    """A bijection of 64-bit values that looks random (splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniform(hashes: Hashes) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hidden_numbers(hashes: Hashes) -> Floats:
    """Four independent numbers (uniform, mean 0, variance 1) for each hash; a last axis of 4."""
    quarters = np.ascontiguousarray(hashes).view(np.uint16).reshape(*hashes.shape, 4)
    return (quarters.astype(np.float32) - 32767.5) * np.float32(12**0.5 / 65536)


def bell(hashes: Hashes) -> Floats:
    """One number with mean 0 and variance 1, close to normal, for each hash."""
    return hidden_numbers(hashes).sum(-1) / np.float32(2)


class Shop:
    """A shop of a given seed and scale.

    Args:
        seed: of everything about the shop.
        scale: factor on the sizes of the entities that grow.
        exponent: instead of each growing entity's own; smaller means a longer tail.
    """

    def __init__(self, *, seed: int, scale: float = 1.0, exponent: float | None = None) -> None:
        self._seed = seed
        self.sizes = {
            name: max(5, int(entity.size * scale)) if entity.grows else entity.size
            for name, entity in ENTITIES.items()
        }
        self._exponents = {
            name: exponent if exponent is not None and entity.grows else entity.exponent
            for name, entity in ENTITIES.items()
        }
        self._salts: dict[str, np.uint64] = {}

    def hashes(self, purpose: str, ids: Ids) -> Hashes:
        """64 random bits for each id, other ones for each purpose."""
        if purpose not in self._salts:
            digest = hashlib.blake2b(f"{self._seed}/{purpose}".encode(), digest_size=8).digest()
            self._salts[purpose] = np.uint64(int.from_bytes(digest, "little"))
        return mix(ids.view(np.uint64) + self._salts[purpose])

    def raw_ids(self, entity: str, ids: Ids) -> Ids:
        """What the files hold: any 64-bit value, half of them negative, all different."""
        return self.hashes(f"raw {entity}", ids).view(np.int64)

    def effects(self, entity: str, ids: Ids, *, task: int) -> Floats:
        """Each id's effect on the log-odds of a task."""
        deviation = np.float32(ENTITIES[entity].effects[task])
        return deviation * bell(self.hashes(f"effect {entity} {task}", ids))

    def hidden(self, entity: str, ids: Ids) -> Floats:
        """Each id's four hidden numbers, of which pairs are made."""
        return hidden_numbers(self.hashes(f"hidden {entity}", ids))

    def pick(self, entity: str, chances: NDArray[np.float64], time: NDArray[np.float64]) -> Ids:
        """Ids by popularity, of those that exist at the time.

        Args:
            entity: kind of id.
            chances: numbers in [0, 1).
            time: share of the log that has passed, of the same shape or one that broadcasts.
        """
        size, power = self.sizes[entity], 1 - self._exponents[entity]
        places = (((size + 1) ** power - 1) * chances + 1) ** (1 / power)
        ids = np.minimum(places.astype(np.int64) - 1, size - 1)
        churn = ENTITIES[entity].churn
        if not churn:
            return ids
        births = uniform(self.hashes(f"birth {entity}", ids)) / churn
        return np.where(births < time, ids, np.where(births < 1, ids + size, ids))

    def own(self, entity: str, owner: str, owners: Ids) -> Ids:
        """The one ``entity`` (without churn) of each ``owner``: a user's city, an item's brand."""
        chances = uniform(self.hashes(f"{entity} of {owner}", owners))
        return self.pick(entity, chances, np.zeros(1))
