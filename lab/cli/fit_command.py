"""``python -m lab fit``: what a model and its cache take on a GPU."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

from lab.cli.json_results import fit_result
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import MODELS, device_bytes
from lab.memory.model_memory import ModelInfo, deployment_notices, find_model, known_models
from lab.models.loader import refuse_absent
from lab.util.stdio import print_notes


def fit(options: Namespace) -> int:
    model = _model(options.model)
    deployment = Deployment(
        shape=model.shape,
        parameters=model.parameters,
        weights=options.weights,
        kv_dtype=options.kv_dtype,
        memory=device_bytes(options.gpu, options.memory),
        set_aside=options.set_aside,
        lengths=Lengths(options.mean, options.longest),
        block_size=options.block_size,
    )
    answer = fit_result(model, deployment)
    if options.json:
        print(json.dumps(answer))
        return 0
    for name in ("memory", "weight", "cache", "token"):
        print(f"{name:>11} {answer[f'{name}_bytes']:>20,} B")
    for policy, count in answer["sequences"].items():
        print(f"{policy:>11} {count:>20,} {'sequence' if count == 1 else 'sequences'} at once")
    lengths = deployment.lengths
    print(
        f"A sequence has {lengths.mean:,.10g} token{'s' * (lengths.mean != 1)} on average (--mean) and at most "
        f"{lengths.longest:,} (--longest), for which contiguous allocation reserves room."
    )
    print_notes(deployment_notices(model, deployment, lambda count: f"{count:,} B"))
    return 0


def _model(name: str) -> ModelInfo:
    if name in MODELS:
        return known_models()[name]
    refuse_absent(name)
    return find_model(Path(name) if os.path.isdir(name) else name)
