"""Rotary positions, the key and value cache, and attention over it."""

from __future__ import annotations

import numpy as np

from dielet.formats.bf16 import from_bf16, to_bf16
from dielet.formats.cache import position_bytes
from dielet.program.commands.cache import read_keys, read_values, write_key, write_value
from dielet.program.commands.entry import (
    Entry,
    Run,
    Values,
    columns,
    command,
    stride,
    value_dtypes,
    value_widths,
)
from dielet.program.commands.values import rms_normed, rotated, store
from dielet.program.types import Command, Operand

CACHES = ("k_cache", "v_cache")  # with the attribute `kv`, their number format; without, bf16
CACHE_DTYPES = {"bf16": "bf16", "int8": "u8"}  # of the operands, by number format
ROW_BLOCK = 16  # rows of a chunk that an attention kernel takes together


@command
class Rotary(Entry):
    """y = rotate(x) * scale by position past + t, per head; x is normed per head first if asked."""

    kind = "rotary"
    engine = "general"
    reads = "x norm? cos sin"
    writes = "y"
    static = ("D", "norm", "eps", "scale", "batch")
    packed = "cos sin"

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        x = _heads(v["x"], run.valid, int(c.attrs["D"]))
        if c.attrs["norm"]:
            x = rms_normed(x, v["norm"][0], float(c.attrs["eps"]))
        at = run.positions(bool(c.attrs["batch"]))
        y = rotated(x, v["cos"][at], v["sin"][at]) * np.float32(c.attrs["scale"])
        v["y"][: run.valid] = to_bf16(y.reshape(run.valid, -1))

    def widths(self, c: Command) -> dict[str, int]:
        D = int(c.attrs["D"])
        heads = columns(c, "x") // D
        return {"x": heads * D * 4, "y": heads * D * 2, **_table_widths(D)}

    def dtypes(self, c: Command) -> dict[str, str]:
        return {"y": "bf16"}

    def asked(self, c: Command) -> set[str]:
        return {"norm"} if c.attrs["norm"] else set()

    def params(self, c: Command) -> tuple[int, ...]:
        return columns(c, "x") // int(c.attrs["D"]), stride(c, "x"), stride(c, "y")

    def variant(self, c: Command) -> str:
        return f"d{c.attrs['D']}" + ("n" if c.attrs["norm"] else "")

    def units(self, c: Command, run: Run | None = None) -> int:
        return self.rows(c, run, "x") * (columns(c, "x") // int(c.attrs["D"]))

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 6 * self.rows(c, run) * columns(c, "x")}

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        if operand.role in ("cos", "sin"):
            return self.rows(c, run, "x") * operand.region.width  # a row of the table for each
        return super().moved(c, operand, run)


@command
class KvAppend(Entry):
    """Write rotated (and normed) keys and values at the rows' positions: past ... past+valid of
    one sequence, or of a batch the next position of each row's own.

    In bf16, a value at an even position clears its odd partner, so half a pair is never stale.
    In int8 each head's numbers get a scale, the keys after `spread` in dielet/formats/cache.py.
    """

    kind = "kv_append"
    engine = "general"
    reads = "k v norm? cos sin"
    writes = "k_cache v_cache"
    static = ("D", "norm", "eps", "batch")
    options = ("kv",)
    packed = "cos sin"

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        D, batch = int(c.attrs["D"]), bool(c.attrs["batch"])
        k, value = _heads(v["k"], run.valid, D), _heads(v["v"], run.valid, D)
        if c.attrs["norm"]:
            k = rms_normed(k, v["norm"][0], float(c.attrs["eps"]))
        at = run.positions(batch)
        k = rotated(k, v["cos"][at], v["sin"][at])
        for row, head in np.ndindex(k.shape[:2]):
            sequence = row if batch else 0
            position = int(at[row])
            write_key(v["k_cache"][sequence, head], kv_format(c), position, k[row, head])
            write_value(v["v_cache"][sequence, head], kv_format(c), position, value[row, head])

    def widths(self, c: Command) -> dict[str, int]:
        D = int(c.attrs["D"])
        width = c.operand("k_cache").region.rows * D * 4
        return {"k": width, "v": width, **_table_widths(D)}

    def dtypes(self, c: Command) -> dict[str, str]:
        return dict.fromkeys(CACHES, CACHE_DTYPES[kv_format(c)])

    def asked(self, c: Command) -> set[str]:
        return {"norm"} if c.attrs["norm"] else set()

    def params(self, c: Command) -> tuple[int, ...]:
        heads = c.operand("k_cache").region.rows
        return heads, stride(c, "k"), stride(c, "v"), c.operand("k_cache").region.stride

    def variant(self, c: Command) -> str:
        return f"d{c.attrs['D']}" + ("n" if c.attrs["norm"] else "")

    def units(self, c: Command, run: Run | None = None) -> int:
        return c.operand("k_cache").region.rows

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"f32": 6 * self.rows(c, run, "k") * columns(c, "k")}

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        rows = self.rows(c, run, "k")
        if operand.role in ("cos", "sin"):
            return rows * operand.region.width
        if operand.role in CACHES:
            return rows * operand.region.rows * _position_bytes(c)  # only what is new
        return super().moved(c, operand, run)


@command
class Attention(Entry):
    """y = softmax(q . k^T) . v over the cache, causal: a row sees the positions up to its own, or
    of them the last `window`.

    q is already scaled by log2(e)/sqrt(D), so that the softmax is 2^s / sum 2^s.
    """

    kind = "attention"
    engine = "neural"
    reads = "q k_cache v_cache"
    writes = "y"
    static = ("D", "G", "T", "out", "batch")
    options = ("kv", "window")
    tolerance = 2**-8  # kernels may round the probabilities to bf16

    def meaning(self, c: Command, v: Values, run: Run) -> None:
        D, G = int(c.attrs["D"]), int(c.attrs["G"])
        q = from_bf16(_heads(v["q"], run.valid, D))
        batch = bool(c.attrs["batch"])
        ends = run.positions(batch) + 1
        y = np.empty_like(q)
        # Rows that share a cache go together: all of a chunk, or one of a batch.
        for rows in ([row] for row in range(run.valid)) if batch else ([*range(run.valid)],):
            sequence, end = rows[0] if batch else 0, int(ends[rows[-1]])
            at, stop = np.arange(end)[None, :], ends[rows][:, None]
            seen = (at < stop) & (at >= stop - (_window(c) or end))
            for head in range(q.shape[1]):
                k = read_keys(v["k_cache"][sequence, head // G], kv_format(c), D)[:end]
                values = read_values(v["v_cache"][sequence, head // G], kv_format(c), D)[:end]
                s = np.where(seen, q[rows, head] @ k.T, -np.inf)
                p = np.exp2(s - s.max(-1, keepdims=True))
                y[rows, head] = p @ values / p.sum(-1, keepdims=True)
        store(v, run.valid, y.reshape(run.valid, -1), str(c.attrs["out"]), 0)

    def widths(self, c: Command) -> dict[str, int]:
        queries = c.operand("k_cache").region.rows * int(c.attrs["G"]) * int(c.attrs["D"])
        return {"q": queries * 2, **value_widths("y", queries, str(c.attrs["out"]), 1)}

    def dtypes(self, c: Command) -> dict[str, str]:
        caches = dict.fromkeys(CACHES, CACHE_DTYPES[kv_format(c)])
        return {"q": "bf16", **caches, **value_dtypes("y", str(c.attrs["out"]))}

    def complaint(self, c: Command) -> str:
        return "its result is int8" if c.attrs["out"] == "int8" else ""

    def params(self, c: Command) -> tuple[int, ...]:
        cache = c.operand("k_cache").region
        return cache.rows, stride(c, "q"), stride(c, "y"), cache.stride

    def variant(self, c: Command) -> str:
        return f"d{c.attrs['D']}g{c.attrs['G']}" + ("i8" if kv_format(c) == "int8" else "")

    def depth(self, c: Command, run: Run | None = None) -> int:
        seen = self._seen(c, run)
        return sum(seen) // len(seen)

    def units(self, c: Command, run: Run | None = None) -> int:
        rows = self.rows(c, run)
        blocks = rows if c.attrs["batch"] else -(-rows // ROW_BLOCK)
        return c.operand("k_cache").region.rows * blocks

    def ops(self, c: Command, run: Run | None = None) -> dict[str, int]:
        return {"bf16": 4 * sum(self._seen(c, run)) * columns(c, "q")}  # which holds any int8 code

    def shape(self, c: Command, run: Run | None = None) -> tuple[int, int, int]:
        rows = 1 if c.attrs["batch"] else self.rows(c, run)
        return rows * int(c.attrs["G"]), max(self._seen(c, run)), int(c.attrs["D"])

    def moved(self, c: Command, operand: Operand, run: Run | None) -> int:
        if operand.role not in CACHES:
            return super().moved(c, operand, run)
        seen = self._seen(c, run)
        positions = sum(seen) if c.attrs["batch"] else self._reach(c, run)
        return operand.region.rows * positions * _position_bytes(c)

    def _seen(self, c: Command, run: Run | None) -> list[int]:
        """Positions that each row attends to: all of the capacity, or up to its own."""
        capacity = cache_positions(c)
        if run is None:
            return [min(capacity, _window(c) or capacity)] * self.rows(c)
        most = _window(c) or capacity
        return [min(int(at) + 1, most) for at in run.positions(bool(c.attrs["batch"]))]

    def _reach(self, c: Command, run: Run | None) -> int:
        """Positions that some row of one sequence attends to."""
        seen, rows = max(self._seen(c, run)), self.rows(c, run)
        if run is None or not _window(c):
            return seen
        return min(seen + rows - 1, run.past + rows)


def kv_format(c: Command) -> str:
    """The number format of the cache that a command reads or writes."""
    return str(c.attrs.get("kv", "bf16"))


def cache_positions(c: Command) -> int:
    """How many positions the cache operands hold."""
    return c.operand("k_cache").region.width // _position_bytes(c)


def _position_bytes(c: Command) -> int:
    return position_bytes(kv_format(c), int(c.attrs["D"]))


def _window(c: Command) -> int:
    """Positions up to its own that a row sees; 0 for all."""
    return int(c.attrs.get("window", 0))


def _table_widths(D: int) -> dict[str, int]:
    return {"norm": D * 4, "cos": D * 2, "sin": D * 2}


def _heads(x: np.ndarray, valid: int, D: int) -> np.ndarray:
    return x[:valid].reshape(valid, -1, D)
