"""Native kernels: a small vector language that prints LLVM IR, its targets, and the worker loop.

`compile_kernels(keys, target, cache_dir)` gives a `Library` of loaded code; `library.address(key)`
is a function

    void kernel(ptr operands, ptr params, ptr binding, i64 lo_num, i64 hi_num, i64 den)

with operands ptr[] (addresses), params i64[] (run-time numbers), binding i64[] = {past, valid, and
of each row of a batch: position, cache offset}. It covers the units [units * lo_num / den, units *
hi_num / den) of its command. Strides count elements. Rows from `valid` on are neither read nor
written. A kernel takes up to 600 kB of its thread's stack.

family     static                     params                               operands -> units
rmsnorm    K eps out group            x_stride y_stride row0 rows          x weight y.. -> own
quantize   group                      columns x_stride q_stride g_stride   x q scale sum
                                      row0 rows                       -> own * columns / group
convert                               columns x_stride y_stride row0 rows  x y
                                                                      -> own * columns / 32
linear     K format group minimum     panels x_stride xg_stride y_stride   x.. w [residual] [bias] y
           T residual bias            r_stride                        -> panels
rotary     D norm eps scale           heads x_stride y_stride              x [weight] cos sin y
                                                                      -> valid * heads
kv_append  D norm eps                 heads k_stride v_stride head_bytes   k v [weight] cos sin
                                                                  kcache vcache -> heads
attention  D G T out                  kv_heads q_stride y_stride           q kcache vcache y
                                      head_bytes    -> kv_heads [* ceil(valid / 16) when T > 1]
silu_mul   out group                  columns gate_stride up_stride        gate up y..
                                      y_stride g_stride               -> valid * columns / run
select                                columns                              logits out -> 1
embed      K format group minimum     y_stride                             table ids y -> valid
copy, reduce, nothing                 see kernels/transfer.py

`y..` is y, and with out=int8 also scale f32 and sum i32 ([rows, columns / group], in rmsnorm
densely packed); a run is the group with out=int8, else 32. `x..` is x, and for int8 and int4 also
its scale and sum. `head_bytes` leads from one head of the cache to the next, in keys and values
alike; dielet/formats/cache.py has the layouts. What a kernel computes is written in its file.

linear and embed have `zeros` where each group of weights has a zero point of its own, as
dielet/formats/packed.py says.

rotary, kv_append and attention have a static `batch`: rows are then not a run of one sequence, but
the next tokens of as many sequences, with caches of their own. kv_append and attention have `kv`,
the number format of the cache.

A command that owns rows [row0, row0 + rows) of a chunk has operands that begin at row0, and `own`
of these rows are real: clamp(valid - row0, 0, rows).

A row's result does not depend on T, valid, the other rows, or how a command is cut into pieces.
"""

from dielet.codegen.kernel import KernelKey
from dielet.codegen.library import Library, compile_kernels
from dielet.codegen.targets import TARGETS, Target, host_target

__all__ = ["TARGETS", "KernelKey", "Library", "Target", "compile_kernels", "host_target"]
