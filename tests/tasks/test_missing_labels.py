"""Tasks on the same images of which some lack the labels of some tasks: masked, and never learned as empty labels."""



from opabinia.contracts import Batch, Sample
from opabinia.data.collate import collate
from opabinia.data.sources import DigitMaps, Mixture
from opabinia.data.sources.image_labels import ImageLabels
from opabinia.data.sources.mixture import MixedStream

LACKING = ["boxes", "mask", "boxes label", "", "boxes mask label", "label"]
READS = {"boxes": "boxes", "maps": "mask", "present": "label"}


class PartlyLabeled(ImageLabels):
    """Scenes that lack these labels."""

    partly_labeled = ("boxes", "mask", "label")

    def __init__(self, lacking: list[str]) -> None:
        super().__init__(source=DigitMaps(split="train", panoptic=True))
        self._lacking = lacking

    def __len__(self) -> int:
        return len(self._lacking)

    def __getitem__(self, index: int) -> Sample:
        keys = self._lacking[index].split()
        keys += ["labels"] if "boxes" in keys else []
        return {key: value for key, value in super().__getitem__(index).items() if key not in keys}


def read(lacking: list[str]) -> Batch:
    mixture = Mixture(streams={"boxes": MixedStream(source=PartlyLabeled(lacking))})
    stream = mixture.streams["boxes"]
    samples = [stream.source[index] for index in range(len(lacking))]
    for transform in stream.transforms:
        samples = [transform(sample) for sample in samples]
    kept = ("image", "id", "boxes", "labels", "mask", "label", "missing", "original_size")
    return collate([{key: sample[key] for key in kept if key in sample} for sample in samples], 32)
