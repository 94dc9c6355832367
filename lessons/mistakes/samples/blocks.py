"""A paged KV cache: a text's tokens are in blocks of 16 slots, wherever in the pool these are."""

import torch


class Cache:
    def __init__(self, pool, free, prompt_length):
        self.pool = pool  # [layers, 2, heads, slots, dim], which all texts share
        self.free = free  # numbers of the free blocks
        self.blocks = [free.pop() for _ in range(-(-prompt_length // 16))]
        self.length = 0

    def slot(self, position):
        return self.blocks[position // 16] * 16 + position % 16

    def update(self, layer, key, value):
        end = self.length + key.shape[1]
        slots = torch.tensor([self.slot(at) for at in range(end)])
        self.pool[layer, 0, :, slots[self.length :]] = key
        self.pool[layer, 1, :, slots[self.length :]] = value
        if layer == len(self.pool) - 1:
            self.length = end
        return self.pool[layer, 0, :, slots], self.pool[layer, 1, :, slots]
