# Read by every bash in the sandbox (BASH_ENV): notes each command with its place, and catches programs that are not here.
export SEATRIAL_AT
set -o functrace
trap 'SEATRIAL_AT="${BASH_SOURCE[0]-}:$LINENO"
printf "%s\0%s\0%s\0" "$SEATRIAL_AT" "$PWD" "$BASH_COMMAND" 2>/dev/null >>/seatrial/trace || :' DEBUG
command_not_found_handle() { /seatrial/bin/.any "$@"; }
ulimit() { builtin ulimit "$@" 2>/dev/null || :; }  # a limit that is raised stays as it is
