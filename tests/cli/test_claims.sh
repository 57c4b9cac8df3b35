#!/bin/sh
# The figures of README, docs and recipes are those of docs/results/, and tools/check_claims.py
# notices where they are not.
. tests/cli/lib.sh
not_sanitized "no program of ours runs"
claims=$root/tools/check_claims.py
check "figures are measured" "$claims"

# changed NAME WORDS SED: a copy with one thing changed must be refused with these words.
changed() {
    rm -rf "$scratch/copy"
    mkdir -p "$scratch/copy/docs"
    cp "$root/README.md" "$scratch/copy"
    cp -r "$root/docs/results" "$root/docs/"*.md "$scratch/copy/docs"
    cp -r "$root/recipes" "$scratch/copy"
    sed -i "$3" "$scratch/copy/$4"
    expect "$1" 1 "$2" "$claims" "$scratch/copy"
}
changed wrong-score "0.977 is no value of" 's/^\(| JWS, .*\)0\.976 | 0\.955/\10.977 | 0.955/' \
    README.md
changed wrong-gap "-0.4 is no value of" 's/| -1\.8 points/| -0.4 points/' README.md
changed wrong-demo "0.982 is no value of" 's/^\(| \*\*generated.*\)0\.972/\10.982/' README.md
changed unknown-line "belongs to no result" '$a JWS 0.999 on a task of its own' README.md
changed wrong-row "the demo's row is gmn-refined" 's/^\(gmn-refined .*\)0\.972/\10.982/' README.md
changed wrong-value "is not in 2026-11-15-mnist-h200.md" 's/"direct": 0\.839/"direct": 0.843/' \
    docs/results/values.json
changed wrong-page "0.111 stands in no page" 's/0\.839 and 0\.905/0.839 and 0.111/' \
    docs/generators.md
changed wrong-table "0.111 stands in no page" \
    's/^| 2,000 | 0\.837 | 0\.955/| 2,000 | 0.837 | 0.111/' docs/faq.md
changed wrong-recipe "0.111 stands in no page" 's/0\.940 refined/0.111 refined/' \
    recipes/mnist-fresh.conf
# docs/scaling.md predicts: its table and plot are the model's.
"$root/tools/scaling_model.py" >"$scratch/table"
check "the model's table" test -z "$(grep -vxFf "$root/docs/scaling.md" "$scratch/table")"
"$root/tools/scaling_model.py" --svg >"$scratch/plot"
check "the model's plot" cmp "$scratch/plot" "$root/docs/scaling.svg"
finish
