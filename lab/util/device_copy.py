"""Copies between the host and the device, without making either wait for the other."""

import torch


def on_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a host tensor on ``device``; on a CPU the tensor itself. A copy to a GPU from ordinary memory waits
    until the GPU has done everything queued before; from pinned memory it is queued like the rest."""
    return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)


def several_on_device(lists: list[list[int]], device: torch.device) -> list[torch.Tensor]:
    """Lists of integers as int64 tensors on ``device``, all in one copy."""
    if len(lists) == 1:
        return [on_device(torch.tensor(lists[0], dtype=torch.long), device)]
    flat = torch.tensor([number for numbers in lists for number in numbers], dtype=torch.long)
    return list(on_device(flat, device).split([len(numbers) for numbers in lists]))


class HostCopy:
    """A device tensor on its way to the host. What the device is given to do after this does not delay it."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._event = None
        self._numbers = numbers
        if numbers.device.type == "cuda":
            self._numbers = numbers.to("cpu", non_blocking=True)
            self._event = torch.cuda.current_stream(numbers.device).record_event()

    def tolist(self) -> list:
        """The numbers. Waits until they have arrived."""
        if self._event:
            self._event.synchronize()
        return self._numbers.tolist()


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """``torch.cat``, which copies even a single tensor, if there are several."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
