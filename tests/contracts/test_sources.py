"""Facts about samples, and how they change with the samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, RaggedArray, Sample, Source, SourceInfo

INFO = SourceInfo(
    channels=1,
    classes=("a", "b", "c"),
    labels=np.array([2, 0, 1, 1]),
    sizes=np.array([[1, 2], [3, 4], [5, 6], [7, 8]]),
    cameras=np.array([0, 1, 0, 1]),
    shards=np.array([3, 1]),
    starts=(0, 3),
    boxes=True,
    category_ids=(7, 8, 9),
    present=RaggedArray([[0], [], [0, 2], [1]]),
    colors=((1, 1, 1), (2, 2, 2), (3, 3, 3)),
)


def test_a_selection_has_the_facts_of_its_samples() -> None:
    chosen = INFO.select(np.array([2, 0, 2]))
    assert np.asarray(chosen.labels).tolist() == [1, 2, 1] and chosen.labels_of(1) == {"label": 2, "camera": 0}
    assert np.asarray(chosen.sizes).tolist() == [[5, 6], [1, 2], [5, 6]]
    assert [own.tolist() for own in chosen.present or ()] == [[0, 2], [0], [0, 2]]
    assert chosen.shards is chosen.starts is chosen.queries is None, "samples of a selection lie anywhere"


def test_merged_classes() -> None:
    merged = INFO.relabel(("x", "y"), np.array([1, 0, 1]))
    assert merged.classes == ("x", "y") and np.asarray(merged.labels).tolist() == [1, 1, 0, 0]
    assert [own.tolist() for own in merged.present or ()] == [[1], [], [1], [0]]
    assert merged.category_ids == (1, 2) and merged.colors == () and merged.cameras is INFO.cameras
    several = SourceInfo(classes=("a", "b", "c"), labels=np.eye(3, dtype=np.float32), multi_label=True)
    assert np.asarray(several.relabel(("x", "y"), np.array([1, 0, 1])).labels).tolist() == [[0, 1], [1, 0], [0, 1]]
    assert several.single_labels is None and torch.equal(several.labels_of(1)["label"], torch.tensor([0.0, 1, 0]))


def test_a_concatenation_knows_what_all_its_sources_know() -> None:
    both = SourceInfo.concat([INFO, INFO])
    assert np.asarray(both.labels).tolist() == [2, 0, 1, 1] * 2 and both.category_ids == (7, 8, 9)
    assert len(both.present or ()) == 8 and both.cameras is None, "cameras of several sources may differ"
    partly = SourceInfo.concat([INFO, SourceInfo(channels=1, classes=INFO.classes, sizes=INFO.sizes)])
    assert partly.labels is partly.present is None and partly.category_ids == () and not partly.boxes
    assert np.asarray(partly.sizes).shape == (8, 2)
    assert both.colors == () and not SourceInfo.concat([replace(INFO, maps=True), INFO]).maps


def test_all_facts_but_the_number_of_samples_have_a_name() -> None:
    assert DatasetInfo(4, channels=1) == DatasetInfo(samples=4, channels=1)
    with pytest.raises(TypeError, match="positional"):
        DatasetInfo(4, 1)  # type: ignore[misc]


class Plain(Source):
    info = SourceInfo(classes=("a",))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Sample:
        return {"label": 0, "id": f"sample/{index}"}


def test_defaults_of_a_source() -> None:
    source = Plain()
    assert (source.channels, source.classes) == (3, ("a",)) and source.encoded(1) == source[1]
    assert source.id(1) == "sample/1" and source.paths(1) == () and source.batch(np.arange(2)) is None
    assert source.fingerprint() == "2 samples, 1 classes" and source.relabeled(("b",), np.array([0])) is None
    assert list(source.split_keys()) == ["sample/0", "sample/1"] and source.select(np.array([1])) is None


def test_some_lists_of_a_ragged_array() -> None:
    chosen = RaggedArray([[1, 2], [], [3]]).select(np.array([2, 0, 1]))
    assert [own.tolist() for own in chosen] == [[3], [1, 2], []]
