"""What Gradio keeps of sessions: of every opened page and every call by a program, of five hundred of them after they
have ended. Here it is made cheap, looked at and dropped: nothing else relies on how Gradio keeps it."""

from __future__ import annotations

import functools
from collections.abc import Set
from typing import Any

import gradio as gr
from gradio.blocks import BlocksConfig
from gradio.routes import App
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
        if id(block) not in there:
            return work_out(_id, rendered_ids, block, renderable)
        return known(_id, block)

    BlocksConfig.config_for_block = staticmethod(config_for_block)


def keep_no_values() -> None:
    """Keep none of the values that were last sent to a session, such as a run of megabytes: ``Shelf`` keeps what may be
    kept. Gradio needs them for links that restore a session, which the lab's pages do not have."""
    SessionState._update_value_in_config = lambda self, key, value: None


def knows(pages: gr.Blocks, who: str) -> bool:
    """Whether a session has sent an event, so that its answers can be read."""
    return who in pages._queue.pending_messages_per_session


def unread(pages: gr.Blocks, who: str) -> Set[str]:
    """The session's events that are in progress, or whose answers nobody has read."""
    return pages._queue.pending_event_ids_session.get(who, set())


def answered(pages: gr.Blocks) -> set[str]:
    """The sessions all of whose unread events are over."""
    queue = pages._queue
    unread = queue.pending_event_ids_session.items()
    return {who for who, events in unread if events and events.isdisjoint(queue.event_ids_to_events)}


def forget(app: App, who: str) -> None:
    """Drop the session of one call, to which nobody returns. Gradio would keep thousands of sessions, a fifth of a
    megabyte each; the messages of two thousand; and for ever that a session has no events left."""
    held = app.state_holder
    with held.lock:
        held.session_data.pop(who, None)
        held.time_last_used.pop(who, None)
    forget_answers(app.get_blocks(), who)


def forget_answers(pages: gr.Blocks, who: str) -> None:
    """Drop a session's unread answers. What is still in progress for it ends."""
    queue = pages._queue
    for event in queue.pending_event_ids_session.pop(who, ()):
        if event in queue.event_ids_to_events:  # until it has ended, nobody is there to be told
            queue.event_ids_to_events[event].alive = False
    queue.pending_messages_per_session.pop(who, None)
