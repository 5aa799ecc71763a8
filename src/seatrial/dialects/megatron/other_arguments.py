"""Megatron-LM's other arguments, which say nothing of a run, by why: a real argument is never called a typo.

After a name, `=` stands for one value and `*` for one or more; after `=` is the value that is not worth a finding.
Source as in `arguments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from seatrial.dialects.megatron.arguments import flag, several
from seatrial.dialects.table.coerce import text
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected

_EQUIVALENT: Mapping[str, str] = {
    "fused kernels change speed, and results only by rounding": """
        no-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion
        no-gradient-accumulation-fusion cross-entropy-loss-fusion cross-entropy-fusion-impl= fused-single-qkv-rope
        use-te-activation-func use-fused-weighted-squared-relu no-persist-layer-norm apply-rope-fusion
        transformer-impl= use-mcore-models use-transformer-engine-op-fuser use-fused-rmsnorm
        attention-softmax-in-fp32 disable-bf16-reduced-precision-matmul fp32-residual-connection deterministic-mode""",
    "how communication is split and overlapped changes speed only": """
        overlap-grad-reduce overlap-param-gather overlap-param-gather-with-optimizer-step no-align-grad-reduce
        no-align-param-gather ddp-num-buckets= ddp-bucket-size= ddp-pad-buckets-for-high-nccl-busbw
        ddp-average-in-collective ddp-reduce-scatter-with-fp32-accumulation no-overlap-p2p-communication
        overlap-p2p-communication-warmup-flush tp-comm-overlap tp-comm-overlap-cfg= disable-tp-comm-overlap-ag
        disable-tp-comm-overlap-rs tp-comm-overlap-rs-dgrad disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad
        tp-comm-bootstrap-backend= disable-tp-comm-split-ag disable-tp-comm-split-rs use-ring-exchange-p2p
        no-scatter-gather-tensors-in-pipeline pipeline-model-parallel-comm-backend= high-priority-stream-groups*
        use-nccl-ub disable-symmetric-registration use-sharp sharp-enabled-group= nccl-communicator-config-path=
        hierarchical-context-parallel-sizes* use-tp-pp-dp-mapping defer-embedding-wgrad-compute
        wgrad-deferral-limit= delay-wgrad-compute no-gradient-reduce-div-fusion suggested-communication-unit-size=
        microbatch-group-size-per-virtual-pipeline-stage= no-async-tensor-model-parallel-allreduce
        use-contiguous-parameters-in-local-ddp no-contiguous-buffers-in-local-ddp DDP-impl= fsdp-double-buffer
        torch-fsdp2-no-reshard-after-forward enable-full-sharding-in-hsdp reuse-grad-buf-for-mxfp8-param-ag
        fp8-param-gather keep-fp8-transpose-cache keep-fp8-weight-transpose-cache-te nccl-all-reduce-for-prefill""",
    "where memory is saved changes speed and memory only": """
        distribute-saved-activations cpu-offloading-num-layers= no-clone-scatter-output-in-embedding
        empty-unused-memory-level= optimizer-cpu-offload optimizer-offload-fraction=
        use-torch-optimizer-for-cpu-offload overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params
        manual-gc manual-gc-interval= no-manual-gc-eval record-memory-history memory-snapshot-path=
        enable-cuda-graph external-cuda-graph cuda-graph-impl= cuda-graph-scope= cuda-graph-warmup-steps=
        te-rng-tracker init-model-with-meta-device use-cpu-initialization mamba-mem-eff-path""",
    "rendezvous does not change the result": """
        distributed-backend= distributed-timeout-minutes= distributed-timeout-seconds-after-init= local-rank=
        lazy-mpu-init= disable-gloo-process-groups""",
    "which layers are on which pipeline stage does not change the result": """
        decoder-first-pipeline-num-layers= decoder-last-pipeline-num-layers= pipeline-model-parallel-layout=""",
    "prefetching changes speed only": """
        num-workers= no-mmap-bin-files num-dataset-builder-threads= object-storage-cache-path=
        no-create-attention-mask-in-dataloader mid-level-dataset-surplus= disable-msc""",
    "no token of a pretraining batch is padding, so all sequences weigh the same": "calculate-per-token-loss",
    "norms are not decayed, so weights around 0 and around 1 learn the same": "apply-layernorm-1p",
}

_IGNORED: Mapping[str, str] = {
    "it concerns only Megatron's own log": """
        log-throughput log-num-zeros-in-grad log-progress timing-log-level= timing-log-option= log-energy
        no-barrier-with-level-1-timing tensorboard-log-interval= tensorboard-queue-size= log-timers-to-tensorboard
        no-log-loss-scale-to-tensorboard log-validation-ppl-to-tensorboard log-memory-to-tensorboard
        log-world-size-to-tensorboard log-learning-rate-to-tensorboard log-batch-size-to-tensorboard wandb-project=
        wandb-entity= wandb-save-dir= logging-level= log-straggler disable-straggler-on-startup straggler-ctrlr-port=
        straggler-minmax-count= run-workload-inspector-server no-one-logger one-logger-project= one-logger-run-name=
        one-logger-async app-tag-run-name= app-tag-run-version= config-logger-dir= log-max-attention-logit
        log-memory-interval= log-device-memory-used moe-per-layer-logging""",
    "Seatrial monitors its runs itself": """
        rerun-mode= error-injection-rate= error-injection-type= result-rejected-tracker-filename=
        check-for-spiky-loss check-for-large-grads
        check-weight-hash-across-dp-replicas-interval= train-sync-interval= enable-ft-package calc-ft-timeouts
        inprocess-restart inprocess-max-iterations= inprocess-monitor-thread-interval=
        inprocess-monitor-process-interval= inprocess-progress-watchdog-interval= inprocess-heartbeat-interval=
        inprocess-soft-timeout= inprocess-hard-timeout= inprocess-heartbeat-timeout= inprocess-barrier-timeout=
        inprocess-completion-timeout= inprocess-last-call-wait= inprocess-termination-grace-time=
        inprocess-granularity= inprocess-active-world-size= inprocess-empty-cuda-cache adlr-autoresume
        adlr-autoresume-interval= exit-signal-handler exit-signal= exit-duration-in-mins=""",
    "checkpoints have Seatrial's own format": """
        dist-ckpt-format= use-dist-ckpt auto-detect-ckpt-format ckpt-convert-format= ckpt-convert-save=
        ckpt-convert-update-legacy-dist-opt-format ckpt-fully-parallel-save no-ckpt-fully-parallel-save
        ckpt-fully-parallel-load ckpt-assume-constant-structure dist-ckpt-strictness= dist-ckpt-save-pre-mcore-014
        dist-ckpt-optim-fully-reshardable distrib-optim-fully-reshardable-mem-efficient
        no-save-optim no-save-rng no-load-rng save-retain-interval= non-persistent-save-interval=
        non-persistent-ckpt-type= non-persistent-global-ckpt-dir= non-persistent-local-ckpt-dir=
        non-persistent-local-ckpt-algo= replication replication-jump= replication-factor=
        no-strict-fsdp-dtensor-load use-mp-args-from-checkpoint-args use-checkpoint-args ckpt-step=
        no-use-tokenizer-model-from-checkpoint-args override-opt_param-scheduler override-opt-param-scheduler
        use-checkpoint-opt_param-scheduler use-checkpoint-opt-param-scheduler load-main-params-from-ckpt
        async-ckpt-save-strategy= no-initialization dump-param-to-param-group-map=""",
    "FP8 is scaled in the trainer's own way": """
        fp8-margin= fp8-interval= fp8-amax-history-len= fp8-amax-compute-algo= no-fp8-wgrad
        fp8-quantizer-factory= first-last-layers-bf16 num-layers-at-start-in-bf16= num-layers-at-end-in-bf16=""",
    "the tokenizer is identified by its type and model": """
        vocab-file= merge-file= tokenizer-metadata= tiktoken-pattern= tiktoken-num-special-tokens=
        tiktoken-special-tokens* legacy-tokenizer trust-remote-code vocab-extra-ids= allow-ambiguous-pad-tokens""",
    "Megatron itself ignores it": "no-position-embedding onnx-safe= bert-no-binary-head",
    "it concerns Megatron's profiler": "use-pytorch-profiler profile-ranks* nvtx-ranges",
    "data is read once, in the order of its shuffled index": "dataloader-type=",
    "it matters only with what is not supported here, or in inference": """
        inference-batch-times-seqlen-threshold= max-tokens-to-oom= output-bert-embeddings bert-embedder-type=
        flash-decode use-legacy-static-engine inference-max-requests= inference-max-seq-length=
        inference-max-batch-size= inference-dynamic-batching inference-dynamic-batching-buffer-size-gb=
        inference-dynamic-batching-block-size= inference-dynamic-batching-buffer-guaranteed-fraction=
        inference-dynamic-batching-buffer-overflow-factor= inference-dynamic-batching-max-requests-override=
        inference-dynamic-batching-max-tokens-override= inference-dynamic-batching-num-cuda-graphs=
        inference-dynamic-batching-track-paused-request-events inference-dynamic-batching-unified-memory-level=
        inference-rng-tracker inference-wandb-logging-step-interval= decode-only-cuda-graphs symmetric-ar-type=
        mlp-chunks-for-prefill= disable-chunked-prefill relative-attention-num-buckets=
        relative-attention-max-distance= mask-prob= short-seq-prob= sample-rate= retriever-seq-length=
        decoder-seq-length= ict-head-size= biencoder-projection-dim= biencoder-shared-query-context-model ict-load=
        bert-load= titles-data-path= query-in-block-prob= use-one-sent-docs evidence-data-path=
        retriever-report-topk-accuracies* retriever-score-scaling block-data-path= embedding-path=
        indexer-batch-size= indexer-log-interval= num-classes= img-h= img-w= num-channels= patch-dim=
        classes-fraction= data-per-class-fraction= no-data-sharding head-lr-mult= vision-pretraining-type=
        vision-backbone-type= swin-backbone-type= mask-type= mask-factor= iter-per-epoch= dino-local-img-size=
        dino-local-crops-number= dino-head-hidden-size= dino-bottleneck-size= dino-freeze-last-layer=
        dino-norm-last-layer dino-warmup-teacher-temp= dino-teacher-temp= dino-warmup-teacher-temp-epochs=
        mamba-state-dim= mamba-head-dim= mamba-num-groups= mamba-num-heads= disable-mamba-mem-eff-path
        moe-ffn-hidden-size= moe-layer-freq= moe-shared-expert-intermediate-size= moe-shared-expert-overlap
        moe-grouped-gemm moe-use-legacy-grouped-gemm moe-layer-recompute moe-extended-tp
        moe-router-load-balancing-type* moe-router-dtype= moe-router-fusion moe-router-score-function=
        moe-router-topk= moe-router-pre-softmax moe-router-num-groups= moe-router-group-topk=
        moe-router-topk-scaling-factor= moe-router-enable-expert-bias moe-router-bias-update-rate=
        moe-router-force-load-balancing moe-router-padding-for-fp8 moe-aux-loss-coeff* moe-z-loss-coeff=
        moe-input-jitter-eps= moe-token-dispatcher-type= moe-enable-deepep moe-deepep-num-sms= moe-permute-fusion
        moe-expert-capacity-factor= moe-pad-expert-input-to-capacity moe-token-drop-policy= moe-apply-probs-on-input
        overlap-moe-expert-parallel-comm moe-upcycling-granularity= moe-pad-experts-for-cuda-graph-inference
        expert-tensor-parallel-size= q-lora-rank= kv-lora-rank= qk-head-dim= qk-pos-emb-head-dim= v-head-dim=
        rotary-scaling-factor= mscale= mscale-all-dim= cache-mla-latents mtp-loss-scaling-factor=
        sft-tokenizer-prompt-format= muon-momentum= muon-no-split-qkv muon-use-nesterov muon-scale-mode=
        muon-fp32-matmul-prec= muon-num-ns-steps= muon-tp-mode= muon-extra-scale-factor= fp4-recipe=
        fp4-quantizer-factory= fp4-param-gather fp16-lm-cross-entropy activation-func-clamp-value=
        glu-linear-offset= rl-prompts-per-eval=
        grpo-prompts-per-step= grpo-group-size= grpo-iterations= grpo-clamp-eps-lower= grpo-clamp-eps-upper=
        grpo-kl-beta= grpo-entropy-term-weight= grpo-filter-groups-with-same-reward grpo-default-temperature=
        grpo-default-top-p= retro-project-dir= retro-cyclic-train-iters= retro-encoder-layers=
        retro-encoder-hidden-dropout= retro-encoder-attention-dropout= retro-num-neighbors=
        retro-num-retrieved-chunks= retro-attention-gate= retro-no-verify-neighbor-count enable-experimental
        mrope-section* test-mode multiple-validation-sets""",
}

_REJECTED: Mapping[str, str] = {
    "mixture of experts is not supported here": "num-experts=0 expert-model-parallel-size=1 moe-use-upcycling",
    "multi-latent attention is not supported here": "multi-latent-attention",
    "multi-token prediction is not supported here": "mtp-num-layers=",
    "only Llama-like and GPT-like decoders are supported here": """
        spec* is-hybrid-model hybrid-attention-ratio=0.0 hybrid-mlp-ratio=0.0 hybrid-override-pattern=
        heterogeneous-layers-config-path= heterogeneous-layers-config-encoded-json= retro-add-retriever
        vision-pretraining decoder-num-layers= apply-residual-connection-post-layernorm""",
    "this activation is not supported here: there is swiglu, and gelu without it":
        "squared-relu quick-geglu openai-gelu",
    "attention of this kind is not supported here": """
        window-attn-skip-freq= softmax-type=vanilla qk-layernorm qk-l2-norm apply-query-key-layer-scaling
        attention-output-gate""",
    "rotary positions of this kind are not supported here": """
        rotary-interleaved rotary-seq-len-interpolation-factor= no-rope-freq= rope-type=rope""",
    "biases are on all linear layers, or on none, here": "add-qkv-bias",
    "parameters are updated in float32 here": "main-params-dtype=fp32",
    "FP4 is not supported here": "fp4-format=",
    "the batch has one size for the whole run here": "rampup-batch-size* decrease-batch-size-if-needed",
    "weight decay is constant here": "weight-decay-incr-style=constant start-weight-decay= end-weight-decay=",
    "the warm-up begins at 0 here": "lr-warmup-init=0.0",
    "weights are initialized from one normal distribution here": """
        init-method-xavier-uniform embedding-init-method-std= data-parallel-random-init""",
    "steps cannot be skipped here, nor evaluation run alone": "iterations-to-skip* skip-train",
    "fine-tuning and reinforcement learning are not read from Megatron's arguments": "sft perform-rl-step",
    "arguments in other files are not read": "yaml-cfg= data-args-path= per-split-data-args-path=",
    "quantization recipes of other libraries are not supported here": "kitchen-config-file= kitchen-recipe-number=",
    "legacy models are not supported here: Megatron has removed them": "use-legacy-models",
    "Megatron no longer has it: give --micro-batch-size and --global-batch-size": "batch-size=",
    "Megatron no longer has it: give --lr-warmup-fraction": "warmup=",
    "Megatron no longer has it: give --tensor-model-parallel-size": "model-parallel-size=",
    "Megatron no longer has it: give --recompute-granularity": "checkpoint-activations",
}  # fmt: skip


def _rows(make: Callable[..., Key], table: Mapping[str, str]) -> Iterator[tuple[str, Key]]:
    for why, words in table.items():
        for word in words.split():
            name, has_value, quiet = word.partition("=")
            read = text if has_value else several if name.endswith("*") else flag
            yield name.removesuffix("*"), make(why, read, quiet=(quiet,) if quiet else ())


OTHER_ARGUMENTS: Mapping[str, Key] = dict(
    (*_rows(equivalent, _EQUIVALENT), *_rows(ignored, _IGNORED), *_rows(rejected, _REJECTED))
)
