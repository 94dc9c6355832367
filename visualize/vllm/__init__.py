"""Another server: a vLLM that is watched and asked, and the command that starts one."""
