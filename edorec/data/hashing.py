"""The 64-bit hash of a raw id: the same for every width, flavour and platform.

An integer is mixed with splitmix64, which maps 64-bit words one to one, so distinct integers never
collide and the integer can be read back from its hash. Integers from 2^63 on are mixed twice, so
that 2^64 - 1 is not -1. A string that spells an integer of [-2^63, 2^64) the canonical way ("7",
"-1", not "07" or "+7") hashes like that integer, so a vocabulary may mix integers and their texts.
Any other string hashes to the first 8 bytes of its blake2b, little endian: two of n strings collide
with probability n^2 / 2^65, and would then share a row. A null id has a hash of its own.
"""

import hashlib
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64 = npt.NDArray[np.uint64]

NULL_HASH = np.uint64(0x9E6C63D0876A9A47)
_CANONICAL = re.compile(r"0|-?[1-9][0-9]{0,19}")
_STRING_CACHE = 1 << 17


def mix(words: U64) -> U64:
    """splitmix64 of 64-bit words."""
    z = words + np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def unmix(hashes: U64) -> npt.NDArray[np.int64]:
    """The int64 whose ``mix`` each hash is."""
    z = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    z *= np.uint64(0x319642B2D24D8EC3)
    z ^= (z >> np.uint64(27)) ^ (z >> np.uint64(54))
    z *= np.uint64(0x96DE1B173F119089)
    z ^= (z >> np.uint64(30)) ^ (z >> np.uint64(60))
    z -= np.uint64(0x9E3779B97F4A7C15)
    values: npt.NDArray[np.int64] = z.view(np.int64)
    return values


def hash_integer(value: int) -> int:
    """Hash of an integer of [-2^63, 2^64)."""
    word = np.array([value % (1 << 64)], dtype=np.uint64)
    hashes = mix(word)
    return int(mix(hashes)[0] if value >= 1 << 63 else hashes[0])


def hash_text(text: str) -> int:
    """Hash of a string id."""
    if _CANONICAL.fullmatch(text):
        value = int(text)
        if -(1 << 63) <= value < 1 << 64:
            return hash_integer(value)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def is_integer_text(text: str) -> bool:
    """Whether ``unmix`` of the text's hash gives the text back."""
    return _CANONICAL.fullmatch(text) is not None and -(1 << 63) <= int(text) < 1 << 63


def _pick(values: U64, codes: pa.Array) -> U64:
    picked: U64 = values[codes.to_numpy()]
    return picked


class IdHasher:
    """Hashes the ids of one column chunk by chunk.

    Remembers strings, and collects the ids that a hash does not give back.

    Attributes:
        texts: by hash, ids met since ``take_texts`` that ``unmix`` does not give back; an id may
            come again after very many others.
    """

    def __init__(self) -> None:
        self._cache: dict[str, int] = {}
        self._texts: dict[int, str] = {}

    def take_texts(self) -> dict[int, str]:
        """Texts collected since the last call."""
        texts, self._texts = self._texts, {}
        return texts

    def __call__(self, ids: pa.Array) -> U64:
        """Hashes of integer, bool, string or dictionary ids; ``NULL_HASH`` for null."""
        kind = ids.type
        if pa.types.is_dictionary(kind):
            of_value = np.append(self(ids.dictionary), NULL_HASH)
            codes = pc.fill_null(pc.cast(ids.indices, pa.int64()), len(of_value) - 1)
            return _pick(of_value, codes)
        if pa.types.is_null(kind):
            return np.full(len(ids), NULL_HASH)
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
            return self._integers(ids)
        encoded = pc.dictionary_encode(pc.cast(ids, pa.large_string()))
        of_value = np.append(self._strings(encoded.dictionary.to_pylist()), NULL_HASH)
        codes = pc.fill_null(pc.cast(encoded.indices, pa.int64()), len(of_value) - 1)
        return _pick(of_value, codes)

    def _integers(self, ids: pa.Array) -> U64:
        unsigned = pa.types.is_uint64(ids.type)
        wide = pa.uint64() if unsigned else pa.int64()
        # A call that changes nothing still costs as much as hashing some hundred ids.
        words = ids if ids.type == wide else pc.cast(ids, wide)
        words = pc.fill_null(words, 0) if words.null_count else words
        values = words.to_numpy(zero_copy_only=False).view(np.uint64)
        hashes = mix(values)
        if unsigned and (large := values >= np.uint64(1 << 63)).any():
            hashes[large] = mix(hashes[large])
            pairs = np.unique(values[large])
            self._texts.update(zip(mix(mix(pairs)).tolist(), map(str, pairs.tolist()), strict=True))
        if ids.null_count:
            hashes[pc.is_null(ids).to_numpy(zero_copy_only=False)] = NULL_HASH
        return hashes

    def _strings(self, texts: list[str]) -> U64:
        hashes = np.empty(len(texts), dtype=np.uint64)
        cache = self._cache
        for index, text in enumerate(texts):
            known = cache.get(text)
            if known is None:
                known = hash_text(text)
                if len(cache) < _STRING_CACHE:
                    cache[text] = known
                if not is_integer_text(text):
                    self._texts[known] = text
            hashes[index] = known
        return hashes
