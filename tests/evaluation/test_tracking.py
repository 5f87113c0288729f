"""Metrics of tracks: cases computed by hand, the rules of ignored boxes, sums of sequences, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opabinia.contracts import DataMismatch
from opabinia.contracts.tracking import Role, TrackGroundTruth, Tracks
from opabinia.evaluation.tracking import pairs as pairs_module
from opabinia.evaluation.tracking.pairs import class_pairs
from opabinia.evaluation.tracking.scores import combine, evaluate_tracks, sequence_sums, sequence_switches
from tests.evaluation.track_scenes import Case, ground_truth, hand_made_cases, predicted, random_case

BOX, HALF, FAR, LOW = (0, 0, 40, 40), (0, 0, 40, 20), (100, 0, 140, 40), (0, 100, 40, 140)


def scores(truth: TrackGroundTruth, tracks: Tracks, classes: tuple[str, ...] = ("a",)) -> dict[str, Any]:
    table: dict[str, Any] = evaluate_tracks({"one": truth}, {"one": tracks}, classes)["class_averaged"]
    return table


def rows(frames: range, track: int, box: tuple[int, ...], *ends: int) -> list[list[int]]:
    return [[frame, track, *box, *ends] for frame in frames]


def test_a_track_that_is_split_in_two() -> None:
    """Of 10 boxes, 6 are tracked as 1 and 4 as 2: every match of the first shares 6 of 10 boxes, of the second 4."""
    truth = ground_truth(rows(range(10), 5, BOX, 0, 0))
    table = scores(truth, predicted(rows(range(6), 1, BOX, 0) + rows(range(6, 10), 2, BOX, 0)))
    assert (table["DetA"], table["LocA"], table["IDSW"], table["Frag"], table["MT"]) == (1, 1, 1, 0, 1)
    assert table["AssA"] == pytest.approx((6 * 0.6 + 4 * 0.4) / 10)
    assert table["AssPr"] == 1 and table["HOTA"] == pytest.approx(0.52**0.5)
    assert table["MOTA"] == pytest.approx(0.9) and table["IDF1"] == pytest.approx(0.6)


def test_boxes_that_overlap_by_half() -> None:
    """An IoU of exactly 0.5 reaches the thresholds up to 0.5: 10 of 19."""
    table = scores(ground_truth(rows(range(4), 1, BOX, 0, 0)), predicted(rows(range(4), 1, HALF, 0)))
    assert table["HOTA"] == pytest.approx(10 / 19)
    assert (table["MOTP"], table["MOTA"], table["IDF1"]) == (0.5, 1, 1)


def test_a_track_that_continues_keeps_its_match() -> None:
    """In frame 1 another predicted box fits better, but the pair of frame 0 still overlaps enough."""
    truth = ground_truth(rows(range(2), 1, BOX, 0, 0))
    tracks = predicted([*rows(range(1), 1, BOX, 0), [1, 1, 0, 0, 40, 24, 0], [1, 2, *BOX, 0]])
    assert scores(truth, tracks)["IDSW"] == 0
    swapped = predicted([*rows(range(1), 1, BOX, 0), [1, 1, 0, 0, 40, 19, 0], [1, 2, *BOX, 0]])
    assert scores(truth, swapped)["IDSW"] == 1


def test_an_interrupted_track() -> None:
    """Frames without any predicted box do not interrupt a track (TrackEval's rule): track 3 has one in each."""
    truth = ground_truth(rows(range(10), 1, BOX, 0, 0) + rows(range(10), 2, FAR, 0, 0) + rows(range(10), 3, LOW, 0, 0))
    gaps = [row for row in rows(range(10), 1, BOX, 0) if row[0] not in (3, 6)]
    table = scores(truth, predicted(gaps + rows(range(1), 2, FAR, 0) + rows(range(10), 3, LOW, 0)))
    assert (table["Frag"], table["MT"], table["PT"], table["ML"]) == (2, 1, 1, 1)
    assert table["recall"] == pytest.approx(19 / 30) and table["precision"] == 1
    assert scores(truth, predicted(gaps))["Frag"] == 0


@pytest.mark.parametrize(
    ("role", "false"),
    [
        pytest.param(Role.COUNTED, 0, id="an object"),
        pytest.param(Role.DISTRACTOR, 0, id="a box that matches a distractor is ignored"),
        pytest.param(Role.EXCLUDED, 3, id="a box that matches an excluded object is false"),
        pytest.param(Role.REGION, 0, id="a box in a region is ignored"),
    ],
)
def test_boxes_that_do_not_count(role: Role, false: int) -> None:
    truth = ground_truth(rows(range(3), 1, BOX, 0, 0) + rows(range(3), 2, FAR, 0 if role == Role.COUNTED else -1, role))
    table = scores(truth, predicted(rows(range(3), 1, BOX, 0) + rows(range(3), 2, FAR, 0)))
    assert (table["FP"], table["FN"], table["TP"]) == (false, 0, 6 if role == Role.COUNTED else 3)


def test_a_box_in_a_region_counts_if_it_matches_an_object_or_is_in_it_by_half_only() -> None:
    truth = ground_truth([*rows(range(1), 1, BOX, 0, 0), [0, 9, 0, 0, 50, 40, 0, Role.REGION]])
    table = scores(truth, predicted([[0, 1, *BOX, 0], [0, 2, 30, 0, 70, 40, 0], [0, 3, 5, 0, 45, 40, 0]]))
    assert (table["TP"], table["FP"]) == (1, 1)


def test_averages_over_classes_and_over_detections() -> None:
    """Class a: one track of 8 boxes, all found; class b: one of 2 boxes, none found; class c: no boxes."""
    truth = ground_truth(rows(range(8), 1, BOX, 0, 0) + rows(range(2), 2, FAR, 1, 0))
    tables = evaluate_tracks({"one": truth}, {"one": predicted(rows(range(8), 1, BOX, 0))}, ("a", "b", "c"))
    assert [row["class"] for row in tables["per_class"]] == ["a", "b"]
    assert tables["class_averaged"]["MOTA"] == 0.5 and tables["detection_averaged"]["MOTA"] == 0.8
    assert tables["class_averaged"]["FN"] == tables["detection_averaged"]["FN"] == 2


@pytest.mark.parametrize("number", range(6))
def test_scores_do_not_depend_on_the_order_of_sequences_and_boxes(number: int) -> None:
    case = random_case(number)
    sums = [sequence_sums(name, case.truths[name], case.tracks[name], len(case.classes)) for name in case.truths]
    expected = combine(sums, case.classes)
    assert combine(sums[::-1], case.classes) == expected

    def shuffled(table: Any) -> Any:
        """Frames in reverse, and the boxes of a frame in their order, which decides between equal IoUs."""
        order = np.argsort(-table.frames, kind="stable")
        return type(table)(*(column[order] for column in table))

    truths = {name: shuffled(truth) for name, truth in case.truths.items()}
    assert (
        evaluate_tracks(truths, {name: shuffled(each) for name, each in case.tracks.items()}, case.classes) == expected
    )


def test_pairs_do_not_depend_on_how_many_are_compared_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(7)
    expected = evaluate_tracks(case.truths, case.tracks, case.classes)
    monkeypatch.setattr(pairs_module, "_CHUNK", 3)
    assert evaluate_tracks(case.truths, case.tracks, case.classes) == expected


def test_pairs_are_the_overlapping_boxes_of_a_frame() -> None:
    truth = ground_truth([[4, 9, *BOX, 0, 0], [2, 9, *BOX, 0, 0]])
    pairs = class_pairs(truth, predicted([[2, 30, *HALF, 0], [4, 20, *FAR, 0], [4, 30, *BOX, 0], [4, 8, *BOX, 1]]), 0)
    assert pairs.frames.tolist() == [2, 4] and pairs.similarity.tolist() == [0.5, 1]
    assert pairs.rows.tolist() == [0, 1] and pairs.columns.tolist() == [0, 2]
    assert pairs.true.ids.tolist() == [0, 0] and pairs.predicted.ids.tolist() == [1, 0, 1]


@pytest.mark.parametrize("case", list(hand_made_cases()))
def test_hand_made_cases_have_scores(case: Case) -> None:
    table = evaluate_tracks(case.truths, case.tracks, case.classes)["class_averaged"]
    boxes = len(case.truths["one"].ids) + len(case.tracks["one"].ids)
    assert bool(table) == bool(boxes)
    assert all(np.isfinite(value) for value in table.values())


@pytest.mark.parametrize(
    ("truth", "tracks", "message"),
    [
        (
            [[0, 1, *BOX, 0, 0]],
            [[3, 7, 0, 0, np.nan, 4, 0]],
            "one, frame 3: the predicted box .* of track 7, label 0, is not finite",
        ),
        ([[0, 1, *BOX, 0, 0]], [[3, 7, 5, 0, 4, 4, 0]], "frame 3: the predicted box .* has its right before its left"),
        ([[0, 1, *BOX, 0, 0]], [[3, 7, *BOX, 1]], "label 1, has a label that is no class: labels are 0 to 0"),
        ([[0, 1, *BOX, 0, 0]], [[3, 7, *BOX, -1]], "label -1, has a label"),
        (
            [[0, 1, *BOX, 0, 0]],
            [[3, 7, *BOX, 0], [3, 7, *FAR, 0]],
            "track 7, label 0, is the second one of this track",
        ),
        ([[0, 1, *BOX, -1, 0]], [], "label -1, has a label that is no class"),
        ([[0, 1, *BOX, 0, 0]] * 2, [], "frame 0: the annotated box .* track 1, label 0, is the second one"),
    ],
)
def test_damaged_tracks(truth: Any, tracks: Any, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        scores(ground_truth(truth), predicted(tracks))


def test_sequences_must_agree() -> None:
    case = random_case(0)
    with pytest.raises(DataMismatch, match="only one has: s0"):
        evaluate_tracks(case.truths, {}, case.classes)
    sums = sequence_sums("s0", case.truths["s0"], case.tracks["s0"], len(case.classes))
    with pytest.raises(DataMismatch, match="several sequences are called s0"):
        combine([sums, sums], case.classes)


def test_identity_switches_are_those_that_are_counted() -> None:
    """Track 5 is followed by 11 for six frames and by 12 for three, with a gap between; 6 is never lost."""
    truth = ground_truth(rows(range(10), 5, BOX, 0, 0) + rows(range(10), 6, FAR, 0, 0))
    tracks = predicted(rows(range(6), 11, BOX, 0) + rows(range(7, 10), 12, BOX, 0) + rows(range(10), 13, FAR, 0))
    (switch,) = sequence_switches(truth, tracks, 1)
    assert (switch.track, switch.frames, switch.predicted, switch.boxes_lost) == (5, (5, 7), (11, 12), 3)


@pytest.mark.parametrize("number", range(9))
def test_random_switches_are_those_that_are_counted(number: int) -> None:
    case = random_case(number)
    for name, truth in case.truths.items():
        found = sequence_switches(truth, case.tracks[name], len(case.classes))
        sums = sequence_sums(name, truth, case.tracks[name], len(case.classes))
        assert len(found) == sum(of_class.clear.switches for of_class in sums.classes.values())
        assert all(switch.predicted[0] != switch.predicted[1] and switch.boxes_lost > 0 for switch in found)
        assert [switch.frames[1] for switch in found] == sorted(switch.frames[1] for switch in found)
