#!/bin/sh
# What the README promises a newcomer, measured on two cores: `make demo` in a fresh clone, and the
# time of `weft fit` against its own estimate for collections of three sizes. Says the load before
# each measurement: with other work beside it the figures are those of the work. Fifteen minutes.
#   bench/first_hour.sh [FOLDER]     the clone and the runs go there; default: a temporary folder
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
cd "$folder"
load() { echo "load $(cut -d ' ' -f 1-3 /proc/loadavg): $1"; }
# timed COMMAND...: on two cores; seconds of the clock and of the processors, then its last line.
timed() {
    /usr/bin/env bash \
        -c 'TIMEFORMAT="  %R s, of the processors %U s + %S s"; time "$@" >out 2>err' sh taskset \
        -c 0,1 "$@" 2>&1
    tail -n 1 out
}

echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo |
    head -n 1), commit $(git -C "$here" rev-parse --short HEAD)"
git clone -q "$here" clone
load "make demo in a fresh clone, without ccache"
timed make -s -C clone demo CCACHE=
weft=$folder/clone/build/weft-cpu

for arch in 2-16-3 64-16-8-10 64-64-32-10; do
    data=$([ $arch = 2-16-3 ] && echo spirals || echo digits)
    printf '[data]\nname = %s\n[zoo]\narch = %s\ncount = 300\nepochs = 8\n' $data $arch >$arch.conf
    "$weft" zoo train $arch.conf -o $arch.safetensors -q >/dev/null
    load "weft fit --minutes 2, 300 networks of $arch"
    timed "$weft" fit $arch.safetensors --minutes 2 --data $data --scale standard -o $arch.flow
    grep -e '^field' -e '^training: ' -e warning -e '^training the flow: .* in ' err | sed 's/^/  /'
    "$weft" sample $arch.flow -n 100 -o $arch.nets -q >/dev/null
    "$weft" eval --zoo $arch.safetensors --nets $arch.nets --data $data -q 2>/dev/null |
        sed -n 's/^networks  *100/  accuracy, IoU, WCS, JWS: /p'
done
