from typing import Any

import pytest
import timm as timm_library
import torch
from timm.models.regnet import model_cfgs

from opabinia.models.backbones.regnet import regnet


@pytest.mark.parametrize("model", ["regnetx_004", "regnety_032"])
def test_design_parameters_of_the_paper_match_timm(model: str) -> None:
    cfg = model_cfgs[model]
    with torch.device("meta"):
        keys: dict[str, Any] = {"depth": cfg.depth, "initial_width": cfg.w0, "slope": cfg.wa, "multiplier": cfg.wm}
        backbone = regnet(3, **keys, group_width=cfg.group_size, se_ratio=cfg.se_ratio)
        expected = timm_library.create_model(model, num_classes=0)
    shapes = {name: value.shape for name, value in backbone.model.state_dict().items()}  # type: ignore[union-attr]
    assert shapes == {name: value.shape for name, value in expected.state_dict().items()}
    assert backbone.out_channels == expected.num_features


@pytest.mark.parametrize(("depth", "width"), [(2, 24), (13, 25)])
def test_invalid_design_parameters_raise(depth: int, width: int) -> None:
    with pytest.raises(ValueError, match=r"four stages|multiple of 8"):
        regnet(3, depth=depth, initial_width=width, slope=35.5, multiplier=2.49, group_width=8)
