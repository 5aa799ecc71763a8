"""The trainer: plain dict pytrees and pure functions over a mesh. JAX lives here and nowhere else.

    mesh              devices → a five-axis mesh           sharding          placement of tensors, and collectives
    params            every parameter, declared once       precision         number formats; products per backend
    model, layers     tokens → hidden states               attention         implementations of equal value
    masks             what a query may read                context_parallel  a sequence split over devices
    blockwise_attention  any backend, or a ring            fp8               products of fp8 operands
    pipeline          layers split over stages             remat             what the backward pass recomputes
    objectives        hidden states → loss                 optimizer, schedules  AdamW and others; learning rates
    step              one optimizer step                   trainer           its programs, compiled for a mesh
    loop              steps, evaluations, failures         startup, signals  how a process starts and stops
    evaluate          the validation loss                  dpo_reference     what DPO compares with
    checkpoint        when, which, what to resume from     checkpoint_files  a checkpoint on disk, onto any mesh
    metrics_log       events, tables, TensorBoard          goodput           productive time, and where the rest went
    hf                Hugging Face folders                 programs          `seatrial data` and `seatrial export`
    data/             where tokens come from

Shape suffixes name dimensions: x_BTD is [batch, token, hidden].

    A accumulation   B batch       T token (query)   S token (key)   L layer      V vocabulary
    D hidden         H query head  G key/value head  R = H / G       K head dim   F feed-forward   N = B·T
"""
