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


@pytest.mark.parametrize(("label", "rank"), [(2, 1), (0, 2), (1, 3)])
def test_hits_from_the_rank_of_the_label(label: int, rank: int) -> None:
    hits = [hit([0.5, -1, 3], label, k) for k in (1, 2, 3)]
    assert hits == [k >= rank for k in (1, 2, 3)]


def test_equal_logits_rank_in_class_order() -> None:
    assert [hit([1, 1, 1], label, 1) for label in range(3)] == [True, False, False]
    assert [hit([1, 1, 1], label, 2) for label in range(3)] == [True, True, False]
    assert [hit([0, 2, 2], label, 1) for label in range(3)] == [False, True, False]


@pytest.mark.parametrize("logits", [[NAN, 0.0], [0.0, NAN], [INF, 0.0], [-INF, 0.0]])
def test_non_finite_logits_are_misses_for_every_k(logits: list[float]) -> None:
    assert not any(hit(logits, label, k) for label in (0, 1) for k in (1, 2, 5))


def test_a_non_finite_row_does_not_affect_the_others() -> None:
    logits = torch.tensor([[NAN, 0], [1, 0], [0, 1]])
    assert count_topk_hits(logits, torch.tensor([0, 0, 0]), [1, 2]).tolist() == [1, 2]


def test_hits_on_other_devices_are_counted_without_waiting() -> None:
    """Tensors on the device meta have no values that the host could read."""
    hits = count_topk_hits(torch.empty(3, 4, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"), (1, 2))
    assert hits.shape == (2,)


def test_k_may_exceed_the_number_of_classes() -> None:
    assert count_topk_hits(torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([0, 0]), [1, 5]).tolist() == [1, 2]


def test_no_samples_give_no_hits() -> None:
    assert count_topk_hits(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), [1, 5]).tolist() == [0, 0]


@given(st.data())
def test_hits_agree_with_sorting(data: st.DataObject) -> None:
    """Python's sort is stable, so classes with equal logits stay in order."""
    count, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    rows = data.draw(st.lists(st.lists(st.integers(-2, 2), min_size=classes, max_size=classes), min_size=count))
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=len(rows), max_size=len(rows)))
    ks = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))
    best = [sorted(range(classes), key=lambda c, row=row: -row[c]) for row in rows]  # type: ignore[misc]
    expected = [sum(label in order[:k] for order, label in zip(best, labels, strict=True)) for k in ks]
    assert count_topk_hits(torch.tensor(rows).float(), torch.tensor(labels), ks).tolist() == expected


# --- the accumulator --------------------------------------------------------------------------------------------------


def updated_topk(logits: Tensor, labels: Tensor, *sizes: int) -> TopK:
    top = TopK((1, 5))
    for batch_logits, batch_labels in zip(logits.split(sizes), labels.split(sizes), strict=True):
        top.update({"logits": batch_logits}, {"label": batch_labels})
    return top


def test_scores_do_not_depend_on_batches() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(90, 10), torch.randint(0, 10, (90,))
    single_process = updated_topk(logits, labels, 90)
    scores = single_process.compute([single_process.state()])
    top1 = (logits.argmax(1) == labels).float().mean().item()
    assert scores == {"top1": pytest.approx(top1), "top5": pytest.approx(0.5, abs=0.15)}
    for sizes in ((45, 45), (1, 88, 1), (0, 90)):
        assert single_process.compute([updated_topk(logits, labels, *sizes).state()]) == scores
    shards = [updated_topk(logits[:30], labels[:30], 30), updated_topk(logits[30:], labels[30:], 11, 49), TopK((1, 5))]
    assert single_process.compute([shard.state() for shard in shards]) == scores, "one of the processes has no samples"


def test_the_state_consists_of_python_ints() -> None:
    state = updated_topk(torch.eye(3), torch.tensor([0, 1, 0]), 3).state()
    assert state == ([2, 3], 3)
    assert all(type(number) is int for number in [*state[0], state[1]])
