"""Makes Gradio's state per session cheap: every opened page and every call by a program is a session, and five hundred
are kept after they have ended."""

from __future__ import annotations

import functools
from typing import Any

import gradio as gr
from gradio.blocks import BlocksConfig
from gradio.state_holder import SessionState


def share_configurations(pages: gr.Blocks) -> None:
    """Compute the configuration of each component of ``pages`` once, not again for every session.

    Gradio computes it for all components of all pages when a session begins, for links that restore a session: for
    250 components that takes 46 ms, during which the engine stands still, and 0.44 MB; this way 0.3 ms and 0.2 MB.
    A component that a session changes is a separate one, of that session alone, with a configuration of its own.
    """
    work_out = BlocksConfig.config_for_block
    there = {id(block) for block in pages.blocks.values()}  # while the pages exist, no other block has these ids

    @functools.cache
    def known(_id: int, block: gr.blocks.Block) -> dict[str, Any]:
        return work_out(_id, [], block)

    def config_for_block(_id: int, rendered_ids: list[int], block: gr.blocks.Block, renderable: Any = None) -> Any:
        if renderable or id(block) not in there:
            return work_out(_id, rendered_ids, block, renderable)
        return known(_id, block)

    BlocksConfig.config_for_block = staticmethod(config_for_block)


def keep_no_values() -> None:
    """Keep none of the values that were last sent to a session, such as a run of megabytes: ``Shelf`` keeps what may be
    kept. Gradio needs them for links that restore a session, which the lab's pages do not have."""
    SessionState._update_value_in_config = lambda self, key, value: None
