#!/bin/sh
# Every public header compiles alone as C11 and as C++, weft.h has them all, and a C++ program
# links.
. tests/cli/lib.sh
not_sanitized "headers are compiled as they are"
strict="-Iinclude -Wall -Wextra -Werror -fsyntax-only"
have_cxx=yes
command -v c++ >/dev/null || have_cxx=no

for header in include/weft/*.h; do
    file=${header#include/}
    echo "#include \"$file\"" >"$scratch/alone.c"
    cp "$scratch/alone.c" "$scratch/alone.cc"
    # shellcheck disable=SC2086
    check "$file alone in C11" cc -std=c11 -pedantic $strict "$scratch/alone.c"
    # shellcheck disable=SC2086
    [ $have_cxx = no ] || check "$file alone in C++" c++ -std=c++11 $strict "$scratch/alone.cc"
    [ "$file" = weft/weft.h ] || check "weft.h has $file" grep -qF "\"$file\"" include/weft/weft.h
done

cat >"$scratch/program.cc" <<'END'
#include "weft/weft.h"
int main() {
    wf_ctx *ctx;
    if (wf_ctx_create(nullptr, &ctx) != WF_OK) return 1;
    wf_zoo *zoo;
    wf_flow *flow;
    bool refused = wf_zoo_open(ctx, "/nowhere", &zoo) != WF_OK && wf_flow_open(ctx, "/nowhere", &flow) != WF_OK;
    wf_ctx_free(ctx);
    return refused ? 0 : 1;
}
END
library=$(dirname "$weft")
if [ $have_cxx = no ]; then
    echo "skip C++: there is no c++"
else
    check "a C++ program links" c++ -std=c++11 -Iinclude "$scratch/program.cc" \
        -o "$scratch/program" "$library/libweft.so"
    check "a C++ program runs" env LD_LIBRARY_PATH="$library" "$scratch/program"
fi

# A caller must know what may happen: every function that can fail says which statuses it returns.
check "every function that can fail lists its statuses" python3 -c '
import glob, re
silent = []
for path in sorted(glob.glob("include/weft/*.h")):
    for comment, name in re.findall(r"(/\*(?:[^*]|\*(?!/))*\*/\n)?WF_API wf_status (\w+)\(", open(path).read()):
        if "eturns" not in comment and "WF_ERR_" not in comment: silent.append(f"{path}: {name}")
assert not silent, silent'
finish
