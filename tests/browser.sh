#!/bin/sh
# The report in a real browser: it renders, is not blank, complains about nothing, light and dark;
# nothing is clipped on a phone. Uses runs/demo/report.html where there is one, else the page of a
# tiny run. Skips where chromium is missing.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ]; then
    echo "skip browser: chromium is not installed"
    exit 0
fi
. tests/cli/lib.sh
page=$root/runs/demo/report.html
if [ ! -s "$page" ]; then
    page=$scratch/run/report.html
    "$weft" run tests/cli/tiny.conf -o "$scratch/run" -q >/dev/null ||
        fail "tiny run" "weft run failed"
fi

# shot NAME OPTION...: a picture of the page in $scratch/NAME.png, the browser's words in NAME.log.
shot() {
    name=$1
    shift
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr \
        --v=0 \
        --user-data-dir="$scratch/profile" --window-size=1160,2000 \
        --screenshot="$scratch/$name.png" "$@" "file://$page" \
        >"$scratch/$name.log" 2>&1
}
# Decodes the picture with zlib alone: size, and how many different colours and rows it has.
look() {
    python3 - "$1" <<'PYTHON'
import struct, sys, zlib
data = open(sys.argv[1], "rb").read()
assert data[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG"
at, packed = 8, b""
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + size]
    if kind == b"IHDR": width, height, bits, colour = struct.unpack(">IIBB", body[:10])
    if kind == b"IDAT": packed += body
    at += 12 + size
assert (width, height) == (1160, 2000), (width, height)
channels = {2: 3, 6: 4}[colour]
raw, stride = zlib.decompress(packed), width * channels
rows, last = [], bytearray(stride)
for y in range(height):
    line = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
    kind = raw[y * (stride + 1)]
    for i in range(stride):
        left = line[i - channels] if i >= channels else 0
        up, corner = last[i], last[i - channels] if i >= channels else 0
        if kind == 1: line[i] = (line[i] + left) & 255
        elif kind == 2: line[i] = (line[i] + up) & 255
        elif kind == 3: line[i] = (line[i] + (left + up) // 2) & 255
        elif kind == 4:
            p = left + up - corner
            a, b, c = abs(p - left), abs(p - up), abs(p - corner)
            line[i] = (line[i] + (left if a <= b and a <= c else up if b <= c else corner)) & 255
    rows.append(bytes(line))
    last = line
background = rows[0][:3]
inked = sum(any(row[i:i + 3] != background for i in range(0, stride, channels * 7)) for row in rows)
colours = {row[i:i + 3] for row in rows[::9] for i in range(0, stride, channels * 5)}
print(f"background {background.hex()}, {inked} of {height} rows with ink, {len(colours)} colours")
assert inked > 0.3 * height, "the page is nearly blank"
assert len(colours) > 60, "the plots are missing"
PYTHON
}

shot light
check "light renders" test -s "$scratch/light.png"
check "light is drawn" look "$scratch/light.png"
shot dark --force-dark-mode --blink-settings=preferredColorScheme=0
check "dark is drawn" look "$scratch/dark.png"
check "dark differs" test -n "$(cmp "$scratch/light.png" "$scratch/dark.png" 2>&1)"
check "nothing on the console" sh -c "! grep -i 'CONSOLE' '$scratch/light.log'"
"$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" \
    --dump-dom "file://$page" >"$scratch/dom" 2>/dev/null
check "the document is whole" grep -q "refers to nothing outside itself" "$scratch/dom"
check "no outside reference" sh -c "! grep -E '(src|href)=\"(https?:|//)' '$page'"
check "no script" sh -c "! grep -qi '<script' '$page'"
# overflow WIDTH: "fits", or what reaches beyond a frame of that width; tables may scroll, plots may
# not.
overflow() {
    cat >"$scratch/frame.html" <<HTML
<iframe id="f" style="width:$1px;height:900px;border:0" src="file://$page"></iframe><pre id="o">not loaded</pre>
<script>
document.getElementById("f").onload = function () {
    const page = this.contentDocument, out = [];
    for (const e of page.querySelectorAll("svg,img,p,h1,h2,.tile,dl,table,pre")) {
        if (e.closest("table") || e.parentElement.closest("pre")) continue; // these scroll
        const r = e.getBoundingClientRect();
        if (r.right > $1 + 1) out.push(e.tagName + " ends at " + Math.round(r.right));
    }
    if (page.documentElement.scrollWidth > $1) out.push("the page is wider");
    document.getElementById("o").textContent = out.length ? out.join(", ") : "fits";
};
</script>
HTML
    "$browser" --headless --no-sandbox --disable-gpu --allow-file-access-from-files \
        --virtual-time-budget=5000 --user-data-dir="$scratch/profile" --dump-dom \
        "file://$scratch/frame.html" 2>/dev/null | sed -n 's/.*<pre id="o">\(.*\)<\/pre>.*/\1/p'
}
for width in 390 820 1280; do
    check "nothing is clipped at $width pixels" test "$(overflow $width)" = fits
done
# A name that is longer than a phone is wide.
"$weft" run tests/cli/tiny.conf -o "$scratch/long" \
    -q --set report.title=a_collection_of_networks_and_its_flow.safetensors >/dev/null
page=$scratch/long/report.html
check "a long name is not clipped" test "$(overflow 390)" = fits
[ -z "$WEFT_SCREENSHOT" ] || cp "$scratch/light.png" "$WEFT_SCREENSHOT"
finish
