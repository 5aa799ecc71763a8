"""The spellings of faults: a table of the lines that logs, launchers, schedulers and kernels print.

A row is tried only on lines that hold one of its words, written in lower case and without digits; the first row that
matches decides, so what is special stands before what is general. Named groups become facts of the fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Pattern:
    """`kind` ← a line with one of `words` that `regex` matches."""

    kind: str
    words: tuple[str, ...]
    regex: re.Pattern[str]


# Lines that say scary words and mean nothing; matched in lower case and without digits.
BENIGN = re.compile(
    r"config param |nccl info |failed call to cuinit|pytorch was not found|exception ignored in|no-op\]"
    r"|rope_parameters|\b(?:user|future|deprecation|runtime|resource)warning\b"
    r"|retrying\b|entering retry loop|will retry\b|skipping\b|adjusting timeout"
    r"|(?<!to )(?<!for )\bdebug\b(?! info)|: warning: "
    r"|search for `\w+' in https|\] unable to initialize backend"  # JAX tries all that it knows
    r"|nvls\.cc: nccl warn cuda failure"  # NCCL does without
    # An experiment tracker that does not reach its server: training goes on without it.
    r"|\b(?:wandb|comet (?:warning|error)): .*(?:network|connection|timed out|timeout|heartbeat|unreachable)"
    # What JAX's coordination says of a start and an end in order.
    r"|polling for error from coordination service|coordination (?:service )?agent has successfully"
    r"|expected (?:upon|during) program shutdown"
    r"|\buc[xc]\s+(?:diag|info|trace|req|data|async|func|poll)\b"  # levels below a warning; what matters is said again
    r"|\blibfabric:.*<(?:info|trace)>|\b(?:nvshmem info|nccl trace)\b"
    r"|^(?:\[rank\]:)?\s*frame #: "  # of a C++ stack; what it was for stands above it
)
# A line of an option parser's or a program's banner that only echoes a setting.
ECHO = re.compile(r"^\s*(?:export\s+|\+\s*export\s+)?[\w.\-/]+ ?(?:\.{3,}|=|:) ?(?:[\w.\-/]+|'[^']*'|\"[^\"]*\")\s*$")

_RANK = r"(?:\[(?:PG (?:ID )?\d+[^\]]*? )?Rank (?P<rank>\d+)\].*)?"
_TASK = r"/job:[\w-]+/replica:\d+/task:(?P<rank>\d+)"
_TASK_OR_NUMBER = r"(?:/job:[\w-]+/replica:\d+/task:|\b)(?P<rank>\d+)"  # of JAX, which prints a number since 2025
_SRUN = r"(?:srun|slurmstepd|salloc|sbatch|mpirun|prterun): (?:error: )?"
_NOTICED = r"noticed that process rank (?P<rank3>\d+) with PID \d+ on node (?P<host3>\S+) exited on signal "  # mpirun
_SRUN_TASK = _SRUN + r"(?P<host>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: "

# Kind, words separated by |, and the regular expressions, any of which will do.
_ROWS: tuple[tuple[str, ...], ...] = (
    # --- GPU hardware: before the collectives, whose watchdog often is the messenger ---
    ("gpu_ecc", "uncorrectable|ecc error|ras error|double bit ecc|double-bit ecc|ecc notcorrectable|eccnotcorrectable",
     r"(?i:uncorrectable (?:ecc error|error|hardware error|nvlink))", r"(?i:hipErrorECCNotCorrectable)",
     r"(?i:double[- ]bit ecc)", r"(?i:ras error)", r"(?i:\bUMC\b.*uncorrectable)",
     r"(?i:(?<!0 )uncorrectable hardware errors? detected)"),
    ("gpu_lost", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>79)\b"),
    ("gpu_ecc", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>48|64|92|94|95|140)\b"),
    # NVLink 5 says itself whether it goes on.
    ("gpu_xid_after", "nonfatal", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>14[4-9]|150), \S+ Nonfatal\b"),
    ("gpu_link", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>74|14[4-9]|150)\b",
     r"SXid \(PCI:(?P<device2>[^)]*)\): (?P<code2>\d{5}), Fatal"),
    ("gpu_memory_fault", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>31)\b"),
    ("gpu_xid_after", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>43|45|63)\b"),
    ("gpu_xid", "xid", r"NVRM: Xid \((?:PCI:)?(?P<device>[^)]*)\): (?P<code>\d+)\b"),
    ("gpu_lost", "off the bus|gpu is lost|gpu_is_lost|device handle|initadapter|init_adapter|probe routine",
     r"(?i:fallen off the bus)", r"(?i:GPU[ _]is[ _]lost)", r"NVRM: The NVIDIA probe routine failed",
     r"Unable to determine the device handle for GPU ?(?P<device>\S+?):? ",
     r"NVRM: GPU (?P<device2>\S+): (?:RmInitAdapter|rm_init_adapter) failed"),
    ("gpu_link", "nvlink|nvswitch|xgmi",
     r"(?i:(?:nvlink|nvswitch|xgmi)\b.*(?:fatal|uncorrectable|link (?:is )?down|failed|error detected))"),
    ("gpu_hang", "hw exception|gpu hang|gpu reset|fence wait loop|unrecoverable state|ring gfx|ring sdma|ring comp",
     r"HW Exception by GPU(?: node-(?P<device>\d+))?",
     r"(?i:GPU Hang\b|GPU Reset(?: begin|\b)(?! *(?:succeeded|\(\d+\) succeeded)))",
     r"fence wait loop timeout expired", r"cp might be in an unrecoverable state", r"ring \S+ timeout"),
    ("gpu_memory_fault",
     "memory access fault|illegal memory access|illegal address|page fault|register access"
     "|protection_fault|aperture_violation|erroraddress",
     r"Memory access fault by GPU(?: node-(?P<device>\d+))?", r"illegal memory access", r"hipErrorIllegalAddress",
     r"an illegal address", r"no-retry page fault", r"\] retry page fault", r"Illegal register access",
     r"PROTECTION_FAULT_STATUS", r"MEMORY_APERTURE_VIOLATION", r"CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("device_assert", "device-side assert", r"device-side assert triggered", r"hipErrorAssert", r"cudaErrorAssert"),
    # --- memory ---
    ("device_oom", "out of memory|resource_exhausted|outofmemory|out_of_memory|alloc_failed",
     r"OutOfMemoryError", r"(?:CUDA|HIP|hip|cuda|XPU|NPU)(?: error:)? out of memory",
     r"(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY", r"hipErrorOutOfMemory", r"(?:Cuda|CUDA|HIP) failure \d* ?'out of memory'",
     r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate|Error allocating|.*\bHBM\b|.*allocat)",
     r"failed: RESOURCE_EXHAUSTED", r"(?i:out of memory while trying to allocate)", r"CUBLAS_STATUS_ALLOC_FAILED",
     r"HIPBLAS_STATUS_ALLOC_FAILED", r"Ran out of memory in memory space \w+"),
    ("host_oom", "oom|out of memory|memory limit|low on resource|bad_alloc|cannot allocate memory|memoryerror"
     "|out_of_me",
     r"Detected \d+ oom[_-]kill", r"oom-kill:", r"oom_reaper", _SRUN_TASK + "Out Of Memory",
     r"(?i:out of memory): Killed process (?P<pid>\d+)", r"invoked oom-killer", r"OOMKilled", r"std::bad_alloc",
     r"Cannot allocate memory", r"DefaultCPUAllocator: can't allocate", r"low on resource: memory",
     r"xceeded (?:job |step )?memory limit",
     r"\bOUT_OF_ME(?:MORY)?\+?\s*\|?\s*(?P<exit_code>\d+):\d+", r"MemoryError\b"),
    ("dataloader_died", "dataloader worker|encountered in worker",
     r"Unexpected (?:bus error|segmentation fault) encountered in worker",
     r"DataLoader worker \(pid(?:\(s\))?[^)]*\) (?:is killed by signal|exited unexpectedly)"),
    ("bus_error", "bus error|sigbus", _NOTICED + r"7\b", _SRUN_TASK + "Bus error", r"Bus error", r"\bSIGBUS\b"),
    # --- numbers ---
    ("non_finite_gradient", "found nan|found inf",
     r"Rank (?P<rank>\d+): found (?:NaN|Inf) in (?:local|global) grad norm(?:.*\bnode: (?P<host>[\w.-]+))?"),
    ("non_finite_gradient", "unexpected result|found nan|found inf|nan in|loss scale already",
     r"loss scale already at minimum",
     r"Unexpected result (?:nan|-?inf)\b(?: on rank (?P<rank>\d+))?(?: at iteration #(?P<step>\d+))?",
     r"[Ff]ound (?:NaN|Inf|nan|inf)\b.* in (?:local |global )?(?:forward|loss|grad)"),
    ("non_finite_gradient", "unexpected result is reproducible|different gpu",
     r"Rank (?P<rank>\d+), node (?P<host>[\w.-]+), device (?P<device>\d+), iteration #(?P<step>\d+): "
     r".*(?:unexpected result|rerun)"),
    ("non_finite_loss", "aborting training|non-finite loss|nan loss|loss is nan|loss is inf|lossnan|nan detected",
     r"Aborting training due to (?:NaN|Inf) loss", r"(?i:loss is (?:nan|inf)\b.*(?:stopping|exiting|abort|terminat))",
     r"(?:[Nn]on-finite|NaN) loss.*(?:abort|stop|exit)", r"NaNLossError", r"NanLossDuringTrainingError"),
    ("bad_gradient_norm", "bad grad_norm|bad grad norm", r"(?i:bad grad[_ ]norm)"),
    # --- network hardware ---
    # drivers/net/ethernet: mellanox/mlx5/core/{health,cmd}.c, broadcom/bnxt; net/sched/sch_generic.c
    ("nic_fault", "health compromised|leak of a command|transmit queue|bnxt_en",
     r"mlx5_core .*(?:health compromised|Will cause a leak of a command resource)",
     r"NETDEV WATCHDOG: .*transmit queue \d+ timed out", r"bnxt_en .*[Ff]irmware (?:fatal|reset|is dead)"),
    ("nic_fault", "catastrophic|cq error|cqe|ib_uverb|port_err|ibv_event|async event|async fatal event",
     r"(?:local work )?queue catastrophic", r"\bCQ error", r"\bCQE\b.*(?:error|failed|syndrome)", r"error.*\bCQE\b",
     r"ib_uverbs?.*(?:error|fail|fatal)", r"IBV_EVENT_(?:PORT_ERR|DEVICE_FATAL|QP_FATAL)",
     r"[Gg]ot async (?:fatal )?event.*(?:port error|fatal|catastrophic)",
     r"NET/IB : .*\basync fatal event\b"),
    ("link_down", "link is down|link down|port module event",
     r"Port module event.*Cable (?:unplugged|error)",
     r"(?i:NIC Link is Down)", r"(?i:(?<!if )link is down)", r"(?i:: link down\b)"),
    ("rdma_error", "completion|ibv_|retry exceeded|vendor err|net/ofi|net/ib|libfabric|unresponsive receiver",
     r"NET/IB : Remote .* device is incompatible with",
     r"NET/OFI .*[Rr]equest .*completed with error", r"NET/OFI (?:Could not|Unable to) register memory",
     r"efa_rdm_[rt]xe_handle_error\(\).*\berr: \d+", r"Unresponsive receiver \(",
     r"[Gg]ot completion (?:from peer )?.*(?:status=(?!0\b)\d+|with error)", r"IBV_WC_\w*ERR\w*",
     r"ibv_(?:poll_cq|post_\w+|reg_mr\w*|modify_qp|create_[cq][qp]|get_async_event)\b.*(?:failed|error)",
     r"transport retry (?:counter )?exceeded"),
    # --- collectives ---
    # torch/csrc/distributed/c10d/ProcessGroupGloo.cpp: rank 0 says who was not there
    ("process_missing", "failed to pass monitoredbarrier",
     r"\b[Rr]anks? (?P<ranks>\d+(?:, *\d+)*) failed to pass monitoredBarrier"),
    ("collective_timeout", "watchdog caught", _RANK + r"Watchdog caught collective operation timeout: "
     r"WorkNCCL\(SeqNum=(?P<sequence>\d+), OpType=(?P<operation>\w+)"),
    ("collective_timeout", "ran for",
     _RANK + r"WorkNCCL\((?:SeqNum=(?P<sequence>\d+), )?OpType=(?P<operation>\w+).*\bran for \d+ milliseconds"),
    ("collective_timeout",
     "megascale|termination timeout|nccl timeout|rccl timeout|collective timeout|collective operation timeout"
     "|notify register times"
     "|collective operation timed|collective timed|waiting for key|timed out waiting|is stuck|be stuck|stuck for"
     "|timeout at|monitoredbarrier|allreduce timed|all-reduce timed|heartbeat monitor",
     r"[NR]CCL timeout", r"Timeout waiting for key", r"monitoredBarrier",
     r"(?i:collective (?:operation )?timed? ?out)", r"The wait execution of the Notify register times out",
     r"Mega[Ss]cale (?:hang detected|detects a hang)", r"watchdog got stuck for \d+",
     r"Heartbeat monitor timed out",  # of the same watchdog in PyTorch 2.2
     r"Termination timeout .*exceeded",
     r"Timed out waiting \d+ms for (?:recv|send)",
     r"(?:participant|rank) .*(?:may be stuck|is stuck)", r"This thread has been waiting for .* and may be stuck"),
    ("collective_desync", "mismatch between collectives|desync|mismatched collective|collective fingerprint",
     r"Detected mismatch between collectives on ranks", r"[Dd]esync", r"[Mm]ismatched collective"),
    # The node that says so names itself: what is gone is the host of the rendezvous.
    ("heartbeat_lost", "keep-alive heartbeat",
     r"[Nn]ode '(?P<reporter_host>[^'\s]+?)(?:_\d+_\d+)?' has failed to send a keep-alive heartbeat"),
    # What JAX's coordinator has not heard of; "Task 3" since 2025.
    ("heartbeat_lost", "heartbeat", r"\b[Tt]ask (?P<rank>\d+) heartbeat timeout",
     r"(?:" + _TASK.replace("rank", "rank2") + r"[^/]*)?(?:heartbeat timeout|stopped sending heartbeats"
     r"|did not (?:send|respond to).*heartbeat|missed heartbeats?|[Hh]eartbeat timed out"
     r"|failed to send heartbeat)(?:.*" + _TASK.replace("rank", "task") + r")?"),
    ("peer_lost",
     "connection reset|connection closed by|remoteerror|socket closed|peer closed|broken pipe"
     "|connection was closed|remote process exited|sendbytes failed|recvbytes failed|call to recv"
     "|call to write|call to send",
     r"[Cc]onnection reset by peer", r"[Cc]onnection closed by (?:remote )?peer", r"Socket closed",
     r"ncclRemoteError", r"[Rr]emote process exited", r"peer closed the connection",
     r"NCCL WARN .*Call to (?:recv|write|send|sendmsg|recvmsg) .*failed", r"(?:send|recv)Bytes failed"),
    ("collective_error", "nccl|rccl|hccl|gloo|distbackenderror|hip failure|cuda failure|entire process down",
     r"Test NCCL failure", r"call hccl api failed", r"HCCL function error",
     r"[NR]CCL [Ee][Rr][Rr][Oo][Rr]", r"nccl(?:Internal|System|UnhandledCuda|InvalidUsage|InvalidArgument)Error",
     r"nccl(?:Unhandled|Internal|System)\b.*error", r"DistBackendError", r"NCCL operation .{1,200}? failed",
     r"unhandled (?:cuda|system|hip) error.*[NR]CCL", r"[Gg]loo .*(?:failed|error|timeout|timed out)",
     r"Some [NR]CCL operations have failed or timed out", r"we are taking the entire process down",
     r"NCCL (?:communicator|watchdog).*(?:abort|error)", r"WARN .*(?:Cuda|CUDA|HIP) failure"),
    # --- start-up and coordination ---
    ("start_barrier", "diststoreerror|clients joined",
     r"Timed out after \d+ seconds waiting for clients\.\s*(?P<came>\d+)/(?P<expected>\d+) clients joined"),
    ("start_barrier", "barrier timed out|barriererror",
     r"Barrier timed out\.?(?: (?:Barrier_)?[Ii]d: (?P<barrier>[^.\s]+))?", r"BarrierError"),
    ("start_barrier", "rendezvoustimeout|rendezvous",
     r"RendezvousTimeoutError", r"[Rr]endezvous (?:timed out|timeout|closed|failed)"),
    ("heartbeat_lost", "rendezvousconnectionerror", r"RendezvousConnectionError"),
    # tsl/distributed_runtime/coordination, later xla/pjrt/distributed/coordination: coordination_service{,_agent}.cc
    ("coordination_lost", "incarnation|set to error|already in error|the leader",
     _TASK_OR_NUMBER + r" (?:unexpectedly tried to connect|Heartbeat: Incarnation ID mismatch"
     r"|has been set to ERROR in coordination)",
     r"\b[Tt]ask \(" + _TASK_OR_NUMBER.replace("rank", "rank2") + r"\) is already in error",
     r"\bthe leader \(usually slice 0 [\w/]+ (?P<rank3>0)\)"),
    ("coordination_lost", "coordination|incarnation|deadline_exceeded|coordinator",
     r"CoordinationServiceError", r"different incarnation",
     r"[Cc]oordination (?:service|agent).*(?:error|fail|unavailable|shut)", r"DEADLINE_EXCEEDED",
     r"UNAVAILABLE: .*coordinat"),
    ("port_taken", "already in use|eaddrinuse",
     r"[Aa]ddress already in use", r"EADDRINUSE", r"port is already allocated"),
    ("name_unresolved", "name resolution|name or service|gaierror|getaddrinfo",
     r"[Tt]emporary failure in name resolution", r"Name or service not known", r"gaierror", r"getaddrinfo .*failed",
     r"cannot be resolved"),
    ("connect_failed",
     "connection refused|socket has timed out|distnetworkerror|failed to connect|no route to host"
     "|connection timed out|network is unreachable",
     r"[Cc]onnection refused", r"client socket has timed out", r"DistNetworkError",
     r"failed to connect to (?:all addresses|remote)", r"No route to host", r"Network is unreachable",
     r"[Cc]onnection timed out"),
    # --- scheduler ---
    ("time_limit", "time limit",
     r"(?:CANCELLED|TERMINATED|CANCEL).*DUE TO TIME LIMIT", r"job reached the time limit", r"Exceeded job time limit"),
    ("preempted", "preempt|taintmanagereviction",
     r"\bTaintManagerEviction\b", r"DUE TO PREEMPTION",
     r"(?i:preemption (?:notice|signal|event)|(?:was|being|has been) preempted)",
     r"\bPREEMPTED\+?\s*\|?\s*\d+:\d+"),
    # src/ray/gcs/gcs_server/gcs_node_manager.cc
    ("node_lost", "has been marked dead",
     r"[Nn]ode with node id: \w+(?: and address: (?P<host>[\w.:-]+?))?(?: and node name: \S+)? has been marked dead"),
    ("node_lost", "remote daemon", r"Remote daemon *: *\S+ on node (?P<host>[\w.-]+)"),
    ("node_lost",
     "node failure|node_fail|node fail|not responding|notready|node_lost|still not ready|boot of the nodes"
     "|lost communication",
     r"[OP]RTE has lost communication with a remote daemon",
     r"DUE TO NODE FAILURE", r"Node failure on (?P<host>[\w.,\[\]-]+)", r"\bNODE_FAIL\b",
     r"[Nn]odes? (?P<host2>[\w.-]+) (?:is |are )?(?:not responding|still not ready)", r"NodeNotReady",
     r"Something is wrong with the boot of the nodes"),
    ("launch_failed",
     "task launch|unable to create step|credential|slurmd|prolog|boot_fail|launch failed"
     "|authentication error",
     r"Task launch for \S+ failed on node (?P<host>[\w.-]+)", r"Prolog hung on node (?P<host2>[\w.-]+)",
     r"[Uu]nable to create step",
     r"Job credential (?:expired|revoked)", r"Prolog (?:error|failed)", r"[Pp]rolog.*exit", r"\bBOOT_FAIL\b",
     r"Zero Bytes were transmitted", r"[Ll]aunch failed requeued"),
    ("step_cancelled", "cancelled", r"\*\*\* STEP (?P<job>\S+) ON (?P<host>[\w.-]+) CANCELLED AT"),
    ("cancelled", "cancelled|canceled",
     r"\*\*\* JOB (?P<job>\S+) ON (?P<host>[\w.-]+) CANCELLED AT",
     r"\bCANCELLED(?: by \d+)?\+?\s*\|?\s*(?:\d+:\d+)", r"Job (?:\S+ )?(?:was |has been )?cancel+ed"),
    ("time_limit", "timeout", r"\bTIMEOUT\+?\s*\|?\s*\d+:\d+"),
    # --- containers ---
    ("container_failed", "pyxis", r"error: pyxis: (?!\s*printing|.*\bcontents\b)(?P<reason>.*)"),
    ("container_failed", "enroot",
     r"enroot[\w-]*: .*(?:[Ff]ailed|[Nn]o such|[Ee]rror|denied|[Nn]ot found)", r"\[ERROR\].*enroot",
     r"/run/enroot.*denied"),
    ("container_failed", "spank", r"error: spank: required plugin", r"spank_task_init_privileged failed"),
    ("container_failed", "container|docker|podman|oci runtime|manifest|crun|runc|imagepull|device driver"
     "|initializing source|short-name|unable to copy|statfs",
     r"nvidia-container-cli: ", r"docker: (?:Error|permission denied|Cannot|invalid)", r"Error response from daemon",
     r"Cannot connect to the Docker daemon", r"permission denied while trying to connect to the Docker",
     r"podman: .*(?i:error)",
     r"^(?:\S+: )?Error: (?:initializing source|unable to copy|creating container|runc|crun|OCI|short-name|statfs"
     r"|container)",
     r"OCI runtime\b.*(?:error|failed|attempted|not found)", r"manifest (?:unknown|for \S+ not found)",
     r"(?:ImagePullBackOff|ErrImagePull|CreateContainerError|RunContainerError)", r"could not select device driver"),
    # --- GPU software ---
    ("no_device",
     "no visible|nodevice|no cuda|no nvidia|no hip|no rocm|cuda_error_no_device|no accelerator|tpu topology"
     "|unable to initialize backend",
     r"No visible GPU devices", r"failed call to hipInit: HIP_ERROR_NoDevice", r"hipErrorNoDevice",
     r"no CUDA-capable device", r"CUDA_ERROR_NO_DEVICE", r"Found no NVIDIA driver",
     r"Failed to get global TPU topology",
     r"No (?:HIP|CUDA|ROCm) (?:GPUs|devices?) (?:are|is|was|were)? ?(?:available|found|detected)",
     r"Unable to initialize backend '(?:cuda|gpu|rocm|tpu)'"),
    ("rocm_not_found", "librocm", r"librocm reported version is: NOT_FOUND"),
    ("version_mismatch",
     "ffi|pjrt|undefined symbol|glibc|driver version|compiled against|incompatible|plugin version",
     r"No FFI handler registered", r"Unexpected \w+ size: expected \d+, got \d+", r"PJRT_Api.*(?:version|mismatch)",
     r"undefined symbol: ", r"version `GLIBC\w*_[\d.]+' not found", r"driver version is insufficient",
     r"version of jaxlib .* (?:incompatible|required)",
     r"jaxlib (?:version )?.*(?:incompatible|is newer than|too old)", r"was compiled against .* (?:but|while)"),
    ("driver_warning", "queue preemption|evict process|oversubscribed|sdma queue|reduced rocm|amdgpu: process pid",
     r"Queue preemption failed for queue", r"Failed to evict process queues", r"Runlist is getting oversubscribed",
     r"No more SDMA queue to allocate", r"Expect reduced ROCm performance", r"amdgpu: process pid"),
    ("gpu_throttled", "slowdown|throttl|above threshold",
     r"(?i:HW (?:Power Brake )?Slowdown.*: Active)", r"(?i:(?:thermal|power) throttl\w+ (?:active|detected))",
     r"(?i:temperature above threshold)"),
    ("gpu_error", "cuda|cudnn|cublas|hip|hsa|slice_failure|tpu session error",
     r"\bSLICE_FAILURE_\w+", r"detected TPU session error",
     r"\b(?:CUDA|HIP) error: (?P<reason>[\w -]+)", r"CUDNN_STATUS_(?!SUCCESS|NOT_SUPPORTED)\w+",
     r"(?:CU|HIP)BLAS_STATUS_(?!SUCCESS)\w+", r"hipError(?!Success|NotReady)[A-Z]\w+", r"cudaError(?!_t)[A-Z]\w+",
     r"HSA_STATUS_ERROR\w*", r"CUDA_ERROR_(?!NO_DEVICE)\w+", r"HSA exception"),
    # --- kernel (dmesg) ---
    ("hardware_corrected",
     "correctable err|corrected|machine check events|memory read error|memory write error|scrubbing error",
     r"Machine check events logged", r"EDAC MC\d+: \d+ CE\b",
     r"(?i:(?<!un)correctable err)", r"(?:severity=|AER: (?:Multiple )?)(?:Corrected\b|Uncorrected \(Non-Fatal\))",
     r"(?i:\[Hardware Error\].*(?<!un)corrected)"),
    ("hardware_error",
     "hardware error|hardware fail|machine check|mce:|aer:|bus error: severity|memory read error|memory write error",
     r"EDAC MC\d+: \d+ UE\b",
     r"severity=Uncorrected \(Fatal\)", r"AER: (?:Multiple )?Uncorrected \(Fatal\)",
     r"(?i:\[Hardware Error\])", r"(?i:hardware (?:error|fail))", r"(?i:Machine check)",
     r"(?i:mce: .*(?:fatal|uncorrected))"),
    ("segfault", "traps: ", r"\btraps: \S+\[(?P<pid>\d+)\] (?:general protection|trap )"),  # arch/x86/kernel/traps.c
    ("kernel_panic", "kernel panic|kernel bug|bug:|fatal error|soft lockup|general protection",
     r"Kernel panic", r"\bBUG: (?:unable|soft|kernel|KASAN|workqueue)", r"kernel BUG at", r"amdgpu: Fatal error",
     r"soft lockup", r"general protection fault"),
    ("kernel_warning", "call trace|rip:|cut here|end trace|show_stack|dump_stack|hung_task|blocked for more|stall",
     r"^.{0,40}\[\s*\d+\.\d+\].*(?:Call Trace:|\bRIP:|cut here|end trace|show_stack|dump_stack)",
     r"blocked for more than \d+ seconds", r"\brcu: .*detected (?:expedited )?stalls?\b"),
    ("self_test_failed", "test failure", r"\bTest failure\b"),
    # --- processes ---
    ("unknown_xla_flag", "xla_flags|unknown flag|xla flag",
     r"Unknown (?:command line )?flags? in (?:XLA_FLAGS|\w+_INIT_ARGS): ?(?P<flags>.*)", r"Unknown flags? .*xla"),
    ("interpreter_died", "fatal python error", r"Fatal Python error: (?!Aborted|Segmentation|Bus error)"),
    ("aborted", "fatal python error: aborted", r"Fatal Python error: Aborted"),
    ("segfault", "segmentation fault|sigsegv|segfault|signal ",
     _NOTICED + r"11\b", _SRUN_TASK + "Segmentation fault", r"Segmentation fault", r"\bSIGSEGV\b",
     r"(?:\[(?P<pid>\d+)\]: )?segfault at", r"(?i:caught )?signal:? 11\b", r"[Ss]ignal 11 \("),
    ("killed", "sigkill",
     r"(?:Signal 9 )?\(?\bSIGKILL\b\)?(?: received by PID| \(9\)|.*(?:killed|exit))", r"died .*SIGKILL",
     r"got SIGKILL"),
    ("killed", "killed", _NOTICED + r"9\b", r"(?:^|[\]\d]: ?)Killed\s*$",
     r"(?:line \d+|\[\d+\][+-]?):?\s+\d*\s*Killed\b", _SRUN_TASK + "Killed"),
    ("terminated", "sigterm|terminated|signal |got signal", _NOTICED + r"15\b",
     r"Sending process \d+ closing signal SIGTERM", r"exiting program after receiving SIGTERM",
     r"[Rr]eceived (?:death signal|signal|a)? ?(?:\d+ )?\(?SIGTERM", r"[Gg]ot SIGTERM",
     r"[Rr]eceived (?:termination )?signal:? 15\b", r"[Cc]aught signal:? (?:SIGTERM|15)",
     r"got signal: 15", _SRUN_TASK + "Terminated", r"SIGTERM.*(?:received|handler called)"),
    ("interrupted", "keyboardinterrupt|sigint",
     r"KeyboardInterrupt\b(?!,|\))", r"(?:[Rr]eceived|[Gg]ot|[Cc]aught) (?:signal )?\(?SIGINT"),
    ("aborted", "aborted|sigabrt|terminate called|core dumped",
     _NOTICED + r"6\b",
     r"\bAborted\b(?: \(core dumped\)|\s+\(SIGABRT\))?\s*$", r"Aborted\s+\(core dumped\)", r"\bSIGABRT\b",
     r"terminate called (?:after|without)", r"core dumped"),
    ("worker_failed", "childfailederror|local_rank",
     r"ChildFailedError", r"failed \(exitcode: (?P<exit_code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: \d+\)"),
    ("bad_exit", "exited with exit code", _SRUN_TASK + r"Exited with exit code (?P<exit_code>[1-9]\d*)"),
    ("job_failed", "failed", r"\bFAILED\+?\s*\|?\s*(?P<exit_code>\d+):\d+"),
    ("bad_exit", "return code", r"exits with return code = (?P<exit_code>-?[1-9]\d*)"),
    # composer/cli/launcher.py, which speaks of all ranks of its node
    ("bad_exit", "exited with code|crashed with exit code",
     r"\b[Rr]ank (?P<rank>\d+)(?: \(PID \d+\))? (?:exited with|crashed with exit) code (?P<exit_code>-?[1-9]\d*)"),
    ("bad_exit", "exit code|exit_code|exitcode|exit status|exited with",
     r"(?i:\bexit[_ ]?(?:code|status)\s*[:=]?\s*(?P<exit_code>-?[1-9]\d*)\b)",
     r"(?i:exited with (?:code|status|error) (?P<exit_code2>[1-9]\d*))", r"(?i:non-zero exit)"),
    # --- configuration and software ---
    ("mesh_mismatch", "parallelism|divisible|world size|world_size|mesh|parallel dims|unspecified value",
     r"Number of (?:devices(?: per slice)?|slices) \d+ does not match the product",
     r"DCN parallelism requested but only one slice", r"Unspecified value unable to be determined",
     r"[Ww]orld[_ ]size .*(?:not divisible|is not|must be|!=)",
     r"(?:must|should) be (?:a multiple of|divisible by) .*parallel",
     r"not (?:evenly )?divisible by",
     r"[Ii]nvalid parallel dim", r"parallel (?:size|dim).*(?:exceed|greater than|does not match)"),
    ("config_error",
     "config|argument|error: invalid|emb_dim|remat policy|attention kernel|overridden by|override|unrecognized"
     "|invalid choice|unknown key|validation error",
     r"MAXTEXT CONFIG ERROR: (?P<reason>.*)", r"overridden by both", r"validation errors? for \w+",
     r"error: unrecognized arguments", r"error: (?:argument|the following arguments)", r"\w\.py: error: invalid",
     r"not in 'emb_dim'", r"Remat policy needs to be on list", r"Unexpected attention kernel",
     r"ConfigAttributeError", r"ConfigKeyError", r"Could not override", r"ConfigCompositionException",
     r"MissingMandatoryValue", r"[Uu]nknown (?:config(?:uration)? )?key", r"invalid choice:",
     r"Unrecognized (?:options|arguments)", r"Key '?\w+'? (?:is )?not in (?:struct|config)"),
    ("module_missing", "no module named|cannot import|cannot open shared object",
     r"ModuleNotFoundError: No module named", r"ImportError: (?P<reason>.*)",
     r"cannot open shared object file"),
    ("access_denied", "gated|unauthorized|user token|invalid token|client error|not authorized|permissiondenied",
     r"GatedRepoError", r"40[13] Client Error", r"[Ii]nvalid (?:user )?token", r"[Uu]nauthorized", r"HTTP 40[13]"),
    ("dataset_error", "path_to_cache|dataset|filenotfounderror|tokenizer",
     r"Unable to save MockGPTDataset indexes because path_to_cache is None", r"Could not build (?:the )?dataset",
     r"[Dd]ataset .*(?:not found|does not exist|doesn't exist|corrupt)",
     r"FileNotFoundError: .*\.(?:idx|bin|jsonl|arrow|parquet|model)", r"[Tt]okenizer .*not found"),
    ("checkpoint_error", "checkpoint|state_dict",
     r"Error\(s\) in loading state_dict", r"could not find checkpoint",
     r"[Cc]heckpoint .*(?:is corrupt|corrupted|does not exist|not found and|incomplete|mismatch)",
     r"[Nn]o (?:valid )?checkpoint found.*(?:exit|abort)", r"exit-on-missing-checkpoint.*exiting",
     r"CheckpointException"),
    ("compile_failed", "ptxas|compil",
     r"ptxas (?:fatal|error)", r"[Cc]ompilation (?:failure|failed|error)", r"failed to compile", r"CompilationError"),
    # --- storage ---
    ("disk_full", "no space left|quota exceeded|enospc|low on resource",
     r"low on resource: (?:ephemeral-storage|inodes)",
     r"No space left on device", r"[Dd]isk quota exceeded", r"ENOSPC"),
    ("read_only_files", "read-only file system|erofs", r"Read-only file system", r"EROFS"),
    ("storage_error", "nfs: server|lustreerror|i/o error, dev|nvme|ext-fs error|xfs (",
     r"nfs: server \S+ not responding", r"LustreError: .*(?:evicted|timed out|not available)",
     r"\bI/O error, dev \w+", r"nvme \w+: I/O .*timeout", r"EXT4-fs error", r"XFS \(\S+\): .*[Ss]hutting down"),
    ("storage_error", "stale file|input/output error|endpoint is not connected|stale nfs",
     r"Stale (?:NFS )?file handle", r"Input/output error", r"Transport endpoint is not connected"),
    ("permission", "permission denied|permissionerror|operation not permitted",
     r"[Pp]ermission denied", r"PermissionError", r"Operation not permitted"),
    ("suspicious_line", "error: |exception: ",
     r"(?:^|[\s\]])(?:[\w.]+\.)?(?:Assertion|Value|Type|Runtime|Key|Index|Attribute|OS|IO|NotImplemented"
     r"|XlaRuntime|JaxRuntime|ZeroDivision|FileNotFound)Error: "),
)  # fmt: skip


@cache
def patterns() -> tuple[Pattern, ...]:
    """The table, compiled when it is first needed."""
    return tuple(Pattern(kind, tuple(words.split("|")), re.compile("|".join(rest))) for kind, words, *rest in _ROWS)
