"""The analysis of a model against the export that precedes it."""

import torch
from torch import Tensor, nn

from benchmarks.measure import Ratio, ratio
from coset.models import ResNet18
from coset.symmetry.discovery.assembly import assemble
from coset.symmetry.discovery.exporting import export
from coset.symmetry.discovery.tracing import trace

BOUND = 0.5


class Bert(nn.Module):
    """Token and position embeddings, post-norm encoder layers with GELU, a tied read-out: (N, T) to (N, T, tokens)."""

    def __init__(self, tokens: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(tokens, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden: Tensor = self.encoder(self.norm(self.embed(x) + self.positions(places)))
        return hidden @ self.embed.weight.T


def run(small: bool) -> list[Ratio]:
    """A transformer of BERT-base's size and a ResNet18."""
    repeat = 1 if small else 7
    bert = Bert(50, 24, 4, 2) if small else Bert(30522, 768, 12, 12)
    resnet = ResNet18(stages=(8,) if small else (64, 128, 256, 512))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, (2, 16), generator=generator)
    image = torch.randn(2, 3, 32, 32, generator=generator)
    return [_ratio(bert, tokens, repeat), _ratio(resnet, image, repeat)]


def _ratio(model: nn.Module, x: Tensor, repeat: int) -> Ratio:
    model.eval()
    movable: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
    program, _, _ = export(model, (x,), {})
    count = sum(tensor.numel() for tensor in movable.values())

    def analyse() -> object:
        return assemble(trace(program, movable), movable)

    label = f"discover, analysis: {type(model).__name__}, {count / 1e6:.1f}M"
    return ratio(label, analyse, "export", lambda: export(model, (x,), {}), bound=BOUND, repeat=repeat)
