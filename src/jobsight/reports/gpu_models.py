"""The models of GPUs: what their vendors specify, found by the names that nodes and sites use."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files

import msgspec

_WORD = re.compile(r"[a-z0-9]+")
#: "RTX 8000", "rtx_8000" and "rtx8000" are one word; so are "80 GB" and "80GB".
_JOINED = re.compile(r"\b(rtx)[\s_-]+(?=\d)|(?<=\d)[\s_-]+(?=gb\b)")


class GpuModel(msgspec.Struct, kw_only=True, frozen=True):
    """The specification of a model. Rates are peaks without sparsity."""

    name: str
    vendor: str
    architecture: str
    memory_gb: int
    #: CUDA cores, or stream processors.
    cores: int | None = None
    tensor_cores: int | None = None
    #: Of vector units; of tensor or matrix cores for fp16.
    tflops_fp64: float | None = None
    tflops_fp32: float | None = None
    tflops_fp16: float | None = None
    #: Words that the name of such a GPU has.
    words: tuple[str, ...] = ()


@cache
def gpu_models() -> tuple[GpuModel, ...]:
    """All models that are known."""
    text = files("jobsight.reports").joinpath("gpu_models.yaml").read_bytes()
    return tuple(msgspec.yaml.decode(text, type=list[GpuModel]))


@lru_cache(maxsize=1000)
def find_model(name: str) -> GpuModel | None:
    """The model that a name means: that of a driver, ``NVIDIA A100-SXM4-80GB``, or the type of a
    generic resource of Slurm, ``a100``; None if it is not known."""
    words = set(_WORD.findall(_JOINED.sub(r"\1", name.lower())))
    matching = [model for model in gpu_models() if words.issuperset(model.words)]
    return max(matching, key=lambda model: len(model.words), default=None)
