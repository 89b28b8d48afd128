"""Joins the processes that ``torchrun`` (or whoever sets the same variables) has started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from jointensor.distributed.heartbeat import Heartbeat
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, ProcessGroupError

TIMEOUT = "JOINTENSOR_TIMEOUT"
"""Environment variable: seconds after which a process that does not answer is given up."""

SECONDS = 600.0

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` sets, and ``LOCAL_RANK``: the number of a process on its machine."""


def join_processes(device: str = "auto", environment: Mapping[str, str] = os.environ) -> ProcessGroup:
    """The processes of this job, as the environment says; :data:`SINGLE_PROCESS` where it says nothing.

    On the CPU they talk by gloo, on GPUs, one each, by NCCL.
    """
    if not all(environment.get(name) for name in VARIABLES):
        return SINGLE_PROCESS
    rank, size, local = (_number(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = _own_device(device, local)
    seconds = _seconds(environment)
    host = environment["MASTER_ADDR"]
    address = f"{f'[{host}]' if ':' in host else host}:{environment['MASTER_PORT']}"
    try:
        if place.type == "cuda":
            torch.cuda.set_device(place)
        timeout = timedelta(seconds=seconds)
        store, _, _ = next(dist.rendezvous(f"tcp://{address}", rank, size, timeout=timeout))  # type: ignore[attr-defined]
        # processes that are started again may find the notes of those before them
        life = f"jointensor/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}/{size}"
        store = dist.PrefixStore(life, store)  # type: ignore[attr-defined]
        gpu = place if place.type == "cuda" else None
        # its functions keep, as a default, the group that there is when they are defined, which is at an optimiser's
        # first step: threads would outlive ProcessGroup.leave, and one that drops a tensor while Python ends aborts it
        importlib.import_module("torch.distributed.nn.functional")
        backend = "gloo" if gpu is None else "nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=gpu)
    except (RuntimeError, ValueError) as error:
        raise ProcessGroupError(
            f"process {rank} of {size} could not join the others at {address} within {seconds:g} s "
            f"({str(error).splitlines()[0]}): check that all were started, that this machine can reach that address "
            f"and port, and, where a machine has several networks, that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME "
            f"names the right one; {TIMEOUT}=SECONDS waits longer"
        ) from None
    return ProcessGroup(rank, size, place, store, heartbeat=Heartbeat(store, rank, size, seconds).start())


def restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``torchrun`` has started these processes again, after one of them failed."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "0")
    if not text.isdecimal():
        raise ConfigError(f"the environment variable {name} is '{text}', it must be a whole number; torchrun sets it")
    return int(text)


def _seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(TIMEOUT, str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e8:
        raise ConfigError(f"the environment variable {TIMEOUT} is '{text}', it must be a number of seconds")
    return seconds


def _own_device(device: str, local: int) -> torch.device:
    """The GPU that has the number of this process on its machine, or the CPU."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if device not in ("auto", "cuda"):
        raise ConfigError(f"--device {device} is one device; several processes take cpu, cuda (a GPU each) or auto")
    if not torch.cuda.is_available() or local >= torch.cuda.device_count():
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ConfigError(
            f"process {local} of this machine has no GPU: there are {there}; start as many processes as there are GPUs "
            "(--nproc-per-node), or take --device cpu"
        )
    return torch.device("cuda", local)
