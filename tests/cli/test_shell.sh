#!/bin/sh
# What makes the program at home in a shell: recipes by name, the manual page, completions.
. tests/cli/lib.sh
export WEFT_RECIPES="$root/tests/cli"
cd "$scratch" || exit 1
expect recipe-by-name 0 "parameters" "$weft" model info tiny
expect recipe-unknown 3 "there is no file tinny, and no recipe of that name (did you mean tiny?)" \
    "$weft" model info tinny
expect recipe-path 3 "none/tiny" "$weft" model info none/tiny
cp "$weft" "$scratch/alone"
expect recipes-none 0 "none: make install puts them beside the program" env WEFT_RECIPES= "$scratch/alone" help recipes
expect recipes-listed 0 "tiny" "$weft" help recipes
cp "$root/tests/cli/tiny.conf" other.conf
expect ending-left-out 3 "there is no file other; did you mean other.conf?" "$weft" model info other
expect file-first 0 "parameters" "$weft" model info other.conf

"$weft" help --man >weft.1
check man-sections sh \
    -c 'for s in NAME SYNOPSIS COMMANDS RECIPES ENVIRONMENT "EXIT STATUS"; do grep -q "^.SH $s" weft.1 || exit 1; done'
check man-settings grep -q 'lr = 0.002' weft.1
if command -v groff >/dev/null; then
    check man-is-clean sh -c '! groff -man -Tutf8 -ww weft.1 2>&1 >man.txt | grep .'
fi

# completed WORD...: what bash offers for the last word.
"$weft" help --completion bash >weft.bash
cat >ask.bash <<'B'
source ./weft.bash
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_weft
echo "${COMPREPLY[@]}"
B
offers() {
    name=$1 words=$2
    shift 2
    got=$(bash ask.bash "$@")
    if [ "$got" = "$words" ]; then pass "$name"; else fail "$name" "$* offers $got, not $words"; fi
}
offers bash-command "verify version" weft ver
offers bash-sub-command "train" weft zoo tr
offers bash-option "--first" weft zoo train --fi
offers bash-names "euler heun rk4 dopri5" weft sample f --solver ""
offers bash-device "cpu cuda auto" weft run r --device ""
PATH="$(dirname "$weft"):$PATH"
offers bash-recipe "tiny" weft run tin
offers bash-keys "train.lr=" weft run r --set train.lr
offers bash-option-before "import" weft --json zoo im
offers bash-help "import info" weft help zoo i
offers bash-help-first "verify version" weft help ver
offers bash-help-option "--completion" weft help --com
offers bash-help-shell "bash zsh fish" weft help --completion ""
offers bash-activation "silu sigmoid" weft zoo import c -a s
if command -v fish >/dev/null; then
    "$weft" help --completion fish >weft.fish
    for pair in "weft zoo tr:train" "weft sample f --solver eu:euler" \
        "weft run r --set train.lr:train.lr=" "weft run tin:tiny" "weft help zoo tr:train" \
        "weft help versi:version"; do
        got=$(fish -c "source ./weft.fish; complete -C '${pair%%:*}'" 2>&1 | cut -f 1)
        if [ "$got" = "${pair#*:}" ]; then pass "fish: ${pair%%:*}"
        else fail "fish: ${pair%%:*}" "$got"; fi
    done
else echo "skip fish: not installed"; fi
if command -v zsh >/dev/null; then
    mkdir functions
    "$weft" help --completion zsh >functions/_weft
    cat >ask.zsh <<'Z'
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=($PWD/functions \$fpath); autoload -U compinit; compinit -u -D; bindkey '^I' complete-word; print READY-\$((1 + 1))"
zpty -r -m z out '*READY-2*'
zpty -w -n z "weft sample f --solver eu"$'\t'
zpty -r -m z out '*--solver euler*'
print -r -- "$out"
Z
    check zsh sh -c 'timeout 60 zsh ask.zsh | grep -q -e "--solver euler"'
else echo "skip zsh: not installed"; fi
finish
