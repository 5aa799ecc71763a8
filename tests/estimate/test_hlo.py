"""The text of a compiled program, read: against programs that are counted by hand, and against NumPy's iota."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seatrial.estimate.hlo import Collective, Kernel, read_program

# Two loops inside each other, a fusion with a product in it, and a collective of each form.
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused (p.0: f32[8,16], p.1: f32[16,8]) -> f32[8,8] {
  %p.0 = f32[8,16]{1,0} parameter(0)
  %p.1 = f32[16,8]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,8]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%apart (p.2: bf16[64]) -> bf16[8] {
  %p.2 = bf16[64]{0} parameter(0)
  ROOT %rs = bf16[8]{0} reduce-scatter(%p.2), replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, to_apply=%sum
}

%inner (p.3: (s32[], bf16[4,32])) -> (s32[], bf16[4,32]) {
  %p.3 = (s32[], bf16[4,32]{1,0}) parameter(0)
  %x = bf16[4,32]{1,0} get-tuple-element(%p.3), index=1
  %ags = (bf16[4,32]{1,0}, bf16[8,32]{1,0}) all-gather-start(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}
  %agd = bf16[8,32]{1,0} all-gather-done(%ags)
  %mm = (bf16[8,8]{1,0}, s8[1024]{0}) custom-call(%agd, %x), custom_call_target="__cublas$lt$matmul"
  %f8 = bf16[8,8]{1,0} custom-call(%agd, %x), custom_call_target="__cublas$lt$matmul$f8"
  ROOT %t = (s32[], bf16[4,32]{1,0}) tuple(%x)
}

%outer (p.4: (s32[], bf16[4,32])) -> (s32[], bf16[4,32]) {
  %p.4 = (s32[], bf16[4,32]{1,0}) parameter(0)
  ROOT %w = (s32[], /*index=1*/bf16[4,32]) while(%p.4), body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

ENTRY %main (a.0: bf16[4,32], a.1: bf16[64]) -> bf16[4,32] {
  %a.0 = bf16[4,32]{1,0} parameter(0)
  %a.1 = bf16[64]{0} parameter(1)
  %w1 = (s32[], bf16[4,32]{1,0}) while(%t0), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  %w2 = (s32[], bf16[4,32]{1,0}) while(%t0), condition=%c, body=%outer
  %fu = f32[8,8]{1,0} fusion(%x, %y), kind=kCustom, calls=%fused
  %st = ((bf16[64]{0}), bf16[8]{0}) async-start(%a.1), calls=%apart
  %ar = (f32[10]{0}, f32[6]{0}) all-reduce-start(%g, %h), replica_groups={}, backend_config={"is_sync":true}
  %cp = bf16[4,32]{1,0} collective-permute(%a.0), source_target_pairs={{0,2},{2,0},{1,3},{3,1}}
  ROOT %fmha = bf16[4,32]{1,0} custom-call(%a.0), custom_call_target="__cudnn$fmhaSoftmaxBackward"
}
"""


def test_loops_within_loops_are_counted_by_their_turns() -> None:
    """The outer loop runs its body three times, the one of unknown length once, and each five turns of the inner."""
    program = read_program(PROGRAM, {"pipeline": 2, "data": 2, "tensor": 2})
    gathered, scattered, summed, sent = (
        next(each for each in program.collectives if each.kind == kind)
        for kind in ("all-gather", "reduce-scatter", "all-reduce", "collective-permute")
    )
    assert gathered == Collective(
        kind="all-gather", axes=("pipeline",), is_asynchronous=True, instructions=1, times=20, bytes=20 * 8 * 32 * 2
    )
    assert scattered == Collective(
        kind="reduce-scatter", axes=("data",), is_asynchronous=True, instructions=1, times=1, bytes=64 * 2
    )
    assert (summed.axes, summed.is_asynchronous, summed.bytes) == (("pipeline", "data", "tensor"), False, 16 * 4)
    assert (sent.axes, sent.is_asynchronous, sent.bytes) == (("data",), False, 4 * 32 * 2)
    assert program.kernels == (
        Kernel(kind="cuDNN attention, backward", instructions=1, times=1),
        Kernel(kind="product, bf16", instructions=1, times=20),
        Kernel(kind="product, f32, no library", instructions=1, times=1),
        Kernel(kind="product, fp8", instructions=1, times=20),
    )
    assert program.unknown_loops == 1


@pytest.mark.parametrize("seed", range(30))
def test_groups_that_are_counted_are_numpy_s(seed: int) -> None:
    """`[groups,each]<=[dims]T(order)` is iota(dims).transpose(order).reshape(groups, each)."""
    random = np.random.default_rng(seed)
    sizes = [int(2 ** random.integers(0, 4)) for _ in range(random.integers(1, 5))]
    order = [int(n) for n in random.permutation(len(sizes))]
    whole = np.arange(np.prod(sizes)).reshape(sizes).transpose(order).reshape(-1)
    each = int(np.prod([sizes[axis] for axis in order[random.integers(0, len(sizes)) :]]))
    text = (
        "ENTRY %main (a: f32[8]) -> f32[8] {\n"
        f"  ROOT %r = f32[8]{{0}} all-reduce(%a), replica_groups=[{len(whole) // each},{each}]"
        f"<=[{','.join(map(str, sizes))}]T({','.join(map(str, order))}), to_apply=%sum\n}}\n"
    )
    (found,) = read_program(text, {f"axis{n}": size for n, size in enumerate(sizes)}).collectives
    places = np.array(np.unravel_index(whole[:each], sizes))
    differ = tuple(f"axis{n}" for n in range(len(sizes)) if len(set(places[n])) > 1)
    assert found.axes == differ


@pytest.mark.parametrize("seed", range(30))
def test_groups_of_a_mesh_are_numpy_s(seed: int) -> None:
    """`mesh[sizes] {axes}`, where `axis:(before)parts` is the middle dimension of its axis cut into three."""
    random = np.random.default_rng(seed)
    cut = [[int(2 ** random.integers(0, 3)) for _ in range(3)] for _ in range(random.integers(1, 4))]
    asked, named = [], []
    for n, (before, parts, _) in enumerate(cut):
        way = random.choice(["none", "whole", "part"])
        asked += [way == "whole", way != "none", way == "whole"]
        named += {"none": [], "whole": [f"'a{n}'"], "part": [f"'a{n}':({before}){parts}"]}[way]
    sizes = [math.prod(parts) for parts in cut]
    groups = f"mesh[{','.join(f'*a{n}*={size}' for n, size in enumerate(sizes))}]".replace("*", "'")
    text = (
        "ENTRY %main (a: f32[8]) -> f32[8] {\n"
        f"  ROOT %r = f32[8]{{0}} all-reduce(%a), replica_groups={groups} {{{','.join(named)}}}, to_apply=%sum\n}}\n"
    )
    everything = np.arange(math.prod(sizes)).reshape([part for parts in cut for part in parts])
    group = everything[tuple(slice(None) if all_of else 0 for all_of in asked)].reshape(-1)
    mesh_in_twos = {f"bit{n}": 2 for n in range(int(np.log2(math.prod(sizes))))}  # devices are numbered as in any mesh
    (found,) = read_program(text, mesh_in_twos).collectives
    places = np.array(np.unravel_index(group, list(mesh_in_twos.values()) or [1]))
    assert found.axes == tuple(name for name, place in zip(mesh_in_twos, places, strict=False) if len(set(place)) > 1)


def test_what_is_no_program_has_nothing() -> None:
    for text in ("", "no program\n", "ENTRY %main (a: f32[8]) -> f32[8] {\n"):
        program = read_program(text, {"data": 1})
        assert (program.collectives, program.kernels, program.unknown_loops) == ((), (), 0)
