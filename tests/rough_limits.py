"""The device's limits, which an engine measures for each size of model, measured briefly and roughly: what a test shows
does not depend on how fast this machine is. To be imported in a process of tests."""

from __future__ import annotations

from lab.engine import device_limits

device_limits.MEMORY_BYTES["cpu"], device_limits.PRODUCT_SIZES = 2**23, (256,)
device_limits.REPEATS["cpu"], device_limits.LEAST_SECONDS["cpu"] = 1, 0.0
