import hashlib

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from edorec.data.hashing import NULL_HASH, IdHasher, hash_integer, hash_text, mix, unmix

MASK = 2**64 - 1


def splitmix64(value: int) -> int:
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_mix_is_splitmix64_and_unmix_undoes_it(values: list[int]) -> None:
    words = np.array(values, dtype=np.int64)
    hashes = mix(words.view(np.uint64))
    assert hashes.tolist() == [splitmix64(value & MASK) for value in values]
    assert unmix(hashes).tolist() == values


def test_reference_value_of_splitmix64() -> None:
    assert hash_integer(0) == 0xE220A8397B1DCDAF


@given(st.integers(-(2**63), 2**64 - 1))
def test_text_of_an_integer_hashes_like_the_integer(value: int) -> None:
    kind = pa.uint64() if value >= 0 else pa.int64()
    hashes = IdHasher()(pa.array([value], kind))
    assert hash_text(str(value)) == hash_integer(value) == int(hashes[0])


def test_other_spellings_are_other_ids() -> None:
    texts = ["7", "07", "+7", " 7", "7.0", "-0", "0", str(2**64), "-9223372036854775809", ""]
    assert len({hash_text(text) for text in texts}) == len(texts)
    expected = int.from_bytes(hashlib.blake2b(b"07", digest_size=8).digest(), "little")
    assert hash_text("07") == expected


def test_largest_unsigned_is_not_minus_one() -> None:
    assert hash_integer(2**64 - 1) != hash_integer(-1)


def test_every_flavour_of_the_same_ids_hashes_alike() -> None:
    texts = ["5", "17", None, "5"]
    expected = [hash_integer(5), hash_integer(17), int(NULL_HASH), hash_integer(5)]
    integers = [5, 17, None, 5]
    arrays = [
        pa.array(integers, kind) for kind in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())
    ]
    arrays += [pa.array(texts, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    arrays += [
        pa.array(texts).dictionary_encode(),
        pa.array(integers, pa.int32()).dictionary_encode(),
        pa.array(["x", *texts]).slice(1),
        pa.DictionaryArray.from_arrays(pa.array([1, 2, 0, 1]), pa.array([None, "5", "17"])),
    ]
    for array in arrays:
        assert IdHasher()(array).tolist() == expected, array.type


def test_collects_only_ids_that_hashes_do_not_give_back() -> None:
    hasher = IdHasher()
    hasher(pa.array(["a", "7", "a", None]))
    hasher(pa.array([3, 2**63], pa.uint64()))
    assert sorted(hasher.take_texts().values()) == ["9223372036854775808", "a"]
    assert hasher.take_texts() == {}
