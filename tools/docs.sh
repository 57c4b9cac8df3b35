#!/usr/bin/env bash
# Builds the documentation site: build/site. Stages docs/ in build/docs, adds the pages that are
# made from the sources, and runs mkdocs with every warning an error. Needs the network once, for
# mkdocs-material in a virtual environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/docs-venv
if ! "$venv/bin/python" -c 'import material' 2>/dev/null; then
    echo "installing mkdocs-material in $venv"
    tools/need.sh python3-venv
    /usr/bin/python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'mkdocs-material==9.*' 'mkdocs==1.*'
fi
rm -rf build/docs
mkdir -p build/docs
cp -r docs/. build/docs/
tools/api_c.py include/weft/*.h >build/docs/api-c.md
tools/api_python.py python/weft >build/docs/api-python.md
tools/recipes_page.py recipes/*.conf >build/docs/recipes.md
# The README is the first page: its links and pictures lie in docs/ there and beside it here.
sed 's#\](docs/#](#g' README.md >build/docs/index.md
tools/results_index.py docs/results/*.md >build/docs/results.md
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict
# A page that is served must not reach out: no script, style, font or picture of another host.
if grep -rnoE '(src|href)="(https?:)?//[^"]*\.(js|css|woff2?|png|svg)"' build/site \
    --include='*.html'; then
    echo "build/site refers to files of other hosts" >&2
    exit 1
fi
echo "build/site/index.html"
