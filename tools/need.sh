#!/bin/sh
# need.sh PACKAGE...: install the Debian packages that are missing, after naming them.
missing=
for package in "$@"; do
    case $package in
        gcc) command -v "${CC:-gcc}" >/dev/null 2>&1 && continue ;;
        clang|clang-format) command -v "$package" >/dev/null 2>&1 && continue ;;
        *) command -v dpkg-query >/dev/null 2>&1 || continue ;; # elsewhere the compiler will say what is missing
    esac
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "weft needs these packages (Debian's names):$missing" >&2
    exit 1
fi
root=
[ "$(id -u)" = 0 ] || root=sudo
exec 9<"$0" # targets that make makes side by side install one after the other
! command -v flock >/dev/null 2>&1 || flock 9
echo "Installing what weft needs:$missing" >&2
$root apt-get update -qq >/dev/null
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
    echo "Could not install:$missing. Install them by hand and run make again." >&2
    exit 1
}
