#!/bin/sh
# Files that the documents name must exist: whoever moves one meets the sentence about it here.
. "$(dirname "$0")/lib.sh"
not_sanitized "it looks at documents"
# The site is made by Python-Markdown: a list, table or formula that follows a line of text is part of it.
parted() {
    awk 'FNR == 1 { before = "" }
         /^```/ { fence = !fence; before = ""; next }
         fence { next }
         before ~ /^[^ |#<-]/ && before !~ /^[0-9]+[.] / &&
             (/^[|]/ || /^- / || /^[0-9]+[.] / || /^    /) { print FILENAME ":" FNR ": " $0; bad = 1 }
         { before = $0 }
         END { exit bad }' "$@"
}
check "lists, tables and formulas stand behind a blank line" parted README.md CONTRIBUTING.md docs/*.md docs/results/*.md
printf 'Text:\n- an item\n' >"$scratch/run-on.md"
expect "one that does not is found" 1 "run-on.md:2" parted "$scratch/run-on.md"

for page in README.md CONTRIBUTING.md docs/*.md; do
    [ -f "$page" ] || continue
    missing=
    for path in $(grep -oE '`(src|include|tests|tools|recipes|bench|docs)/[A-Za-z0-9_./-]*`' \
        "$page" | tr -d '`' | grep -v NAME | sort -u); do
        [ -e "$path" ] || missing="$missing $path"
    done
    check "$page names files that are there${missing:+, but not:}$missing" test -z "$missing"
done

# The program behind `make test-docs` finds what is wrong, and counts what does not run.
page() { printf '# Page\n\n%b' "$1" >"$scratch/page.md"; }
blocks() { tests/doc_blocks.py "$scratch/page.md"; }
page '```sh\nweft version\n```\n'
expect blocks-pass 0 "1 passed, 0 failed, 0 not run" blocks
page '```sh\nweft nonsense\n```\n'
expect blocks-fail 1 "page.md:4: exit 2" blocks
page '<!-- not run: needs the moon -->\n```sh\nfalse\n```\n'
expect blocks-not-run 0 "page.md:5: sh: needs the moon" blocks
page '<!-- not run, false: so it is -->\n```sh\nfalse\nweft version\n```\n'
expect blocks-line-not-run 0 "1 passed, 0 failed, 1 not run" blocks
page '    weft version\n'
expect blocks-indented 1 "an indented block of commands" blocks
page '```\nweft version\n```\n'
expect blocks-unmarked 1 "mark it sh" blocks
page '```json\n{"a": }\n```\n'
expect blocks-json 1 "page.md:4" blocks
page '```c\nwf_status f(wf_ctx *ctx) { return wf_generator_register(ctx, 0); }\n```\n'
expect blocks-c 0 "1 passed, 0 failed, 0 not run" blocks
page '```c\nint f(wf_ctx *ctx) { return wf_no_such_function(ctx); }\n```\n'
expect blocks-c-fails 1 "page.md:4: exit 1" blocks
page '```conf\n[data]\nnmae = digits\n```\n'
expect blocks-recipe 1 "has no key" blocks
finish
