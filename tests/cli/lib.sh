# What every command-line test sources: the program, a scratch folder, and checks that print ok/not
# ok lines.
weft=${BUILD:-build}/weft
case $weft in /*) ;; *) weft=$PWD/$weft ;; esac
root=$PWD
scratch=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$scratch" 2>/dev/null; rm -rf "$scratch"' EXIT
failures=0

# That of PYTHON, as in tests/run.sh; one found by PATH may take half a second to begin.
python3() { "${PYTHON:-/usr/bin/python3}" "$@"; }
pass() { echo "ok $1"; }
fail() {
    echo "not ok $1: $2"
    failures=$((failures + 1))
}
# check NAME CONDITION...: the condition is a command.
check() {
    name=$1
    shift
    if "$@" >"$scratch/check.out" 2>&1; then pass "$name"
    else fail "$name" "$*: $(tail -n 3 "$scratch/check.out")"; fi
}
# expect NAME CODE WORDS COMMAND...: the exit code, and WORDS on stderr (or stdout).
expect() {
    name=$1 code=$2 words=$3
    shift 3
    "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    if [ "$got" -ne "$code" ]; then
        fail "$name" "exit code $got, not $code, from: $*: $(tail -n 2 "$scratch/err")"
    elif ! grep -qF -e "$words" "$scratch/err" "$scratch/out"; then
        fail "$name" "\"$words\" is not in: $(tail -n 3 "$scratch/err")"
    else pass "$name"; fi
}
# wait_for COMMAND...: until it holds, at most 600 times a tenth of a second: long enough where
# others use the machine, too.
wait_for() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.1
    done
}
# Is this a sanitizer's build?
sanitized() { nm "$weft" 2>/dev/null | grep -q '__[at]san_init'; }
# not_sanitized REASON: for a script whose parts a sanitizer cannot watch, or watches elsewhere.
not_sanitized() {
    sanitized || return 0
    echo "skip $(basename "$0" .sh): a sanitizer's build; $1"
    exit 0
}
# value FILE KEY: of a JSON object; a key may have dots: a.b is key b of what a holds.
value() {
    python3 -c 'import json, sys
at = json.load(open(sys.argv[1]))
for key in sys.argv[2].split("."): at = at[key]
print(at)' "$1" "$2"
}
is_json() { python3 -m json.tool "$1" >/dev/null; }
finish() { [ "$failures" -eq 0 ]; }
