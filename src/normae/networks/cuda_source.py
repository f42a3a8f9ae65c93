"""CUDA source compiled at run time: NVRTC, which comes with PyTorch, and the driver, both through their C interface."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_LARGEST_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
_SHARED_CARVEOUT = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent"""


class CudaSourceError(Exception):
    """The source cannot be compiled or loaded here."""


class Kernel:
    """A function of a compiled module, with the dynamic shared memory that its `shared_bytes` asks for."""

    def __init__(self, binary: bytes, name: str) -> None:
        self._driver = _library("libcuda.so.1")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), binary), "load the module")
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find {name}")
        self._function, self.shared = function, self._shared_bytes(module)
        wanted = (function, _LARGEST_DYNAMIC_SHARED, self.shared)
        self._check(self._driver.cuFuncSetAttribute(*wanted), f"have {self.shared} bytes of shared memory")
        # A wish that may fail: what a block leaves of a multiprocessor's memory is for a second block, not its cache.
        self._driver.cuFuncSetAttribute(function, _SHARED_CARVEOUT, 100)

    def _shared_bytes(self, module: ctypes.c_void_p) -> int:
        place, size, value = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        found = self._driver.cuModuleGetGlobal_v2(ctypes.byref(place), ctypes.byref(size), module, b"shared_bytes")
        self._check(found, "find shared_bytes")
        self._check(self._driver.cuMemcpyDtoH_v2(ctypes.byref(value), place, 4), "read shared_bytes")
        return value.value

    def _check(self, code: int, what: str) -> None:
        if code:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(words))
            raise CudaSourceError(f"could not {what}: {(words.value or b'unknown error').decode()}")

    def launch(self, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        """Queue the function in the current stream, for ctypes values as `arguments`."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = (*grid, 1, threads, 1, 1)
        self._check(self._driver.cuLaunchKernel(self._function, *shape, self.shared, stream, pointers, None), "launch")


def compile_kernel(source: str, name: str, defines: Sequence[tuple[str, int]]) -> Kernel:
    """The kernel `name` for the current device. Raises `CudaSourceError` where that is not possible."""
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", "-diag-suppress=128"]
    return Kernel(_binary(source, [*options, *(f"-D{key}={value}" for key, value in defines)]), name)


def _binary(source: str, options: Sequence[str]) -> bytes:
    compiler, program = _nvrtc(), ctypes.c_void_p()
    if compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"normae.cu", 0, None, None):
        raise CudaSourceError("NVRTC takes no program")
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed, size = compiler.nvrtcCompileProgram(program, len(options), given), ctypes.c_size_t()
    if failed:
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        words = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, words)
        first = words.value.decode(errors="replace").strip().partition("\n")[0]
        raise CudaSourceError(f"NVRTC says {first!r}")
    compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetCUBIN(program, binary)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def _library(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaSourceError(f"none of {', '.join(names)} can be loaded")


@lru_cache
def _nvrtc() -> ctypes.CDLL:
    """The compiler of PyTorch's CUDA version: known to the loader, or beside the package."""
    version = str(torch.version.cuda).partition(".")[0]
    beside = sorted((Path(torch.__file__).parents[1] / "nvidia").glob(f"*/lib/libnvrtc.so.{version}*"))
    return _library(f"libnvrtc.so.{version}", *map(str, beside), "libnvrtc.so")
