#!/bin/sh
# Files made to cost much: each is refused or read within 100 MB and four times its size, and 2 s of
# CPU time.
. tests/cli/lib.sh
not_sanitized "its own memory would count"
cd "$scratch" || exit 1
python3 "$root/tests/cli/costly_files.py" "$weft" >results ||
    fail "costly files" "$(tail -n 2 results)"
while read -r verdict rest; do
    case $verdict in
    ok) pass "$rest" ;;
    *) fail "${rest%%:*}" "${rest#*: }" ;;
    esac
done <results
check "files were tried" test "$(grep -c . results)" -gt 20
finish
