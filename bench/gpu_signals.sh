#!/bin/sh
# How soon a command that works on a GPU ends behind SIGTERM.
#
#     bench/gpu_signals.sh                 needs weft, built with CUDA, and a GPU; nothing else, no
#                                          data; under a minute
#     WEFT=PATH DEVICE=cpu bench/gpu_signals.sh
#
# Each command gets SIGTERM 3 s after its start (AFTER), in the midst of its work, and must end with
# 143 within 2 s (MOST). Prints one table: command, seconds behind the signal, exit code, what it
# was doing. Ends with 1 where a row is not ok; a command that had ended before its signal was not
# measured, which is not ok either.
set -u
weft=${WEFT:-build/weft}
case $weft in /*) ;; *) weft=$PWD/$weft ;; esac
device=${DEVICE:-cuda} after=${AFTER:-3} most=${MOST:-2}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
status=0

# What they work on: two collections, copies of one, a flow of the other.
recipe() { # recipe NAME ARCH SETTING...
    printf '[data]\nname = digits\n[zoo]\narch = %s\n' "$2" >"$1.conf"
    file=$1.conf
    shift 2
    printf '%s\n' "$@" >>"$file"
}
field='[model]
layout = lstar
node = 64
edge = 64
time = 64
blocks = 6
[train]
batch = 64'
recipe narrow 64-64-64-10 'count = 256' 'epochs = 1' "$field"
recipe wide 64-512-512-10 'count = 32' 'epochs = 1' '[model]' 'generator = dit' '[train]' \
    'batch = 8' \
    'coupling = independent'
recipe huge 64-1024-1024-10 'count = 64' 'epochs = 2000'
recipe many 64-16-10 'count = 1000000' 'epochs = 200'
make() {
    "$weft" "$@" --device "$device" -q >>made 2>&1 && return
    echo "gpu_signals.sh: $weft $*" >&2
    cat made >&2
    exit 1
}
make zoo train narrow.conf -o narrow.safetensors
make zoo train wide.conf -o wide.safetensors
make sample perturbation-0.25 -z wide.safetensors -n 300 -o copies.safetensors
make train narrow.conf -z narrow.safetensors -o flow.safetensors --set train.updates=4

printf '%-28s %8s %6s   %s\n' "command" "seconds" "exit" "the last line it said before the signal"
# stops NAME ARGUMENT...
stops() {
    name=$1
    shift
    "$weft" "$@" --device "$device" >said 2>&1 &
    pid=$!
    sleep "$after"
    doing=$(tail -n 1 said | cut -c 1-50)
    begun=$(date +%s%N)
    kill -TERM $pid 2>/dev/null
    (sleep 15 && kill -KILL $pid) 2>/dev/null & # so that a command that does not listen ends too
    guard=$!
    wait $pid
    code=$?
    milliseconds=$((($(date +%s%N) - begun) / 1000000))
    kill $guard 2>/dev/null
    wait $guard 2>/dev/null
    verdict=
    if [ $code -ne 143 ]; then
        verdict="  FAILED: $(tail -n 1 said)"
        [ $code -ne 0 ] || verdict="  NOT MEASURED: it had ended before"
    elif [ $milliseconds -gt $((most * 1000)) ]; then
        verdict="  FAILED: more than $most s"
    fi
    [ -z "$verdict" ] || status=1
    printf '%-28s %4d.%03d %6d   %s%s\n' "$name" $((milliseconds / 1000)) $((milliseconds % 1000)) \
        $code "$doing" "$verdict"
}
stops "zoo train, 64-1024-1024-10" zoo train huge.conf -o huge.safetensors
stops "zoo train, 64-16-10" zoo train many.conf -o many.safetensors
stops "train, gmn, 64-64-64-10" train narrow.conf -z narrow.safetensors -o trained.safetensors \
    --set train.updates=1000000
stops "train, dit, 64-512-512-10" train wide.conf -z wide.safetensors -o dit.safetensors \
    --set train.updates=1000000
stops "fit, 64-64-64-10" fit narrow.safetensors -m 5 -o fitted.safetensors
stops "sample, dopri5, 64-64-64-10" sample flow.safetensors -n 4000 --tolerance 1e-7 \
    -o drawn.safetensors
stops "eval, 64-512-512-10" eval -z wide.safetensors --nets copies.safetensors --data digits \
    --no-cache
left=$(find . -name '.*.tmp.*')
if [ -n "$left" ]; then
    echo "FAILED: left behind: $left"
    status=1
fi
exit $status
