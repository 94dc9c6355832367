"""The Gradio panels that ``app.py`` lays out."""
