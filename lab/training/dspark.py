"""Training of the DSpark head's Markov head, over the DFlash head's block, which stays as it is.

The loss is DFlash's; the token before each draft token is the text's own.
"""

from pathlib import Path

import torch

from lab.models.dflash_head import DFlashHead
from lab.models.dspark_head import DSparkConfig, DSparkHead
from lab.training import dflash

RANK = 64


def new_head(block: DFlashHead) -> DSparkHead:
    """A head that drafts as ``block`` does, until its Markov head is trained; its other weights are fixed."""
    config = DSparkConfig(**vars(block.config), markov_rank=RANK, sample_from_anchor=False)
    head = DSparkHead(config, block.embed_tokens, block.lm_head)
    head.load_state_dict(block.state_dict(), strict=False)
    head.requires_grad_(False).markov_head.requires_grad_(True)
    with torch.no_grad():
        head.markov_head.markov_w1.weight.normal_(std=0.05)
        head.markov_head.markov_w2.weight.zero_()
    return head


def export_head(head: DSparkHead, folder: Path) -> None:
    """Write a head as ``dflash.export_head`` does, with its Markov head."""
    config = head.config
    more = {
        "projector_type": "dspark",
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
        "sample_from_anchor": config.sample_from_anchor,
    }
    dflash.export_head(head, folder, architecture="DSparkDraftModel", more=more)
