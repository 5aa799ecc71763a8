"""The trainer: plain dict pytrees and pure functions over a mesh. JAX lives here and nowhere else.

    mesh        devices → a five-axis mesh            sharding    where every tensor lies; the collectives that follow
    params      every parameter, declared once        precision   how numbers are stored; products per backend
    attention   rows of equal value                   model       tokens → hidden states
    sight       what a query may read                 context     a sequence split over devices
    blocks      attention on any backend, or a ring   fp8         products of fp8 operands
    objectives  hidden states → loss                  optimizer   AdamW, schedule, clipping
    step        one optimizer step, in one shard_map  loop        steps, events, failures
    checkpoint  when, which, what to go on from       stored      a checkpoint on disk, onto any mesh
    hf          Hugging Face's folders, there and back
    data/       where tokens come from

Shape suffixes name dimensions: x_BTD is [batch, token, hidden].

    A accumulation   B batch       T token (query)   S token (key)   L layer      V vocabulary
    D hidden         H query head  G key/value head  R = H / G       K head dim   F feed-forward   N = B·T
"""
