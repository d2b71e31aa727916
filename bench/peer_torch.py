#!/usr/bin/env python3
"""What PyTorch reaches on the model of a choir deck: fp32 or bf16 autocast, torch.compile, scaled-dot-product or its own
attention, fused AdamW, random tokens. Prints one JSON line with the median step time, tokens/s and MFU by the convention that choir
prints (6 N + 12 L C T FLOPs a token, N without positions). Optional: needs PyTorch 2.4 or newer.

    python3 bench/peer_torch.py --peak-flops 989e12           # on a GPU
    python3 bench/peer_torch.py --device cpu --tiny           # only checks that it runs
"""
import argparse
import json
import re
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"peer_torch: {error}; this comparison needs PyTorch 2.4 or newer (pip install torch)")

CHARACTERS = 65  # the vocabulary of a character deck comes from its text: that of tiny Shakespeare


def read_deck(path):
    """JSON with // and /* */ comments, which are left alone inside strings."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    pattern = r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/'
    return json.loads(re.sub(pattern, lambda match: match.group(1) or "", text, flags=re.S))


class Block(nn.Module):
    sdpa = True

    def __init__(self, width, heads, bias, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)
            later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(later, float("-inf")).softmax(-1).to(v.dtype) @ v
        mixed = self.output(mixed.transpose(1, 2).reshape(b, t, c))
        x = x + F.dropout(mixed, self.dropout, self.training)
        fed = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + F.dropout(fed, self.dropout, self.training)


class Model(nn.Module):
    def __init__(self, layers, heads, width, tokens, vocabulary, bias, dropout, tied):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(where)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measured_product(device, n):
    """FLOP/s of a bf16 product of n^3 of normal random numbers, the best of a few."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        a @ b.T
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deck", default="inputs/shakespeare_char.json")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--micro-batch", type=int, help="sequences a step; default: the deck's")
    parser.add_argument("--seconds", type=float, default=15, help="of timed steps, and at least --steps of them")
    parser.add_argument("--steps", type=int, default=10, help="timed steps, at least")
    parser.add_argument("--warmup", type=int, default=5, help="steps before these")
    parser.add_argument("--precision", choices=["fp32", "bf16-mixed"], default="bf16-mixed", help="bf16-mixed: autocast")
    parser.add_argument("--attention", choices=["sdpa", "plain"], default="sdpa")
    parser.add_argument("--threads", type=int, help="of the CPU; default: PyTorch's own choice")
    parser.add_argument("--peak-flops", type=float, default=0, help="the makers' figure, for MFU; 0: only the measured")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, T 32, 2 sequences: only to see it run")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("peer_torch: PyTorch sees no GPU; --device cpu --tiny shows whether it runs at all")

    if options.threads:
        torch.set_num_threads(options.threads)
    Block.sdpa = options.attention == "sdpa"
    deck = read_deck(options.deck)
    model = deck["model"]
    unknown = {"norm": "layernorm", "activation": "gelu", "position": "learned"}
    for key, only in unknown.items():
        if model.get(key, only) != only:
            sys.exit(f"peer_torch: {options.deck}: model.{key} is {model[key]}; this peer knows {only} only")
    layers, heads, width, tokens = (model[k] for k in ("n_layer", "n_head", "n_embd", "block_size"))
    micro = options.micro_batch or deck["train"]["micro_batch_size"]
    vocabulary = model.get("vocab_size") or CHARACTERS
    if options.tiny:
        layers, heads, width, tokens, micro = 2, 2, 64, 32, 2

    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high" if options.precision == "bf16-mixed" else "highest")
    network = Model(layers, heads, width, tokens, vocabulary, model.get("bias", True), model.get("dropout", 0.0),
                    model.get("tied", True)).to(options.device)
    count = sum(p.numel() for p in network.parameters())
    counted = count - network.positions.weight.numel()
    settings = deck["optimizer"]
    decayed = [p for p in network.parameters() if p.dim() >= 2]
    others = [p for p in network.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=settings["learning_rate"], betas=(settings["beta1"], settings["beta2"]), fused=True)
    compiled = network if options.no_compile else torch.compile(network)

    batches = [torch.randint(vocabulary, (micro, tokens + 1), device=options.device) for _ in range(8)]

    def step(number):
        batch = batches[number % len(batches)]
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=options.precision == "bf16-mixed"):
            loss = compiled(batch[:, :-1], batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    started = time.perf_counter()
    for number in range(options.warmup):
        loss = step(number)
    synchronize(options.device)
    warmup = time.perf_counter() - started

    times, spent = [], 0.0
    while len(times) < options.steps or spent < (0 if options.tiny else options.seconds):
        start = time.perf_counter()
        loss = step(len(times))
        synchronize(options.device)
        times.append(time.perf_counter() - start)
        spent += times[-1]

    median = statistics.median(times)
    flops = 6 * counted + 12 * layers * width * tokens
    measured = measured_product(options.device, 8192 if options.device == "cuda" else 1024)
    rate = micro * tokens / median
    on_gpu = options.device == "cuda"
    print(json.dumps({
        "bench": "peer_torch", "torch": torch.__version__, "compiled": not options.no_compile, "tiny": options.tiny,
        "precision": options.precision, "attention": options.attention, "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "parameters": count, "micro_batch": micro, "tokens_per_sequence": tokens,
        "steps": len(times), "warmup_seconds": round(warmup, 2),
        "median_seconds": median, "min_seconds": min(times), "max_seconds": max(times),
        "tokens_per_second": rate, "flops_per_token": flops,
        "measured_product_flops": measured, "mfu_of_measured": flops * rate / measured,
        "peak_flops": options.peak_flops, "mfu": flops * rate / options.peak_flops if options.peak_flops else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "loss": float(loss.detach()),
    }))


if __name__ == "__main__":
    main()
