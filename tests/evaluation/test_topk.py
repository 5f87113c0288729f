import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from opabinia.evaluation.classification.topk import TopK, count_topk_hits

NAN, INF = math.nan, math.inf


def hit(logits: list[float], label: int, k: int) -> bool:
    return bool(count_topk_hits(torch.tensor([logits]), torch.tensor([label]), [k]))


@pytest.mark.parametrize(("label", "place"), [(2, 1), (0, 2), (1, 3)])
def test_places(label: int, place: int) -> None:
    found = [hit([0.5, -1, 3], label, k) for k in (1, 2, 3)]
    assert found == [k >= place for k in (1, 2, 3)]


def test_of_equal_logits_the_smaller_class_counts_as_larger() -> None:
    assert [hit([1, 1, 1], label, 1) for label in range(3)] == [True, False, False]
    assert [hit([1, 1, 1], label, 2) for label in range(3)] == [True, True, False]
    assert [hit([0, 2, 2], label, 1) for label in range(3)] == [False, True, False]


@pytest.mark.parametrize("logits", [[NAN, 0.0], [0.0, NAN], [INF, 0.0], [-INF, 0.0]])
def test_logits_that_are_not_finite_are_misses_for_every_k(logits: list[float]) -> None:
    assert not any(hit(logits, label, k) for label in (0, 1) for k in (1, 2, 5))


def test_a_broken_row_leaves_the_others_alone() -> None:
    logits = torch.tensor([[NAN, 0], [1, 0], [0, 1]])
    assert count_topk_hits(logits, torch.tensor([0, 0, 0]), [1, 2]).tolist() == [1, 2]


def test_more_places_than_classes() -> None:
    assert count_topk_hits(torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([0, 0]), [1, 5]).tolist() == [1, 2]


def test_no_samples() -> None:
    assert count_topk_hits(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), [1, 5]).tolist() == [0, 0]


@given(st.data())
def test_it_agrees_with_sorting(data: st.DataObject) -> None:
    """Python's sort is stable, so classes of equal logits stay in their order."""
    count, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    rows = data.draw(st.lists(st.lists(st.integers(-2, 2), min_size=classes, max_size=classes), min_size=count))
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    ks = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    best = [sorted(range(classes), key=lambda c, row=row: -row[c]) for row in rows]  # type: ignore[misc]
    expected = [sum(label in order[:k] for order, label in zip(best, labels, strict=True)) for k in ks]
    assert count_topk_hits(torch.tensor(rows).float(), torch.tensor(labels), ks).tolist() == expected


# --- the accumulator --------------------------------------------------------------------------------------------------


def seen(logits: Tensor, labels: Tensor, *sizes: int) -> TopK:
    top = TopK((1, 5))
    for part, right in zip(logits.split(sizes), labels.split(sizes), strict=True):
        top.update({"logits": part}, {"label": right})
    return top


def test_scores_are_the_same_however_the_batches_fall() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(90, 10), torch.randint(0, 10, (90,))
    alone = seen(logits, labels, 90)
    scores = alone.compute([alone.state()])
    top1 = (logits.argmax(1) == labels).float().mean().item()
    assert scores == {"top1": pytest.approx(top1), "top5": pytest.approx(0.5, abs=0.15)}
    for sizes in ((45, 45), (1, 88, 1), (0, 90)):
        assert alone.compute([seen(logits, labels, *sizes).state()]) == scores
    shards = [seen(logits[:30], labels[:30], 30), seen(logits[30:], labels[30:], 11, 49), TopK((1, 5))]
    assert alone.compute([shard.state() for shard in shards]) == scores, "processes, one of which has seen nothing"


def test_nothing_seen_gives_no_scores() -> None:
    assert TopK().compute([TopK().state(), TopK().state()]) == {}


def test_better_names_the_scores_and_the_first_is_the_headline() -> None:
    assert list(TopK((1, 5)).better.items()) == [("top1", "max"), ("top5", "max")]


def test_the_state_is_plain() -> None:
    found = seen(torch.eye(3), torch.tensor([0, 1, 0]), 3).state()
    assert found == ([2, 3], 3)
    assert all(type(number) is int for number in [*found[0], found[1]])
