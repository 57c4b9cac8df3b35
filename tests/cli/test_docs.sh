#!/bin/sh
# Files that the documents name must exist: whoever moves one meets the sentence about it here.
. "$(dirname "$0")/lib.sh"
for page in README.md CONTRIBUTING.md docs/*.md; do
    [ -f "$page" ] || continue
    missing=
    for path in $(grep -oE '`(src|include|tests|tools|recipes|bench|docs)/[A-Za-z0-9_./-]*`' "$page" | tr -d '`' | grep -v NAME | sort -u); do
        [ -e "$path" ] || missing="$missing $path"
    done
    check "$page names files that are there${missing:+, but not:}$missing" test -z "$missing"
done
finish
