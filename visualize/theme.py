"""The theme and the style sheets: system fonts, one accent, calm surfaces. Nothing is fetched from elsewhere."""

import gradio as gr

from visualize.assets import head_links, styles

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

STYLED = (
    "memory",
    "compare",
    "lessons",
    "pool",
    "claims",
    "mistakes",
    "server",
    "deploy",
    "capstone",
    "workshop",
    "glossary",
)
SHEETS = (
    *("static/stage", "static/film", "static/page"),
    *(f"pages/{page}/page" for page in STYLED),
    "pages/lessons/figure",
    "static/contrast",
)
"""The pages' style sheets, in their order."""


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        spacing_size="sm",
        radius_size="md",
        text_size="sm",
        font=SANS,
        font_mono=MONO,
    ).set(
        body_background_fill="#f3f5f9",
        body_background_fill_dark="#0e1219",
        block_background_fill="#ffffff",
        block_background_fill_dark="#171c25",
        button_primary_background_fill="#0072B2",
        button_primary_background_fill_hover="#005f95",
        button_primary_background_fill_dark="#0072B2",
        button_primary_background_fill_hover_dark="#1f7ab8",
        button_primary_text_color="#ffffff",
        button_transition="none",  # else Run and Stop fade as an engine begins, at sixty frames a second
        slider_color="#0072B2",
        slider_color_dark="#1f7ab8",
    )


def style() -> str:
    """The pages' style sheets and links, for the head: Gradio's ``css`` argument would rewrite their rules."""
    return f"{head_links()}\n<style>{styles(*SHEETS)}</style>"
