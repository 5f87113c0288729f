"""AutoGluon: ``MultiModalPredictor`` with the same model, ended by its ``time_limit``.

It holds out a part of the training data for its own choices, as it does when only training data are given.
"""

from __future__ import annotations

import time

import pandas as pd
from autogluon.multimodal import MultiModalPredictor
from job import Job

job = Job.parse()


if __name__ == "__main__":
    train, validation = job.images(job.folder / "train"), job.images(job.validation)
    table = pd.DataFrame({"image": map(str, train), "label": [path.parent.name for path in train]})
    predictor = MultiModalPredictor(label="label", path=str(job.out / "predictor"), verbosity=1)
    hyperparameters = {"model.names": ["timm_image"], "model.timm_image.checkpoint_name": str(job.weights)}
    # A tenth of the time is for loading the best checkpoint and the predictions.
    limit = job.left - job.seconds / 10
    began = time.perf_counter()
    predictor.fit(table, time_limit=limit, hyperparameters=hyperparameters, seed=job.seed)
    trained = time.perf_counter() - began
    labels = predictor.predict(pd.DataFrame({"image": map(str, validation)}), as_pandas=False).tolist()
    classes = dict(zip(map(job.name, validation), labels, strict=True))
    job.finish(f"{trained:.0f} s of fit", classes=classes)
