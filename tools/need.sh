#!/bin/sh
# need.sh PACKAGE...: installs the Debian packages that are missing, after it has said which.
# WEFT_INSTALL=no: says so and fails. Without apt: likewise. CC is the compiler whose headers count.
has_header() { echo "#include <$1>" | ${CC:-gcc} -E -x c - >/dev/null 2>&1; }
has_package() {
    command -v dpkg-query >/dev/null 2>&1 || return 0 # elsewhere the one who uses it will say so
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}
missing=
for package in "$@"; do
    # shellcheck disable=SC2086
    case $package in
        gcc) command -v ${CC:-gcc} >/dev/null 2>&1 ;; # CC may be two words
        clang | clang-format | g++ | python3) command -v "$package" >/dev/null 2>&1 ;;
        zlib1g-dev) has_header zlib.h ;;
        libjansson-dev) has_header jansson.h ;;
        libxxhash-dev) has_header xxhash.h ;;
        libcmocka-dev) has_header cmocka.h ;;
        *) has_package "$package" ;;
    esac || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
apt="apt-get"
[ "$(id -u)" = 0 ] || apt="sudo apt-get"
command="$apt install -y --no-install-recommends$missing"
if [ "${WEFT_INSTALL:-yes}" = no ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "weft needs these packages (Debian's names):$missing" >&2
    ! command -v apt-get >/dev/null 2>&1 || echo "Install them: $command" >&2
    exit 1
fi
exec 9<"$0" # targets that make makes side by side install one after the other
! command -v flock >/dev/null 2>&1 || flock 9
echo "weft needs:$missing. Installing: $command" >&2
export DEBIAN_FRONTEND=noninteractive
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
tries=60 # of 5 s: another program, such as the system's own upgrades, may be using apt
until { $apt update -qq && $command -qq; } >/dev/null 2>"$messages"; do
    if ! grep -qi 'could not get lock\|unable to lock' "$messages" || [ $((tries -= 1)) -eq 0 ]
    then
        cat "$messages" >&2
        echo "Could not install:$missing. Install them by hand and run make again." >&2
        exit 1
    fi
    [ "$tries" -lt 59 ] || echo "Another program is using apt: waiting, five minutes at most." >&2
    sleep 5
done
