"""Rows of the log: who is shown what, how likely they click, put in cart and buy, and do they.

Shapes: B rows of a block, L places of a list.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shop import ENTITIES, TASKS, Floats, Ids, Shop, bell, uniform

NUM_DAYS = 28
NUM_VIEWED, NUM_BOUGHT = 8, 3
LIST_STEPS = 56  # a user's list of viewed items moves on twice a day

# Pairs whose agreement (a dot product of four hidden numbers each) moves the log-odds of click.
PAIRS = {
    ("category", "region"): 0.25,
    ("category", "hour"): 0.25,
    ("category", "membership"): 0.3,
    ("brand", "department"): 0.25,
    ("campaign", "department"): 0.25,
    ("position", "device"): 0.2,
    ("user", "department"): 0.25,
}
AFFINITY = 0.4  # of the item's category with the mean of those viewed

BIAS = (-2.1, -1.55, -1.1)
CARRY = 0.4  # of the click's log-odds that cart, and of cart's that buy, have too

Lists = dict[str, tuple[Ids, NDArray[np.bool_]]]


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
    lists: Lists
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
    ids["category"] = shop.own("category", "item", item)
    ids["department"] = shop.own("department", "category", ids["category"])
    ids["brand"] = shop.own("brand", "item", item)
    ids["seller"] = shop.own("seller", "item", item * 3 + rng.integers(3, size=len(item)))
    ids["warehouse"] = shop.own("warehouse", "seller", ids["seller"])
    ids["city"] = shop.own("city", "user", user)
    ids["region"] = shop.own("region", "city", ids["city"])
    ids["membership"] = shop.own("membership", "user", user)
    ids["device"] = shop.own("device", "user", user * 2 + rng.integers(2, size=len(user)))
    return ids


def _draw_lists(
    shop: Shop, user: Ids, time: NDArray[np.float64], rng: np.random.Generator
) -> Lists:
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
    lists: Lists,
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


def _effects(shop: Shop, ids: dict[str, Ids], lists: Lists, task: int) -> NDArray[np.float64]:
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
    mean: Floats = (values * there).sum(1) / np.maximum(1, there.sum(1))
    return mean


def _pairs(shop: Shop, ids: dict[str, Ids], viewed: Ids) -> NDArray[np.float64]:
    hidden = {name: shop.hidden(name, ids[name]) for name in {n for pair in PAIRS for n in pair}}
    total = np.zeros(len(viewed), np.float64)
    for (left, right), weight in PAIRS.items():
        agreement = (hidden[left] * hidden[right]).sum(-1) * (weight / 2)
        total += np.where((ids[left] < 0) | (ids[right] < 0), 0, agreement)
    categories = shop.own("category", "item", viewed)
    taste = _mean(shop.hidden("category", categories), viewed >= 0)
    total += (AFFINITY / 2) * (taste * hidden["category"]).sum(-1)
    return total


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
