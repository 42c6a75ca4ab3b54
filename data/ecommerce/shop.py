"""The shop behind the log: who is shown what, and how likely they click, put in cart and buy.

Nothing is stored about an id. What it is (an item's category, a user's city) and what it does to
the three probabilities are functions of its number and the seed, through a 64-bit mixer, so that

* an effect is drawn once per id, independently of how frequent the id is;
* a shop of any size costs the same memory;
* every block of rows can be made alone, and always comes out the same.

Ids are numbered by popularity (0 is the most frequent); files hold a mixed 64-bit value or a name.

Shapes: B rows of a block, L places of a list.
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
NUM_DAYS = 28
NUM_VIEWED, NUM_BOUGHT = 8, 3
LIST_STEPS = 56  # a user's list of viewed items moves on twice a day


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
    "user": Entity(500_000, 1.05, True, 0.3, (0.45, 0.4, 0.4)),
    "item": Entity(450_000, 1.05, True, 0.3, (0.5, 0.5, 0.4)),
    "query": Entity(400_000, 1.05, True, 0.3, (0.4, 0.3, 0.0)),
    "seller": Entity(60_000, 1.05, True, 0.1, (0.3, 0.3, 0.3)),
    "brand": Entity(20_000, 1.05, True, 0.1, (0.35, 0.2, 0.3)),
    "category": Entity(2_000, 1.05, effects=(0.4, 0.3, 0.3)),
    "department": Entity(30, 1.05, effects=(0.2, 0.2, 0.1)),
    "campaign": Entity(40_000, 1.05, True, 0.5, (0.4, 0.2, 0.0)),
    "coupon": Entity(25_000, 1.05, True, 0.5, (0.2, 0.4, 0.6)),
    "referrer": Entity(10_000, 1.05, True, 0.1, (0.35, 0.2, 0.0)),
    "device": Entity(3_000, 1.05, False, 0.1, (0.25, 0.1, 0.1)),
    "city": Entity(8_000, 1.05, effects=(0.2, 0.0, 0.1)),
    "region": Entity(200, 1.05, effects=(0.15, 0.0, 0.2)),
    "warehouse": Entity(300, 1.05, effects=(0.0, 0.2, 0.2)),
    "position": Entity(60, 0.6, effects=(0.35, 0.0, 0.0)),
    "membership": Entity(5, 0.6, effects=(0.15, 0.2, 0.3)),
    "hour": Entity(24, 0.0, effects=(0.15, 0.1, 0.1)),
    "weekday": Entity(7, 0.0, effects=(0.1, 0.1, 0.1)),
    "viewed": Entity(0, effects=(0.5, 0.3, 0.3)),  # second effect of an item: as one viewed before
    "bought": Entity(0, effects=(0.4, 0.2, 0.4)),  # third: as one bought before
}

# Pairs whose agreement (a dot product of four hidden numbers each) moves the log-odds of click.
PAIRS = {
    ("category", "region"): 0.35,
    ("category", "hour"): 0.3,
    ("category", "membership"): 0.3,
    ("brand", "department"): 0.25,
    ("campaign", "department"): 0.25,
    ("position", "device"): 0.2,
    ("user", "department"): 0.25,
}
AFFINITY = 0.4  # of the item's category with the mean of those viewed

BIAS = (-2.0, -1.55, -1.1)
CARRY = 0.4  # of the click's log-odds that cart, and of cart's that buy, have too


def mix(values: Hashes) -> Hashes:
    """A bijection of 64-bit values that looks random (splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniform(hashes: Hashes) -> NDArray[np.float64]:
    """Numbers in [0, 1)."""
    return (hashes >> np.uint64(11)) * 2.0**-53


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

    def own(self, entity: str, owner: str, owners: Ids, time: NDArray[np.float64]) -> Ids:
        """The one ``entity`` that belongs to each ``owner``: a user's city, an item's brand."""
        return self.pick(entity, uniform(self.hashes(f"{entity} of {owner}", owners)), time * 0)


@dataclass(frozen=True)
class Impressions:
    """A block of rows before it is written: ids by entity, numbers and probabilities.

    Attributes:
        milliseconds: since the start of the log, ascending.
        ids: by entity, of shape B; -1 is null.
        lists: "viewed" and "bought": items of shape BL, -1 past the end; and rows that are null.
        numbers: dense columns of shape B; NaN is null.
        probabilities: of click, of cart and of buy, each of shape B and not given the one before.
        labels: 0 or 1, drawn from them; a cart needs a click, a buy needs a cart.
    """

    milliseconds: Ids
    ids: dict[str, Ids]
    lists: dict[str, tuple[Ids, NDArray[np.bool_]]]
    numbers: dict[str, NDArray[np.float64]]
    probabilities: dict[str, NDArray[np.float64]]
    labels: dict[str, NDArray[np.int8]]


def make_impressions(
    shop: Shop, first: int, last: int, *, total: int, rng: np.random.Generator
) -> Impressions:
    """Rows ``first`` to ``last`` (excluded) of a log of ``total`` rows."""
    day = _days(first, last, total)
    time = day / NUM_DAYS
    ids = _draw_ids(shop, time, rng)
    ids["hour"] = (day % 1 * 24).astype(np.int64)
    ids["weekday"] = day.astype(np.int64) % 7
    lists = _draw_lists(shop, ids["user"], time, rng)
    numbers = _draw_numbers(shop, ids, day, rng)
    _set_nulls(ids, rng)
    probabilities, labels = _draw_labels(shop, ids, lists, numbers, rng)
    return Impressions(
        milliseconds=(day * 86_400_000).astype(np.int64),
        ids=ids,
        lists=lists,
        numbers=numbers,
        probabilities=probabilities,
        labels=labels,
    )


def _days(first: int, last: int, total: int) -> NDArray[np.float64]:
    """Time of each row, in days from the start; nights are quiet."""
    day = np.arange(first, last) * (NUM_DAYS / total)
    return day + 0.8 / (2 * np.pi) * np.sin(2 * np.pi * day)


def _draw_ids(shop: Shop, time: NDArray[np.float64], rng: np.random.Generator) -> dict[str, Ids]:
    def draw(entity: str) -> Ids:
        return shop.pick(entity, rng.random(len(time)), time)

    names = ("user", "item", "query", "campaign", "coupon", "referrer", "position")
    ids = {name: draw(name) for name in names}
    user, item = ids["user"], ids["item"]
    ids["category"] = shop.own("category", "item", item, time)
    ids["department"] = shop.own("department", "category", ids["category"], time)
    ids["brand"] = shop.own("brand", "item", item, time)
    ids["seller"] = shop.own("seller", "item", item * 3 + rng.integers(3, size=len(item)), time)
    ids["warehouse"] = shop.own("warehouse", "seller", ids["seller"], time)
    ids["city"] = shop.own("city", "user", user, time)
    ids["region"] = shop.own("region", "city", ids["city"], time)
    ids["membership"] = shop.own("membership", "user", user, time)
    ids["device"] = shop.own("device", "user", user * 2 + rng.integers(2, size=len(user)), time)
    return ids


def _draw_lists(
    shop: Shop, user: Ids, time: NDArray[np.float64], rng: np.random.Generator
) -> dict[str, tuple[Ids, NDArray[np.bool_]]]:
    """Each user goes through a stream of items; viewed are the latest, bought some before."""
    step = (time * LIST_STEPS).astype(np.int64) + 1_000_000
    lists = {}
    for name, length, newest in (("viewed", NUM_VIEWED, 0), ("bought", NUM_BOUGHT, NUM_VIEWED)):
        places = step[:, None] - newest - np.arange(length)
        hashes = shop.hashes("stream", user[:, None] * 2_000_000 + places)
        items = shop.pick("item", uniform(hashes), time[:, None])
        lengths = (shop.hashes(f"length {name}", user * 4_000 + step % 4_000 // 4)) % np.uint64(
            length + 1
        )
        is_null = rng.random(len(user)) < 0.03
        past = is_null[:, None] | (np.arange(length) >= lengths.astype(np.int64)[:, None])
        lists[name] = (np.where(past, -1, items), is_null)
    return lists


def _draw_numbers(
    shop: Shop, ids: dict[str, Ids], day: NDArray[np.float64], rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    num_rows = len(day)
    level = bell(shop.hashes("price", ids["category"])) * 0.8
    own = bell(shop.hashes("price of item", ids["item"])) * 0.6
    rating = 4 + 0.5 * bell(shop.hashes("rating", ids["item"]))
    rating[uniform(shop.hashes("rated", ids["item"])) < 0.1] = np.nan
    delivery = 1 + rng.exponential(2.5, num_rows)
    delivery[rng.random(num_rows) < 0.03] = np.nan
    return {
        "price": np.round(np.exp(3.0 + level + own).astype(np.float64), 2),
        "discount": np.round(np.maximum(0, rng.random(num_rows) * 0.9 - 0.4), 2),
        "hour_of_day": day % 1 * 24,
        "rating": np.round(np.clip(rating, 1, 5).astype(np.float64), 1),
        "delivery_days": np.round(delivery, 1),
        "session_depth": rng.geometric(0.12, num_rows).astype(np.float64),
    }


def _set_nulls(ids: dict[str, Ids], rng: np.random.Generator) -> None:
    shares = {"query": 0.25, "coupon": 0.6, "brand": 0.03, "city": 0.04, "referrer": 0.3}
    for name, share in shares.items():
        ids[name] = np.where(rng.random(len(ids[name])) < share, -1, ids[name])


def _draw_labels(
    shop: Shop,
    ids: dict[str, Ids],
    lists: dict[str, tuple[Ids, NDArray[np.bool_]]],
    numbers: dict[str, NDArray[np.float64]],
    rng: np.random.Generator,
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.int8]]]:
    num_rows = len(ids["user"])
    odds = np.zeros(num_rows, np.float64)
    reached = np.ones(num_rows, np.float64)
    label = np.ones(num_rows, np.int8)
    probabilities, labels = {}, {}
    for task, name in enumerate(TASKS):
        odds = CARRY * odds if task else odds
        odds = odds + _effects(shop, ids, lists, task) + _number_effects(numbers, task)
        if task == 0:
            odds += _pairs(shop, ids, lists["viewed"][0])
        chance = 1 / (1 + np.exp(-(odds + BIAS[task])))
        reached = reached * chance
        label = label * (rng.random(num_rows) < chance).astype(np.int8)
        probabilities[name], labels[name] = reached, label
    return probabilities, labels


def _effects(
    shop: Shop, ids: dict[str, Ids], lists: dict[str, tuple[Ids, NDArray[np.bool_]]], task: int
) -> NDArray[np.float64]:
    """Sum of the effects of a row's ids; null has none, a list has the mean of its items'."""
    total = np.zeros(len(ids["user"]), np.float64)
    for name, values in ids.items():
        if ENTITIES[name].effects[task]:
            total += np.where(values < 0, 0, shop.effects(name, values, task=task))
    for name, (items, _) in lists.items():
        there = items >= 0
        total += _mean(shop.effects(name, items, task=task), there)
    return total


def _mean(values: Floats, there: NDArray[np.bool_]) -> Floats:
    """Mean over the second axis of the values that are there, 0 where none is."""
    there = there.reshape(there.shape + (1,) * (values.ndim - 2))
    return (values * there).sum(1) / np.maximum(1, there.sum(1))


def _pairs(shop: Shop, ids: dict[str, Ids], viewed: Ids) -> NDArray[np.float64]:
    hidden = {name: shop.hidden(name, ids[name]) for name in {n for pair in PAIRS for n in pair}}
    total = np.zeros(len(viewed), np.float64)
    for (left, right), weight in PAIRS.items():
        product_ = (hidden[left] * hidden[right]).sum(-1) * (weight / 2)
        total += np.where((ids[left] < 0) | (ids[right] < 0), 0, product_)
    categories = shop.own("category", "item", viewed, np.zeros(1))
    taste = _mean(shop.hidden("category", categories), viewed >= 0)
    return total + (AFFINITY / 2) * (taste * hidden["category"]).sum(-1)


def _number_effects(numbers: dict[str, NDArray[np.float64]], task: int) -> NDArray[np.float64]:
    rating = np.nan_to_num(numbers["rating"] - 4)
    delivery = np.nan_to_num(numbers["delivery_days"] - 3.5)
    price = np.log(numbers["price"]) - 3
    depth = np.log1p(numbers["session_depth"]) - 2
    discount = numbers["discount"] - 0.13
    terms = (price, discount, rating, delivery, depth)
    weights = (
        (-0.15, 1.2, 0.3, 0.0, -0.25),
        (-0.2, 0.8, 0.2, -0.08, 0.1),
        (-0.2, 0.5, 0.1, -0.1, 0.0),
    )[task]
    return sum(
        (weight * term for weight, term in zip(weights, terms, strict=True)), np.zeros(len(price))
    )


SYLLABLES = [a + b for a, b in product("bdfgklmnprstvz", "aeiou")]
