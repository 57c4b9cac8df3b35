#!/bin/sh
# install.sh: copies what make built to $DESTDIR$PREFIX. `make install` sets the variables:
# BUILD, PREFIX, DESTDIR, VERSION, and LIBS, which a program links besides libweft.a.
set -eu
to=${DESTDIR:-}$PREFIX
install -d "$to/bin" "$to/lib/pkgconfig" "$to/include/weft" "$to/share/weft/recipes" \
    "$to/share/man/man1" "$to/share/bash-completion/completions" "$to/share/zsh/site-functions" \
    "$to/share/fish/vendor_completions.d"
install -m 755 "$BUILD/weft" "$to/bin/"
install -m 644 "$BUILD/libweft.a" "$to/lib/"
install -m 755 "$BUILD/libweft.so" "$to/lib/libweft.so.$VERSION"
ln -sf "libweft.so.$VERSION" "$to/lib/libweft.so.0"
ln -sf libweft.so.0 "$to/lib/libweft.so"
install -m 644 include/weft/* "$to/include/weft/"
(cd recipes && find . -name '*.conf' -o -name '*.manifest') | while read -r file; do
    install -D -m 644 "recipes/$file" "$to/share/weft/recipes/$file"
done
"$BUILD/weft" help --man >"$to/share/man/man1/weft.1"
"$BUILD/weft" help --completion bash >"$to/share/bash-completion/completions/weft"
"$BUILD/weft" help --completion zsh >"$to/share/zsh/site-functions/_weft"
"$BUILD/weft" help --completion fish >"$to/share/fish/vendor_completions.d/weft.fish"
sed -e "s|@PREFIX@|$PREFIX|" -e "s|@VERSION@|$VERSION|" -e "s|@LIBS@|$LIBS|" tools/weft.pc.in \
    >"$to/lib/pkgconfig/weft.pc"
echo "installed weft $VERSION in $to"
