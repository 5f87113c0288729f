"""COCO's average precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opabinia.config import register
from opabinia.contracts import Batch, Facts, Predictions

NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@register.evaluator
class Coco:
    """The twelve numbers of COCO for boxes."""

    def __init__(self, facts: Facts, /) -> None:
        self._facts = facts
        self._pictures: list[dict[str, Any]] = []
        self._things: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self.better = dict.fromkeys(NAMES, "max")

    def update(self, predictions: Predictions, batch: Batch) -> None:
        """Take the predictions of a batch."""
        boxes, scores, labels = (predictions[name].float().cpu().numpy() for name in ("boxes", "scores", "labels"))
        for number, truth in enumerate(batch["truth"]):
            self._pictures.append({"id": truth.image_id, "height": truth.size[0], "width": truth.size[1]})
            for row, box in enumerate(truth.boxes.tolist()):
                self._things.append(
                    {
                        "image_id": truth.image_id,
                        "category_id": int(truth.labels[row]),
                        "bbox": box,
                        "area": float(truth.areas[row]),
                        "iscrowd": int(truth.crowd[row]),
                    }
                )
            for box, score, label in zip(boxes[number], scores[number], labels[number], strict=True):
                if label >= 0:
                    left, top, right, bottom = box.tolist()
                    self._found.append(
                        {
                            "image_id": truth.image_id,
                            "category_id": int(label),
                            "bbox": [left, top, right - left, bottom - top],
                            "score": float(score),
                        }
                    )

    def state(self) -> Any:
        """What was seen."""
        return self._pictures, self._things, self._found

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        """The twelve numbers."""
        from faster_coco_eval import COCO, COCOeval_faster

        pictures, things, found = ([one for state in states for one in state[part]] for part in range(3))
        if not pictures or not found:
            return dict.fromkeys(NAMES, 0.0) if pictures else {}
        for number, thing in enumerate(things, 1):
            thing["id"] = number
        categories = [{"id": number, "name": name} for number, name in enumerate(self._facts.classes)]
        truth = COCO({"images": pictures, "annotations": things, "categories": categories})
        judged = COCOeval_faster(truth, truth.loadRes(found), "bbox")
        judged.run()
        return dict(zip(NAMES, map(float, judged.stats[:12]), strict=True))
