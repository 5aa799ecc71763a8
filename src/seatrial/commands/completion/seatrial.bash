# Completion of seatrial for bash. One of:
#   seatrial completion bash > ~/.local/share/bash-completion/completions/seatrial   (with the package bash-completion)
#   eval "$(seatrial completion bash)"                                                (in ~/.bashrc)

_seatrial() {
    local type value about
    COMPREPLY=()
    while IFS=$'\t' read -r type value about; do
        case $type in
            file) compopt -o default 2>/dev/null ;;  # bash's own: it knows quotes, ~ and variables
            dir) compopt -o dirnames 2>/dev/null ;;
            plain)
                [[ $value == *[=/] ]] && compopt -o nospace 2>/dev/null
                [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || printf -v value %q "$value"  # else an open quote does it
                COMPREPLY+=("$value")
                ;;
        esac
    done < <(
        COMP_LINE=${COMP_LINE:0:COMP_POINT} COMP_CUR=${COMP_WORDS[COMP_CWORD]} _SEATRIAL_COMPLETE=bash_complete \
            command "$1" 2>/dev/null
    )
}

complete -o nosort -F _seatrial seatrial 2>/dev/null || complete -F _seatrial seatrial
