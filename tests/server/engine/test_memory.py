"""The running batch's keys and values, and the prefix cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paretune.policy.backbone import load_backbone, project
from paretune.policy.engine import advance, prefill
from paretune.server.engine.arena import SLACK, Arena
from paretune.server.engine.prefix import BLOCK, PrefixCache
from tiny_models import windowed


@pytest.fixture(scope="module")
def causal(tiny_llama):
    return load_backbone(str(tiny_llama), dtype="float32")[0]


def logits_of(causal, ids):
    """Logits [V] after a sequence, in one pass without a cache."""
    with torch.no_grad():
        return causal(torch.tensor([ids]), use_cache=False).logits[0, -1]


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 40), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    ),
    min_size=2,
    max_size=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_after_any_joins_and_leaves_each_row_reads_its_own_tokens(causal, moves):
    check(causal, moves)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_sliding_windows_span_what_they_span_alone(kind):
    moves = [("join", 5, 1), ("step", 4, 0), ("join", 30, 2), ("step", 3, 0), ("leave", 0, 0), ("step", 3, 0)]
    check(windowed(kind), moves)


def test_rows_move_when_the_edge_is_reached_and_stay_what_they_are(causal):
    check(causal, [("join", 3, 2), ("step", SLACK + 3, 0), ("join", 200, 1), ("step", 2, 0)])


def check(causal, moves):
    arena, rows, draw = Arena(16), [], torch.Generator().manual_seed(0)

    def some(count):
        return torch.randint(5, 390, (count,), generator=draw).tolist()

    for kind, size, times in moves:
        if kind == "join" and len(rows) + times <= 16:
            ids = some(size)
            arena.join(prefill(causal, [some(7), ids], 0), [1] * times)
            rows += [list(ids) for _ in range(times)]
        elif kind == "leave" and rows:
            order = arena.leave(sorted({size % len(rows), times % len(rows)}))
            rows = [rows[row] for row in order]
        elif kind == "step" and rows:
            for _ in range(size):
                tokens = some(len(rows))
                arena.ready()
                with torch.no_grad():
                    advance(causal, arena, tokens)
                    found = project(causal, arena.last_BH)
                rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
            for row, logits in zip(rows, found, strict=True):
                torch.testing.assert_close(logits, logits_of(causal, row), atol=2e-4, rtol=0)
        assert arena.lengths == [len(row) for row in rows]


def test_what_was_there_before_does_not_reach_a_row_that_joins(causal):
    """Not even through a mask: nothing times NaN is NaN."""
    arena = Arena(4)
    arena.join(prefill(causal, [list(range(50, 90))], 0), [0, 0])
    for layer in arena.cache.layers:
        layer.keys[:] = layer.values[:] = float("nan")
    arena.leave([1])
    arena.join(prefill(causal, [[5, 6, 7]], 0))
    arena.leave([0])
    arena.ready()
    advance(causal, arena, [8])
    torch.testing.assert_close(project(causal, arena.last_BH)[0], logits_of(causal, [5, 6, 7, 8]), atol=2e-4, rtol=0)


# --- the prefix cache ---------------------------------------------------------------------------------------------


def layers_of(ids):
    """Two layers whose keys are the token ids, and one that shares another's."""
    keys = torch.tensor(ids, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 4)
    real = [SimpleNamespace(is_initialized=True, keys=keys + i, values=-keys - i) for i in range(2)]
    return [*real, SimpleNamespace(is_initialized=False, keys=None, values=None)]


BYTES = BLOCK * 2 * 4 * 4 * 2 * 2  # tokens, heads, width, of a float, keys and values, layers


def test_the_longest_common_beginning_is_found_in_whole_blocks():
    cache = PrefixCache(1)
    first = list(range(3 * BLOCK + 5))
    cache.keep("m", first, layers_of(first))
    assert cache.bytes == 3 * BYTES
    other = [*first[: 2 * BLOCK + 3], 999, *range(50)]
    length, pairs = cache.find("m", other, len(other))
    assert length == 2 * BLOCK
    assert pairs[0][0][1, :, 3].tolist() == first[: 2 * BLOCK]
    assert pairs[1][1][0, :, 0].tolist() == [-each - 1 for each in first[: 2 * BLOCK]]
    assert pairs[2] is None
    assert cache.find("m", first, 2 * BLOCK - 1)[0] == BLOCK
    assert cache.find("m", first, -1) == (0, [])
    assert cache.find("another", first, len(first)) == (0, [])
    assert cache.find("m", first[1:], len(first)) == (0, [])


def test_what_prompts_have_in_common_is_kept_once():
    cache = PrefixCache(1)
    for last in range(5):
        ids = [*range(2 * BLOCK), *[last] * BLOCK]
        cache.keep("m", ids, layers_of(ids))
    assert cache.bytes == 7 * BYTES


@settings(max_examples=60, deadline=None)
@given(
    uses=st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=5)), min_size=1, max_size=40
    )
)
def test_memory_is_bounded_and_no_block_is_kept_that_cannot_be_reached(uses):
    cache = PrefixCache(1)
    cache.limit = 4 * BYTES
    for keeps, blocks in uses:
        ids = [each for each in blocks for _ in range(BLOCK)]
        if keeps:
            cache.keep("m", ids, layers_of(ids))
            assert cache.find("m", ids, len(ids))[0] == min(len(ids), 4 * BLOCK)
        else:
            cache.find("m", ids, len(ids))
        assert cache.bytes == len(cache._blocks) * BYTES <= cache.limit
        numbers = {block.number for block in cache._blocks.values()}
        assert all(parent == "m" or parent in numbers for parent, _ in cache._blocks)


def test_without_memory_nothing_is_kept():
    cache = PrefixCache(0)
    cache.keep("m", list(range(40)), layers_of(range(40)))
    assert (cache.bytes, cache.find("m", list(range(40)), 40)) == (0, (0, []))
