# Completion of seatrial for fish:
#   seatrial completion fish > ~/.config/fish/completions/seatrial.fish

function __seatrial_complete
    set -l token (commandline -ct)
    set -l option (string match -r -- '^--[^=]+=' "$token")
    set -lx COMP_LINE (commandline -cp | string collect)
    set -lx _SEATRIAL_COMPLETE fish_complete
    set -l program (commandline -opc)[1]
    for line in (command $program 2>/dev/null)
        set -l parts (string split -m 2 \t -- $line)
        switch $parts[1]
            case file
                for path in (__fish_complete_path (string replace -r -- '^--[^=]+=' '' "$token"))
                    printf '%s%s\n' "$option" $path
                end
            case dir
                for path in (__fish_complete_directories (string replace -r -- '^--[^=]+=' '' "$token") '')
                    printf '%s%s\n' "$option" $path
                end
            case plain
                printf '%s\t%s\n' $parts[2] $parts[3]
        end
    end
end

complete --no-files --keep-order --command seatrial --arguments '(__seatrial_complete)'
