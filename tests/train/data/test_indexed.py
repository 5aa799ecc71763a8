"""Megatron's files: every integer type byte for byte, and each way in which they can be damaged."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from seatrial.train.data.indexed import DTYPES, read_indexed, write_indexed


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda kind: kind.__name__)
def test_every_integer_type_comes_back_byte_for_byte(tmp_path, rng, dtype):
    limits = np.iinfo(dtype)
    sequences = [rng.integers(limits.min, limits.max, n, dtype=dtype, endpoint=True) for n in (3, 0, 1, 1000, 7)]
    assert write_indexed(tmp_path / "a.b", dtype, sequences) == (5, 1011)
    got = read_indexed(tmp_path / "a.b")
    assert len(got) == 5
    for i, sequence in enumerate(sequences):
        assert got[i].dtype == dtype
        np.testing.assert_array_equal(got[i], sequence)
    assert np.memmap(tmp_path / "a.b.bin", dtype, "r").tobytes() == np.concatenate(sequences).tobytes()
    for name in ("a.b.bin", "a.b.idx"):
        np.testing.assert_array_equal(read_indexed(tmp_path / name)[3], sequences[3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.bin", "a.b.idx"]


def test_the_index_is_laid_out_as_documented(tmp_path):
    write_indexed(tmp_path / "a", np.uint16, [np.arange(2), np.arange(3)])
    assert (tmp_path / "a.idx").read_bytes() == (
        b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 8) + struct.pack("<QQ", 2, 3)
        + struct.pack("<2i", 2, 3) + struct.pack("<2q", 0, 4) + struct.pack("<3q", 0, 1, 2)
    )  # fmt: skip


def test_sequences_may_lie_in_any_order(tmp_path):
    np.arange(10, dtype=np.int32).tofile(tmp_path / "a.bin")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 2)
    (tmp_path / "a.idx").write_bytes(header + struct.pack("<2i2q2q", 3, 4, 20, 0, 0, 1))
    got = read_indexed(tmp_path / "a")
    assert (got[0].tolist(), got[1].tolist()) == ([5, 6, 7], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda idx, content: (b"", content), "not an index of Megatron's"),
        (lambda idx, content: (idx[:20], content), "cut off in its header, after 20 bytes"),
        (lambda idx, content: (b"PK" + idx[2:], content), "not an index of Megatron's"),
        (lambda idx, content: (idx[:9] + struct.pack("<Q", 2) + idx[17:], content), "version 2, type 4"),
        (lambda idx, content: (idx[:17] + b"\x06" + idx[18:], content), "version 1, type 6"),
        (lambda idx, content: (idx[:-1], content), r"need 82 bytes, and there are 81"),
        (lambda idx, content: (idx + b"\x00", content), r"need 82 bytes, and there are 83"),
        (lambda idx, content: (idx[:18] + struct.pack("<Q", 1 << 60) + idx[26:], content), "and there are 82"),
        (lambda idx, content: (idx[:34] + struct.pack("<i", -1) + idx[38:], content), "sequence 0 has -1 tokens"),
        (lambda idx, content: (idx[:42] + struct.pack("<q", -4) + idx[50:], content), "from byte -4 on"),
        (lambda idx, content: (idx[:50] + struct.pack("<q", 9) + idx[58:], content), "sequence 1 .* from byte 9 on"),
        (lambda idx, content: (idx, content[:-1]), "sequence 1 has 5 tokens from byte 12 on, and a.bin has 31 bytes"),
        (lambda idx, content: (idx, None), "a.bin: no such file"),
    ],
)
def test_damage_is_named(tmp_path, damage, message):
    write_indexed(tmp_path / "a", np.int32, [np.arange(3), np.arange(5)])
    idx, content = damage((tmp_path / "a.idx").read_bytes(), (tmp_path / "a.bin").read_bytes())
    (tmp_path / "a.idx").write_bytes(idx)
    (tmp_path / "a.bin").unlink()
    if content is not None:
        (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_indexed(tmp_path / "a")


def test_what_may_not_be_read_is_named(tmp_path):
    write_indexed(tmp_path / "a", np.int32, [np.arange(3)])
    (tmp_path / "a.idx").unlink()
    (tmp_path / "a.idx").symlink_to("/proc/self/mem")  # which nobody can read from its beginning, not even root
    with pytest.raises(ValueError, match=r"a.idx: cannot be read \(Input/output error\); correct its permissions"):
        read_indexed(tmp_path / "a")


def test_nothing_is_left_where_writing_fails(tmp_path):
    def sequences():
        yield np.arange(3)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_indexed(tmp_path / "a", np.int32, sequences())
    assert list(tmp_path.iterdir()) == []
