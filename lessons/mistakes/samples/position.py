"""A KV cache with room for a whole text."""

import torch


class Cache:
    def __init__(self, layers, heads, size, dim):
        self.keys = torch.zeros(layers, heads, size, dim)
        self.values = torch.zeros(layers, heads, size, dim)
        self.length = 0  # tokens in the cache: the next one goes here

    def update(self, layer, key, value):
        """Store new keys and values [heads, n, dim]; return all so far."""
        end = self.length + key.shape[1]
        self.keys[layer, :, self.length : end] = key
        self.values[layer, :, self.length : end] = value
        self.length = end
        return self.keys[layer, :, :end], self.values[layer, :, :end]
