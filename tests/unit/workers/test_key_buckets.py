"""The numbers of keys that recorded frames look at."""

from hypothesis import given
from hypothesis import strategies as st

from workers.decisions.key_buckets import key_bucket, key_buckets


@given(max_len=st.integers(1, 200_000), data=st.data())
def test_every_position_has_one_that_holds_it_and_is_not_much_longer(max_len: int, data: st.DataObject) -> None:
    end = data.draw(st.integers(1, max_len))
    buckets, chosen = key_buckets(max_len), key_bucket(end, max_len)
    assert chosen == min(bucket for bucket in buckets if bucket >= end)
    assert chosen <= max(256, 2 * end)
    assert buckets == sorted(set(buckets))
    assert len(buckets) < 12
