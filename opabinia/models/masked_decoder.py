"""The decoder of masked autoencoders."""

from __future__ import annotations

import torch
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from opabinia.contracts import Tokens


class MaskedDecoder(nn.Module):
    """A narrow transformer that reconstructs all patches of an image from the tokens of the visible ones (He et al.
    2022, MAE, section 3).

    Masked patches begin as one learned token; all get fixed sine-cosine position embeddings on the grid, of any size.

    Args:
        token_channels: T, of the tokens.
        outputs: P, values predicted per patch.
        width: width of its own tokens, a multiple of 4 and of ``heads``.
        depth: number of blocks.
        heads: number of heads of the attention.

    Raises:
        ValueError: the width is not such a multiple.
    """

    def __init__(self, token_channels: int, outputs: int, *, width: int = 512, depth: int = 8, heads: int = 16) -> None:
        super().__init__()
        if width % 4 or width % heads:
            raise ValueError(f"decoder_width: a multiple of 4 and of the {heads} heads, not {width}")
        self.embed = nn.Linear(token_channels, width)
        self.hidden = nn.Parameter(torch.empty(width))
        self.blocks = nn.Sequential(*(Block(width, heads, qkv_bias=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.output = nn.Linear(width, outputs)
        nn.init.normal_(self.hidden, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tokens, kept: Tensor, grid: tuple[int, int]) -> Tensor:
        """Reconstruct all patches (B x N x P), row by row.

        Args:
            tokens: the class token and those of the M visible patches.
            kept: indices of the visible patches (int64, B x M).
            grid: rows and columns of patches, N in all.
        """
        first, visible = self.embed(tokens.first), self.embed(tokens.patches)
        width = visible.shape[-1]
        patches = self.hidden.to(visible.dtype).expand(len(visible), grid[0] * grid[1], width)
        patches = patches.scatter(1, kept[:, :, None].expand(-1, -1, width), visible)
        patches = patches + build_sincos2d_pos_embed(list(grid), width, device=visible.device, dtype=visible.dtype)
        predicted: Tensor = self.output(self.norm(self.blocks(torch.cat([first[:, None], patches], 1)))[:, 1:])
        return predicted
