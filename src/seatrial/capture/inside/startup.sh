# Read by every bash in the sandbox (BASH_ENV): notes each command with its place, and those that fail with their
# status, catches programs that are not here, and lets limits be raised in words.
export SEATRIAL_AT
set -o functrace -o errtrace
trap 'SEATRIAL_AT="${BASH_SOURCE[0]-}:$LINENO"
printf "%s\0%s\0%s\0\0" "$SEATRIAL_AT" "$PWD" "$BASH_COMMAND" 2>/dev/null >>/seatrial/trace || :' DEBUG
trap 'printf "%s\0%s\0%s\0%s\0" "${BASH_SOURCE[0]-}:$LINENO" "$PWD" "$BASH_COMMAND" $? 2>/dev/null >>/seatrial/trace || :' ERR
command_not_found_handle() { /seatrial/bin/.any "$@"; }
ulimit() { builtin ulimit "$@" 2>/dev/null || :; }
