#!/bin/sh
# Help, versions, options and exit codes of the program.
. tests/cli/lib.sh

expect version 0 "weft 0." "$weft" version
expect version-option 0 "weft 0." "$weft" --version
"$weft" version --json >"$scratch/version.json"
check version-json is_json "$scratch/version.json"

expect no-command 2 "usage: weft COMMAND" "$weft"
expect unknown-command 2 "did you mean weft version" "$weft" vresion
expect unknown-option 2 "did you mean --json" "$weft" version --jsno
expect unknown-sub-command 2 "unknown command zoo trian; did you mean weft zoo train?" "$weft" zoo \
    trian
expect unknown-group 2 "unknown command zoos train; did you mean weft zoo train?" "$weft" zoos train
expect far-sub-command 2 "unknown command zoo foo; weft help zoo lists those there are" "$weft" \
    zoo foo
expect recipes 2 "weft help recipes lists them" "$weft" recipes
expect help-unknown 2 "did you mean weft data fetch?" "$weft" help data ftech
for words in -V --version "run -V" "-q version" "sample --zoo x --out y -V"; do
    expect "version: $words" 0 "weft " "$weft" $words
done
expect option-before 0 '"version"' "$weft" --threads 1 --json version
expect option-before-help 0 "usage: weft zoo train" "$weft" -h zoo train
expect option-before-unknown 2 "did you mean --json" "$weft" --jsno version
expect options-alone 2 "usage: weft COMMAND" "$weft" -q
expect setting-option 2 '--solver is "eluer"; allowed is euler, heun, rk4, dopri5' "$weft" sample \
    f --solver eluer
expect setting-range 2 '--steps is "0"; allowed is a whole number from 1' "$weft" sample f --steps 0
expect far-option 2 "unknown option --zzzzzzzz" "$weft" version --zzzzzzzz
expect one-dash 2 "-activation: a long option has two dashes: --activation" "$weft" zoo import x \
    -activation relu
expect recipe-key 2 "the recipe says that: --set train.updates=..." "$weft" train digits --updates 9
expect recipe-keys 2 "--set zoo.count=... or --set sample.count=..." "$weft" run digits --count=9
expect recipe-data 2 "--set data.path=FILE" "$weft" run digits --data mine.csv
expect value-missing 2 "--threads needs a value" "$weft" version --threads
expect value-not-number 2 "--threads needs a whole number" "$weft" version --threads=two
expect value-out-of-range 2 "allowed is 0 to 256" "$weft" version --threads 9999
expect flag-with-value 2 "takes no value" "$weft" version --json=1
expect value-negative 2 "--seed is -1; allowed is 0 to 9007199254740992" "$weft" version --seed -1
expect value-too-large 2 "allowed is 0 to 9007199254740992" "$weft" version \
    --seed 99999999999999999999
expect bad-device 2 "allowed is cpu, cuda, auto" "$weft" version --device tpu
expect argument-too-many 2 "one argument too many" "$weft" version extra
expect json-with-file 2 "; --json takes no file, it prints: > FILE" "$weft" version --json extra
expect shows-how 2 "as in weft eval --zoo" "$weft" eval zoo.safetensors nets.safetensors
expect leading-option 2 "unknown option --sed; did you mean --seed?" "$weft" --sed 3 sample f
expect leading-value 2 "unknown command zoos" "$weft" --seed 3 --threads=1 zoos
expect second-word 2 "did you mean weft zoo import" "$weft" import checkpoints
expect second-word-slip 2 "did you mean weft zoo import" "$weft" imprt checkpoints
expect second-word-of-many \
    2 "did you mean weft zoo info, weft flow info, weft data info, weft model info" "$weft" info zoo
expect longer-word 2 "did you mean weft eval?" "$weft" evaluate
check "CHANGELOG.md begins with this version" test "$("$weft" version |
    sed -n '1s/weft //p')" = "$(sed -n 's/^## //p' CHANGELOG.md | head -n 1)"
expect help-unknown 2 "unknown command nonsense" "$weft" help nonsense
for words in version "zoo --help" "sample --help" "help recipes"; do
    expect "stdout-full: $words" 4 "standard output could not be written" \
        sh -c "\"$weft\" $words >/dev/full"
done

# Every command has help with two examples or more, through both ways of asking.
"$weft" help --markdown | sed -n 's/^## weft //p' >"$scratch/names"
while read -r words; do
    # shellcheck disable=SC2086
    "$weft" help $words >"$scratch/by-help" && "$weft" $words --help >"$scratch/by-option"
    check "help $words" cmp "$scratch/by-help" "$scratch/by-option"
    check "examples $words" test "$(sed '1,/^examples:/d' "$scratch/by-help" |
        grep -c '^  weft ')" -ge 2
done <"$scratch/names"
[ -s "$scratch/names" ] || fail "command list" "weft help --markdown lists no command"

"$weft" help --markdown >"$scratch/commands.md"
check "docs/commands.md is current (weft help --markdown > docs/commands.md)" cmp \
    "$scratch/commands.md" docs/commands.md
finish
