"""Train SASRec with a full softmax, and rank items with it. Needs PyTorch and numpy only.

    python -m mrfrec_lab.times_peers --export ../data steam-100k            # into cache/sasrec
    python sasrec.py cache/sasrec lists steam-100k   # with a GPU, into lists

Kang and McAuley (ICDM 2018), a causal transformer over what a user took, one item after the other. It was
published with a sampled negative per item; the cross-entropy over all items is much stronger (Klenitskiy and
Vasilev, RecSys 2023). Sizes and the number of epochs are chosen by nDCG on the validation questions, then
the model is trained again on the training data of the test.
"""

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

GRID = [(size, dropout) for dropout in (0.3, 0.5) for size in (128, 64, 256)]
LAYERS, HEADS, LONGEST, BATCH, RATE = 2, 2, 100, 256, 1e-3
EPOCHS, PATIENCE, LIST, SEED, MOST_ASKED = 100, 8, 20, 0, 10_000
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Task(NamedTuple):
    """Histories, oldest item first: those to train on, those of the questions, and the targets if known."""

    items: int
    training: list[Tensor]
    shown: list[Tensor]
    targets: list[Tensor]

    @classmethod
    def read(cls, path: Path) -> "Task":
        file = np.load(path)

        def lists(name: str) -> list[Tensor]:
            if name not in file:
                return []
            items = torch.from_numpy(file[name].astype(np.int64))
            return list(torch.split(items, file[f"{name}_lengths"].tolist()))

        return cls(int(file["items"]), lists("training"), lists("shown"), lists("targets"))


class SASRec(nn.Module):
    def __init__(self, items: int, size: int, dropout: float) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, size, padding_idx=items)
        self.places = nn.Embedding(LONGEST, size)
        for table in (self.items, self.places):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            size, HEADS, 4 * size, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(size), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, histories: Tensor, wanted: Tensor) -> Tensor:
        """Return the logits of all items after the wanted places (a mask) of histories, padded at the end."""
        length = histories.shape[1]
        x = self.items(histories) + self.places.weight[:length]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        x = self.layers(self.dropout(x), mask=later)
        return x[wanted] @ self.items.weight[:-1].T  # type: ignore[no-any-return]


def padded(histories: list[Tensor], items: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(histories, batch_first=True, padding_value=items).to(DEVICE)


def epoch(model: SASRec, pieces: list[Tensor], optimizer: torch.optim.Optimizer, items: int) -> None:
    """Predict each item from those before it, for all histories once, in random order."""
    model.train()
    for part in torch.split(torch.randperm(len(pieces)), BATCH):
        batch = padded([pieces[i] for i in part.tolist()], items)
        before, after = batch[:, :-1], batch[:, 1:]
        loss = nn.functional.cross_entropy(model(before, after < items), after[after < items])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def ranked(model: SASRec, shown: list[Tensor], items: int) -> Tensor:
    """Return the best items of each history that are not in it."""
    model.eval()
    found = []
    for start in range(0, len(shown), 1024):
        histories = shown[start : start + 1024]
        batch = padded([history[-LONGEST:] for history in histories], items)
        last = torch.zeros_like(batch, dtype=torch.bool)
        last.scatter_(1, ((batch < items).sum(1) - 1)[:, None], True)
        scores = nn.functional.pad(model(batch, last), (0, 1))
        scores.scatter_(1, padded(histories, items), -torch.inf)
        found.append(scores[:, :-1].topk(LIST).indices.cpu())
    return torch.cat(found)


def ndcg(lists: Tensor, targets: list[Tensor], k: int) -> float:
    gains = 1 / torch.arange(2, k + 2).log2()
    wanted = nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-1)
    hits = torch.stack([(place[:, None] == wanted).any(1) for place in lists[:, :k].T], 1)
    counts = torch.tensor([len(each) for each in targets]).clamp(max=k)
    return float(((hits * gains).sum(1) / gains.cumsum(0)[counts - 1]).mean())


def train(task: Task, size: int, dropout: float, epochs: int, k: int) -> tuple[SASRec, int, float]:
    """Return the model of the best epoch, that epoch and its nDCG; without targets, of the last epoch."""
    torch.manual_seed(SEED)
    model = SASRec(task.items, size, dropout).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98))
    # Long histories are divided; each piece starts with the item that the one before ended with.
    pieces = [
        history[i : i + LONGEST + 1]
        for history in task.training
        for i in range(0, max(len(history) - 1, 0), LONGEST)
    ]
    asked = np.random.default_rng(SEED).permutation(len(task.targets))[:MOST_ASKED].tolist()
    shown, targets = ([part[i] for i in asked] for part in (task.shown, task.targets or task.shown))
    best, at, state = -1.0, 0, None
    for number in range(1, epochs + 1):
        epoch(model, pieces, optimizer, task.items)
        if not task.targets:
            continue
        if (value := ndcg(ranked(model, shown, task.items), targets, k)) > best:
            best, at, state = value, number, copy.deepcopy(model.state_dict())
        elif number >= at + PATIENCE:
            break
    if state is not None:
        model.load_state_dict(state)
    return model, at, best


def search(folder: Path, out: Path, name: str, k: int, minutes: float) -> None:
    """Try the sizes on the validation questions, and write the lists of the best to the test questions."""
    began = time.perf_counter()
    task = Task.read(folder / f"{name}-validation.npz")
    trials: list[dict[str, Any]] = []
    for size, dropout in GRID:
        if trials and time.perf_counter() - began > 60 * minutes:
            break
        _, at, value = train(task, size, dropout, EPOCHS, k)
        seconds = time.perf_counter() - began
        trials.append({"size": size, "dropout": dropout, "epochs": at, "value": value, "until": seconds})
        print(name, trials[-1], flush=True)
    best = max(trials, key=lambda trial: trial["value"])
    task = Task.read(folder / f"{name}-test.npz")
    start = time.perf_counter()
    model, *_ = train(task, best["size"], best["dropout"], best["epochs"], k)
    seconds = time.perf_counter() - start
    where = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "processor"
    about = json.dumps({**best, "seconds": seconds, "device": where, "trials": trials})
    out.mkdir(exist_ok=True)
    lists = ranked(model, task.shown, task.items).numpy().astype(np.int32)
    np.savez_compressed(out / f"{name}.npz", lists=lists, about=about)
    print(name, "done", f"{time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="files of `mrfrec_lab.times_peers --export`")
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--k", type=int, default=20, help="places of the nDCG that is tuned (default 20)")
    parser.add_argument("--minutes", type=float, default=4.0, help="begin no trial later (default 4)")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    search(options.folder, options.out, options.name, options.k, options.minutes)


if __name__ == "__main__":
    main()
