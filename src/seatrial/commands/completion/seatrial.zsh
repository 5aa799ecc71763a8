#compdef seatrial
# Completion of seatrial for zsh. One of:
#   seatrial completion zsh > ~/.zfunc/_seatrial   (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
#   eval "$(seatrial completion zsh)"              (behind `compinit` in ~/.zshrc)

_seatrial() {
    local -a lines keys plain
    local line type value about
    lines=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX" _SEATRIAL_COMPLETE=zsh_complete \
        command ${(Q)words[1]} 2>/dev/null)}")
    [[ $PREFIX == --*=* ]] && compset -P '*='
    for line in $lines; do
        type=${line%%$'\t'*} line=${line#*$'\t'}
        value=${line%%$'\t'*} about=${line#*$'\t'}
        case $type in
            file) _files ;;
            dir) _files -/ ;;
            plain)
                if [[ $value == *[=/] ]]; then
                    keys+=("${value//:/\\:}${about:+:$about}")
                else
                    plain+=("${value//:/\\:}${about:+:$about}")
                fi
                ;;
        esac
    done
    (( $#keys )) && _describe -V key keys -S ''
    (( $#plain )) && _describe -V value plain
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _seatrial "$@"
else
    compdef _seatrial seatrial
fi
