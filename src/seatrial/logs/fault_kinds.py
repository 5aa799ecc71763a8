"""Everything that can break: one row per kind, with what it means for the verdict and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["fatal", "warning"]
Role = Literal["cause", "symptom", "victim"]
Retry = Literal["never", "elsewhere", "again"]
Cuts = Literal["died", "could_not_run", "no_progress", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """A kind of fault.

    `severity`: a warning never fails a run by itself. `role`: a symptom has its cause elsewhere, a victim went down
    because of another. `cuts` is what becomes of a run that it ends; "could_not_run" holds before the first step only.
    `retry`: "never" before something is changed, "elsewhere" without the blamed node, "again" as it is.
    `hint`: what to check and to change; empty where the fault's own text says it. `of_others`: a process reports it of
    others; the rank that prints the line is the reporter, not the one that failed.
    """

    name: str
    title: str
    severity: Severity
    role: Role
    cuts: Cuts
    retry: Retry
    hint: str
    of_others: bool = False


_Row = tuple[str, str, Severity, Role, Cuts, Retry, str]

_ROWS: tuple[_Row, ...] = (
    # --- what the launcher and the trainer of this project say ---
    ("non_finite_loss", "loss not finite", "fatal", "cause", "died", "never",
     "Check the learning rate, the warm-up and the data of that step; gradient clipping and a lower rate help most."),
    ("process_died", "process died", "fatal", "cause", "died", "again",
     ""),
    ("start_failed", "start failed", "fatal", "cause", "could_not_run", "never",
     ""),
    ("monitor_lost", "container monitor lost", "fatal", "cause", "died", "again",
     "Check the logs of the host's kernel and the container engine for what ended it: the OOM killer, a restart."),
    ("no_progress", "no progress", "fatal", "cause", "no_progress", "again",
     ""),
    ("step_failed", "step failed", "fatal", "symptom", "died", "again",
     ""),
    ("peer_stopped", "stopped with a peer", "warning", "victim", "died", "again",
     "It was stopped because another process had ended; check that one."),
    # --- numbers ---
    ("non_finite_gradient", "gradient not finite", "fatal", "cause", "died", "elsewhere",
     "If only one rank or node has it, suspect its hardware (silent data corruption); else lower the learning rate."),
    ("bad_gradient_norm", "odd gradient norm", "warning", "symptom", "died", "never",
     "Watch the loss; if it recurs, lower the learning rate or clip harder."),
    # --- memory ---
    ("device_oom", "GPU out of memory", "fatal", "cause", "died", "never",
     "Retrying will not help: lower the micro batch or the sequence length, recompute activations, or shard more."),
    ("host_oom", "host out of memory", "fatal", "cause", "died", "never",
     "Request more host memory, or use fewer data workers and less pinned or staged memory."),
    ("dataloader_died", "data worker died", "fatal", "cause", "died", "never",
     "Most often /dev/shm or host memory is too small: raise --shm-size, or lower the number of workers."),
    ("bus_error", "bus error", "fatal", "cause", "died", "never",
     "/dev/shm is full or too small (raise --shm-size), or a mapped file was cut."),
    # --- GPU ---
    ("gpu_ecc", "uncorrectable GPU memory error", "fatal", "cause", "died", "elsewhere",
     "The GPU is broken or needs a reset: take the node out and check the ECC counters (nvidia-smi -q, amd-smi)."),
    ("gpu_lost", "GPU fell off the bus", "fatal", "cause", "died", "elsewhere",
     "Take the node out; check power, riser and PCIe link, then reboot it."),
    ("gpu_hang", "GPU hang", "fatal", "cause", "died", "elsewhere",
     "The GPU hangs or was reset: take the node out and check dmesg."),
    ("gpu_memory_fault", "illegal GPU memory access", "fatal", "cause", "died", "elsewhere",
     "A kernel accessed invalid memory. If it follows the node, it is hardware; if not, a kernel or library version."),
    ("gpu_link", "GPU link error", "fatal", "cause", "died", "elsewhere",
     "NVLink, NVSwitch or XGMI failed: take the node out and check the fabric manager."),
    ("gpu_xid", "GPU driver error", "fatal", "cause", "died", "elsewhere",
     "The Xid number says what it is; if it recurs on the same node, take the node out."),
    ("gpu_xid_after", "GPU driver cleaned up", "warning", "symptom", "died", "again",
     "Xid 43 and 45 follow a process that died; check what came before."),
    ("gpu_error", "GPU error", "fatal", "cause", "died", "elsewhere",
     "Run once with CUDA_LAUNCH_BLOCKING=1 or AMD_SERIALIZE_KERNEL=3 to see which kernel it is."),
    ("device_assert", "assertion on the GPU", "fatal", "cause", "died", "never",
     "Most often a token id outside of the vocabulary: check tokenizer, vocabulary size and data."),
    ("no_device", "no GPU visible", "fatal", "cause", "could_not_run", "elsewhere",
     "Check the driver (nvidia-smi, rocm-smi), the container's device options and *_VISIBLE_DEVICES."),
    ("rocm_not_found", "ROCm library not found", "warning", "cause", "could_not_run", "never",
     "The image has no ROCm user-space library in the search path."),
    ("gpu_throttled", "GPU throttled", "warning", "symptom", "died", "elsewhere",
     "Heat or power slows this GPU; check cooling and the power cap."),
    ("driver_warning", "GPU driver warning", "warning", "symptom", "died", "again",
     "Too many queues or processes share the GPU; check for others on the node."),
    # --- node and kernel ---
    ("hardware_error", "hardware error", "fatal", "cause", "died", "elsewhere",
     "The machine reports broken memory, CPU or PCIe: take the node out."),
    ("hardware_corrected", "hardware error, corrected", "warning", "cause", "died", "elsewhere",
     "Watch the error counter of this node; it may fail soon."),
    ("kernel_panic", "kernel fault", "fatal", "cause", "died", "elsewhere",
     "The node's kernel or GPU driver failed: take the node out and keep its dmesg."),
    ("kernel_warning", "kernel warning", "warning", "symptom", "died", "elsewhere",
     "Check the node's dmesg around that time."),
    ("self_test_failed", "self-test failed", "warning", "cause", "died", "elsewhere",
     "A test of the device or driver failed: take the node out if it recurs."),
    ("node_lost", "node lost", "fatal", "cause", "died", "elsewhere",
     "Take the node out and restart from the last checkpoint."),
    ("heartbeat_lost", "no heartbeat", "fatal", "symptom", "no_progress", "elsewhere",
     "A process or node no longer answers: check the one named; if none is, the host of the rendezvous."),
    # --- network and collectives ---
    ("collective_timeout", "collective timed out", "fatal", "symptom", "no_progress", "again",
     "A rank did not join: check the ranks that are not in the list, and what they did last."),
    ("collective_desync", "ranks in different collectives", "fatal", "cause", "no_progress", "never",
     "The ranks run different programs (a branch, data or step count differs by rank): it is no network fault."),
    ("collective_error", "collective failed", "fatal", "symptom", "died", "again",
     "Set NCCL_DEBUG=INFO, and check for a rank that ended first and for network errors."),
    ("peer_lost", "connection to a peer lost", "fatal", "symptom", "died", "again",
     "The peer at the other end ended or became unreachable: find the one that ended first."),
    ("nic_fault", "network adapter fault", "fatal", "cause", "died", "elsewhere",
     "Take the node out; check the adapter's state and counters (ibstat, rdma statistic)."),
    ("rdma_error", "RDMA transfer failed", "fatal", "symptom", "died", "elsewhere",
     "The other end is gone or the path is bad: check link state, GID index, MTU and flow control."),
    ("link_down", "network link down", "fatal", "cause", "died", "elsewhere",
     "Check cable, transceiver and switch port of that interface."),
    ("connect_failed", "connection failed", "fatal", "symptom", "could_not_run", "again",
     "Check the coordinator's address and port, and that its process runs."),
    ("port_taken", "port in use", "fatal", "cause", "could_not_run", "again",
     "Another process holds the port: choose another one, or end what is left of the last run."),
    ("name_unresolved", "host name unknown", "fatal", "cause", "could_not_run", "never",
     "The coordinator's name must resolve on every node; an address avoids the question."),
    # --- start-up ---
    ("start_barrier", "not all processes joined", "fatal", "symptom", "could_not_run", "again",
     "Check the logs of the missing processes, and that the coordinator's address is not 127.0.0.1."),
    ("process_missing", "process did not join", "fatal", "symptom", "could_not_run", "again",
     "Check this process's log and node: it did not start, could not connect, or was too slow."),
    ("coordination_lost", "coordination service failed", "fatal", "symptom", "died", "again",
     "A process was lost or restarted: find the one that ended first."),
    # --- container, scheduler ---
    ("container_failed", "container could not start", "fatal", "cause", "could_not_run", "never",
     "Check image name, registry login, mounts, runtime folders and the GPU container toolkit on that node."),
    ("launch_failed", "scheduler could not launch", "fatal", "cause", "could_not_run", "again",
     "Check the node's Slurm daemon, clock and credentials (munge)."),
    ("cancelled", "cancelled", "fatal", "cause", "interrupted", "again",
     "A person or a failed dependency cancelled the job."),
    ("step_cancelled", "job step cancelled", "fatal", "victim", "interrupted", "again",
     "Slurm ends the whole step when one of its tasks fails, or when a person cancels it."),
    ("preempted", "preempted", "fatal", "cause", "interrupted", "again",
     "Restart from the last checkpoint."),
    ("time_limit", "time limit", "fatal", "cause", "died", "again",
     "Request more time, or save checkpoints and resume."),
    ("job_failed", "job failed", "fatal", "symptom", "died", "again",
     "The scheduler reports it; the log of the first rank that failed says why."),
    ("bad_exit", "ended with an exit code", "fatal", "symptom", "died", "again",
     "The lines before it say why."),
    # --- processes ---
    ("worker_failed", "worker failed", "fatal", "symptom", "died", "again",
     "Check the log of the rank that failed first."),
    ("worker_stopped", "worker stopped", "fatal", "victim", "died", "again",
     "It was stopped because another worker had failed."),
    ("killed", "killed", "fatal", "victim", "died", "again",
     "SIGKILL from outside: the out-of-memory killer (check dmesg), the scheduler, or a person."),
    ("terminated", "asked to stop", "fatal", "victim", "interrupted", "again",
     "SIGTERM from the scheduler, a person, or a launcher after another process had failed."),
    ("segfault", "segmentation fault", "fatal", "cause", "died", "never",
     "A library crashed: check that driver, CUDA or ROCm, NCCL and framework versions are compatible."),
    ("aborted", "aborted", "fatal", "symptom", "died", "again",
     "The process ended itself; the message before it says why."),
    ("interpreter_died", "Python died", "fatal", "cause", "died", "never",
     "The stack that follows shows which library it was in."),
    ("exception", "exception", "fatal", "cause", "died", "never",
     "The traceback above the line shows where it was raised."),
    ("suspicious_line", "looks like an error", "warning", "symptom", "died", "never",
     "An error is named, but nothing shows that it ended anything."),
    ("interrupted", "interrupted", "fatal", "cause", "interrupted", "again",
     "A person pressed Ctrl-C or sent SIGINT."),
    # --- software and configuration ---
    ("module_missing", "Python module missing", "fatal", "cause", "could_not_run", "never",
     "Install it in the image or environment that runs."),
    ("version_mismatch", "incompatible versions", "fatal", "cause", "could_not_run", "never",
     "Install compatible versions of jaxlib, plugins, driver and libraries."),
    ("unknown_xla_flag", "unknown XLA flag", "fatal", "cause", "could_not_run", "never",
     "Remove the named flags from XLA_FLAGS, or use a version that knows them."),
    ("config_error", "configuration rejected", "fatal", "cause", "could_not_run", "never",
     "Correct the setting that the message names."),
    ("mesh_mismatch", "parallelism does not fit the devices", "fatal", "cause", "could_not_run", "never",
     "The product of the parallel sizes must be the number of devices, and divide the batch."),
    ("dataset_error", "data set unusable", "fatal", "cause", "could_not_run", "never",
     "Check the data path, its index or cache folder, and that every node sees it."),
    ("checkpoint_error", "checkpoint unusable", "fatal", "cause", "could_not_run", "never",
     "Check that its path is right, that it is complete, and that model and mesh match it."),
    ("access_denied", "not authorised", "fatal", "cause", "could_not_run", "never",
     "Provide a token with access to the model or data."),
    ("compile_failed", "compilation failed", "fatal", "cause", "could_not_run", "never",
     "The compiler's message names the operation; try without the newest flags or kernels."),
    # --- storage ---
    ("disk_full", "disk full", "fatal", "cause", "died", "never",
     "Free space or quota on the file system named, or write checkpoints elsewhere."),
    ("read_only_files", "read-only file system", "fatal", "cause", "died", "elsewhere",
     "The file system was mounted read-only, or became so after an error: check the mount on that node."),
    ("storage_error", "storage error", "fatal", "cause", "died", "elsewhere",
     "The file system does not answer or lost a file handle: check the mount on that node."),
    ("permission", "permission denied", "warning", "cause", "could_not_run", "never",
     "Check owner and mode of the path, and the user inside the container."),
)  # fmt: skip

_OF_OTHERS = {
    "heartbeat_lost", "node_lost", "peer_lost", "rdma_error", "connect_failed",
    "start_barrier", "process_missing", "coordination_lost",
}  # fmt: skip

KINDS: dict[str, FaultKind] = {
    name: FaultKind(
        name=name,
        title=title,
        severity=severity,
        role=role,
        cuts=cuts,
        retry=retry,
        hint=hint,
        of_others=name in _OF_OTHERS,
    )
    for name, title, severity, role, cuts, retry, hint in _ROWS
}
