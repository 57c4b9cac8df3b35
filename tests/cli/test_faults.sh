#!/bin/sh
# What a run says when the world is against it: damaged files, a size limit, a reader that left, no
# memory.
. tests/cli/lib.sh
recipe=$root/tests/cli/tiny.conf
run=$scratch/run
"$weft" run "$recipe" --out "$run" -q >/dev/null 2>"$scratch/err" ||
    fail "a whole run" "$(tail -n 1 "$scratch/err")"
cp -r "$run" "$scratch/whole"

# damaged FILE READER...: cut FILE; READER is an output of the stage that reads it.
damaged() {
    damaged=$1
    shift
    for file in "$@"; do rm -f "$run/$file"; done
    head -c 100 "$scratch/whole/$damaged" >"$run/$damaged"
    expect "a cut $damaged is refused" 3 "Remove $run/$damaged, and weft run makes it again" \
        "$weft" run "$recipe" --out "$run" -q
    rm "$run/$damaged"
    expect "and mended so" 0 "gmn-refined" "$weft" run "$recipe" --out "$run" -q
    check "with the same table after $damaged" cmp "$run/eval.json" "$scratch/whole/eval.json"
}
damaged eval.json report.html
damaged points.json report.html
damaged zoo.safetensors eval.json
damaged held-out.safetensors eval.json
damaged nets.safetensors eval.json
damaged nets-direct.safetensors eval.json
damaged flow.safetensors nets.safetensors
echo '{}' >"$run/eval.json"
expect "weft report says it too" 3 "Remove $run/eval.json" "$weft" report "$run"
for text in '{"collection": ' '[]' ''; do
    echo "$text" >"$run/stage.json"
    expect "a damaged stage.json: $text" 3 "stage.json is damaged; remove it" "$weft" run \
        "$recipe" --out "$run" -q
done
rm "$run/stage.json" "$run/eval.json"
expect "and mended so" 0 "gmn-refined" "$weft" run "$recipe" --out "$run" -q

# What a run could not remove beside its collections: the same command removes it.
for file in zoo held-out; do
    mkdir "$run/$file.safetensors.parts"
    expect "an empty folder of parts beside $file" 0 "gmn-refined" \
        "$weft" run "$recipe" --out "$run" -q
    check "is removed" test ! -e "$run/$file.safetensors.parts"
    check "and nothing else changes" cmp "$run/$file.safetensors" "$scratch/whole/$file.safetensors"
done

# A limit on the size of files.
expect "a file-size limit" 4 "too large" sh \
    -c "ulimit -f 2; exec '$weft' run '$recipe' --out '$scratch/limited' -q"

# A reader that is gone.
cat >"$scratch/no_reader.py" <<'END'
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
sys.exit(subprocess.run(sys.argv[1:], stdout=writer).returncode)
END
for words in "help --markdown" "version --json" "run --help"; do
    # shellcheck disable=SC2086
    python3 "$scratch/no_reader.py" "$weft" $words 2>"$scratch/err"
    check "a closed pipe, weft $words" test $? -eq 141
    check "without a complaint, weft $words" test ! -s "$scratch/err"
done

# The N-th request of jansson fails: complete files and 0, or a sentence and 4.
cat >"$scratch/thin.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *(*allocate)(size_t);
static allocate given;
static long count, fail_at;
static __thread int fail_now;
void *__libc_malloc(size_t size);
void *malloc(size_t size) {
    if (!fail_now) return __libc_malloc(size);
    errno = ENOMEM;
    return NULL;
}
static void *counted(size_t size) {
    fail_now = ++count == fail_at;
    void *memory = given(size);
    fail_now = 0;
    return memory;
}
void json_set_alloc_funcs(allocate get, void (*release)(void *)) {
    void (*real)(allocate, void (*)(void *)) = (void (*)(allocate, void (*)(void *)))dlsym(RTLD_NEXT, "json_set_alloc_funcs");
    fail_at = atol(getenv("THIN_AT"));
    given = get;
    real(counted, release);
}
__attribute__((destructor)) static void tell(void) {
    if (count > 0 && count < fail_at) (void)!write(2, "never failed\n", 13);
}
END
# thin NAME STEP READ COMMAND...: READ prints what the command leaves.
thin() {
    name=$1 step=$2 read=$3
    shift 3
    "$@" >"$scratch/out" 2>/dev/null
    $read >"$scratch/good"
    at=1
    failed=0
    while [ $at -lt 100000 ]; do
        THIN_AT=$at LD_PRELOAD="$scratch/thin.so" "$@" >"$scratch/out" 2>"$scratch/err"
        code=$?
        if [ $code -eq 4 ]; then
            failed=$((failed + 1))
            grep -q "out of memory" "$scratch/err" ||
                { fail "$name" "request $at: $(cat "$scratch/err")"; return; }
        elif [ $code -ne 0 ]; then
            fail "$name" "request $at: code $code: $(cat "$scratch/err")"
            return
        else
            $read >"$scratch/now"
            cmp -s "$scratch/good" "$scratch/now" ||
                { fail "$name" "request $at: code 0, other results"; return; }
        fi
        grep -q "never failed" "$scratch/err" && break
        at=$((at + step))
    done
    check "$name" test $failed -gt 3
}
results() {
    cat "$run/eval.json" "$run/points.json" && grep -c '"finished": true' "$run/stage.json"
}
again() {
    rm -f "$run/eval.json" "$run/report.html"
    "$weft" run "$recipe" --out "$run" -q
}
if sanitized; then
    echo "skip no memory: a sanitizer's build"
elif ! cc -shared -fPIC -O1 "$scratch/thin.c" -o "$scratch/thin.so" -ldl 2>"$scratch/check.out"
then
    fail "no memory" "$(cat "$scratch/check.out")"
else
    thin "no memory for weft version" 1 "cat $scratch/out" "$weft" version --json
    thin "no memory for weft run" 97 results again
fi
finish
