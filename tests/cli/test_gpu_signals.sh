#!/bin/sh
# bench/gpu_signals.sh judges rightly: a script stands in for weft, which is soon, late, deaf to its
# code, or done before.
. tests/cli/lib.sh
cat >"$scratch/weft" <<'P'
#!/bin/sh
# Works only in the seven commands that are stopped; what they work on is made at once.
case $*,$OTHER in
*huge* | *many* | *1000000* | fit* | *drawn* | eval*) ;;
*) exit 0 ;;
esac
soon=0 code=143
case $*,$OTHER in
eval*,late) soon=1.5 ;;
eval*,wrong) code=4 ;;
eval*,before) exit 0 ;;
esac
trap 'sleep $soon; exit $code' TERM
echo "at work" >&2
while :; do sleep 0.02; done
P
chmod +x "$scratch/weft"
export WEFT="$scratch/weft" AFTER=0.3 MOST=1 OTHER=
expect all-soon 0 "at work" bench/gpu_signals.sh
check seven test "$(grep -c '143   at work$' "$scratch/out")" = 7
OTHER=late expect one-late 1 "at work  FAILED: more than 1 s" bench/gpu_signals.sh
OTHER=before expect one-before 1 "NOT MEASURED: it had ended before" bench/gpu_signals.sh
OTHER=wrong expect wrong-code 1 "at work  FAILED" bench/gpu_signals.sh
expect no-program 1 "gpu_signals.sh: $scratch/none zoo train" env WEFT="$scratch/none" \
    bench/gpu_signals.sh
finish
