import torch


class HunyuanVideoTransformer3DModelPacked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x_embedder = torch.nn.Linear(4, 4)
        self.transformer_blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
        self.out_of_memory_at = set()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        if self.steps in self.out_of_memory_at:
            raise torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB.")
        return x * 0.5
