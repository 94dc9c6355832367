"""The ways in for programs: what the pages do, as functions of Gradio's API and as tools of MCP."""
