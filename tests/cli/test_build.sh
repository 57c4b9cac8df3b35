#!/bin/sh
# Promises of the build, by what make would do in an empty folder: the demo compiles no CUDA, builds
# without tests ask for no test packages, and nothing is installed without a word.
. tests/cli/lib.sh
not_sanitized "make does the same"
unset MAKEFLAGS MAKELEVEL MFLAGS CC CXX CCACHE
# plan GOAL_OR_VARIABLE...: the commands in $scratch/plan
plan() { make -n --no-print-directory BUILD="$scratch/build" "$@" >"$scratch/plan"; }
has() { grep -q -e "$1" "$scratch/plan"; }
lacks() { ! has "$1"; }

check "a demo can be made" plan V=1 NVCC=nvcc demo
check "a demo runs weft-cpu" has "build/weft-cpu demo"
check "a demo compiles no CUDA" lacks 'nvcc\|\.cu '
check "a demo asks for what the library needs" has "need.sh.*libjansson-dev"
check "a demo asks for no test packages" lacks "cmocka\|g++"
check "a build without nvcc can be made" plan V=1 NVCC= all
check "a build without nvcc asks for no test packages" lacks "cmocka\|g++"
check "a build with nvcc can be made" plan V=1 NVCC=nvcc all
check "a build with nvcc compiles CUDA" has " -c src/tensor/cuda/fp32/row_ops.cu"
plan NVCC= all
check "lines are short" has "printf.*CC src/base/arena.c"
check "tests can be made" plan V=1 NVCC= test
check "tests ask for their packages" has "need.sh.*libcmocka-dev"

check "checks can be made" plan V=1 NVCC= layering claims
check "checks ask for Python" has "need.sh python3$"

for package in $(sed -n '/^need-lib:/,/^need-test/s/.*need.sh //p' Makefile); do
    for file in Dockerfile Dockerfile.cuda; do
        check "$file has $package" grep -qw -e "$package" $file
    done
done
for file in Dockerfile Dockerfile.cuda; do
    check "$file builds with MPI" sh -c "sed '/^FROM/,/^FROM/!d' $file | grep -qw libopenmpi-dev"
    check "$file runs with MPI" sh -c "tac $file | sed '/^FROM/q' | grep -qw openmpi-bin"
done
check "NCCL, which the image for building has, is in the other, too" sh -c \
    "tac Dockerfile.cuda | grep -m 1 '^FROM' | grep -q -e -runtime-"

# parts OPTION: what the library is made of; an old file unless the parts have changed
parts() {
    touch -d 2000-01-01 "$scratch/build/parts.txt"
    make -s --no-print-directory BUILD="$scratch/build" NVCC= "$1" "$scratch/build/parts.txt"
}
changed() { [ "$(date -r "$scratch/build/parts.txt" +%Y)" != 2000 ]; }
unchanged() { ! changed; }
mkdir -p "$scratch/build"
parts CURL=
parts CURL=
check "the same parts make no new library" unchanged
parts CURL=yes
check "other parts make a new library" changed

printf '#!/bin/sh\nexit 1\n' >"$scratch/dpkg-query" && chmod +x "$scratch/dpkg-query"
expect "a missing package is named, not installed" 1 "packages (Debian's names): no-such" \
    env WEFT_INSTALL=no PATH="$scratch:$PATH" tools/need.sh no-such
# apt-get, as long as $scratch/locked is there: the first call finds another program at work.
cat >"$scratch/apt-get" <<END
#!/bin/sh
[ "\$1" = update ] || exit 0
if [ -e "$scratch/locked" ]; then
    rm "$scratch/locked"
    echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)" >&2
    exit 100
fi
END
printf '#!/bin/sh\nexec "$@"\n' >"$scratch/sudo"
printf '#!/bin/sh\n' >"$scratch/sleep"
chmod +x "$scratch/apt-get" "$scratch/sudo" "$scratch/sleep"
touch "$scratch/locked"
expect "another program's apt is waited for" 0 "Another program is using apt" \
    env PATH="$scratch:$PATH" tools/need.sh no-such
check "what is there is not asked for" env WEFT_INSTALL=no tools/need.sh gcc python3
plan V=1 NVCC= "$scratch/build/src/base/arena.o"
tools/compile_commands.py "$scratch/commands.json" <"$scratch/plan"
check "compile_commands.json names the file" grep -q '"src/base/arena.c"' "$scratch/commands.json"
finish
