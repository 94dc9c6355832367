"""vLLM: a server that is watched and prompted, and the command that starts one."""
