#!/usr/bin/env bash
# The real MaxText, for the tests:
#
#   tests/engines/maxtext.sh FOLDER
#
# makes FOLDER/bin, whose python3 has the packages of maxtext.txt; once, unless these change. MaxText needs Python 3.12 or
# 3.13. Where there is none on the PATH, it is that of a newer Debian, which takes root and debootstrap: its /usr lies in
# FOLDER/debian, and stands in the place of this machine's /usr for the processes of that python3 alone.
set -euo pipefail

pins=$(realpath "$(dirname "$0")/maxtext.txt")
mkdir -p "$1"
folder=$(realpath "$1")
cmp --silent "$pins" "$folder/made.txt" && exit
rm -rf "$folder/bin" "$folder/venv" "$folder/made.txt"

fits='import ensurepip, sys, venv; sys.exit(not (3, 12) <= sys.version_info < (3, 14))'
for python in ${PYTHON:-} python3.13 python3.12 python3; do
    "$python" -c "$fits" 2>/dev/null && break
    python=
done

inside=()
if [ -z "$python" ]; then
    if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
        echo "MaxText needs Python 3.12 or 3.13 with venv, or root and debootstrap (apt-get install debootstrap)" >&2
        exit 1
    fi
    if [ ! -e "$folder/debian/made" ]; then
        for _ in 1 2 3; do # a mirror may be out of reach for a moment
            rm -rf "$folder/debian"
            debootstrap --variant=minbase --include=python3,python3-venv trixie "$folder/debian" \
                >"$folder/debootstrap.log" && touch "$folder/debian/made" && break
        done
        [ -e "$folder/debian/made" ] || { tail "$folder/debootstrap.log" >&2; exit 1; }
    fi
    # shellcheck disable=SC2016 # the words are for the inner shell
    inside=(unshare --mount sh -c 'mount --bind "$0" /usr && exec "$@"' "$folder/debian/usr")
    python=/usr/bin/python3
fi

echo "Installing MaxText and what it needs into $folder; once, unless its requirements change."
"${inside[@]}" "$python" -m venv "$folder/venv"
"${inside[@]}" "$folder/venv/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps \
    --requirement "$pins"
mkdir "$folder/bin"
{ echo '#!/bin/sh' && printf 'exec' && printf ' %q' "${inside[@]}" "$folder/venv/bin/python3" && echo ' "$@"'; } \
    >"$folder/bin/python3"
chmod +x "$folder/bin/python3"
cp "$pins" "$folder/made.txt"
