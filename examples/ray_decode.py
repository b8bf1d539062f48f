"""Decodes a clip on several Ray actors as one decode, and compares with the decode of one process.

pip install ray && python examples/ray_decode.py [ACTORS]

Ray places the actors and brings the frames back. What the ranks of a decode exchange goes through
torch.distributed, which the actors join themselves: NCCL or RCCL with a GPU each, gloo on CPUs.
"""

import datetime
import socket
import sys

import ray
import torch
import torch.distributed as dist
from demo_vae import load_demo_vae

import hy3d_rocm


@ray.remote(num_cpus=0)
class Rank:
    """One process of the decode. It has the VAE's weights, and a share of the rows of all else."""

    def address(self) -> str:
        """Where rank 0 can be met: a free port of the machine on which Ray has put it."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, address: str, rank: int, ranks: int) -> None:
        """Returns when all ranks have joined, within `timeout`, which later exchanges have, too."""
        hy3d_rocm.set_variables()  # a lost rank ends no other
        self.device = "cuda" if ray.get_gpu_ids() else "cpu"
        backend = "nccl" if self.device == "cuda" else "gloo"
        timeout = datetime.timedelta(minutes=5)
        dist.init_process_group(backend, address, timeout, world_size=ranks, rank=rank)
        self.vae = load_demo_vae().to(self.device)

    def decode(self, latents: torch.Tensor) -> torch.Tensor | None:
        """The frames on rank 0, None on others. All ranks pass the same latents, all of them."""
        return hy3d_rocm.decode(self.vae, latents.to(self.device), group=dist.group.WORLD)


ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
ray.init()
gpus = 1 if ray.cluster_resources().get("GPU", 0) >= ranks else 0
actors = [Rank.options(num_gpus=gpus).remote() for _ in range(ranks)]
address = ray.get(actors[0].address.remote())
ray.get([actor.join.remote(address, rank, ranks) for rank, actor in enumerate(actors)])

vae = load_demo_vae()
latents = torch.randn(1, vae.config.latent_channels, 5, 24, 32, generator=torch.manual_seed(1))
calls = [actor.decode.remote(latents) for actor in actors]
frames = ray.get(calls[0])  # where another actor dies, rank 0's notices, and decodes by itself
error = (frames - hy3d_rocm.decode(vae, latents)).abs().max().item()
print(f"{tuple(frames.shape)} by {ranks} actors; largest difference from one process: {error:.1e}")
