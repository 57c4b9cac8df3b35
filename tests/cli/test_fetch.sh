#!/bin/sh
# weft data fetch against a server on this machine: descriptions, digests, the cache, resumed and
# broken downloads.
. tests/cli/lib.sh
cd "$scratch" || exit 1
unset WEFT_DATA http_proxy HTTP_PROXY all_proxy ALL_PROXY
expect version-tells-downloads 0 "downloads: " "$weft" version
if "$weft" version | grep -q "downloads: none"; then
    expect fetch-without-libcurl 2 "libcurl" "$weft" data fetch 7
    echo "skip fetch: this build has no libcurl"
    finish
    exit
fi
mkdir served
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=weft-test \
    -addext subjectAltName=IP:127.0.0.1 \
    -keyout served/key.pem -out served/own.pem >/dev/null 2>&1 &&
    cat served/own.pem served/key.pem >served/cert.pem
python3 "$root/tests/cli/data_server.py" served 2>server.log &
server_process=$!
trap 'kill $server_process 2>/dev/null; chmod -R u+w "$scratch" 2>/dev/null; rm -rf "$scratch"' EXIT
wait_for test -s served/port
at=http://127.0.0.1:$(cat served/port)
fetch() { "$weft" data fetch "$@" --server "$at" -o cache -q; }
broken() { "$weft" data fetch "$at/break/toy.arff" -o broken -q "$@"; }
asked() { grep -c "$1" served/requests; }

fetch 7 --json >seven.json
check fetch-number python3 -c '
import hashlib, json
got, body = json.load(open("seven.json")), open("served/toy.arff", "rb").read()
assert got["path"] == "cache/openml/7-toy_set.arff" and open(got["path"], "rb").read() == body
assert got["sha256"] == hashlib.sha256(body).hexdigest() and got["bytes"] == len(body)
assert got["target"] == "y"
assert got["name"] == "toy set"
assert not got["cached"]
assert got["resumed"] == 0'
check fetch-record is_json cache/openml/7-toy_set.arff.fetch.json
check "no part is left" test -z "$(find cache -name '*.part*')"
printf '[data]\npath = cache/openml/7-toy_set.arff\n' >toy.conf
expect "the file is a data set" 0 "3200 to train" "$weft" data info toy.conf
before=$(wc -l <served/requests)
fetch 7 --json >again.json
check fetch-cached python3 -c 'import json; assert json.load(open("again.json"))["cached"]'
expect fetch-cached-by-name 0 "there already" fetch "openml:toy set"
check "the cache asks nothing" test "$(wc -l <served/requests)" = "$before"
echo x >>cache/openml/7-toy_set.arff
expect fetch-damaged-cache 0 "toy set" fetch 7
check "a damaged file is replaced" cmp served/toy.arff cache/openml/7-toy_set.arff
# A record that is damaged is no sign of another address, or of somebody else's file.
record=cache/openml/7-toy_set.arff.fetch.json
cp $record whole.json
for change in 's/toy set/toy sit/' 's/"url"/"ur1"/' 's/"sha256"/"sha255"/' '$d'; do
    sed "$change" whole.json >$record
    expect "a damaged record ($change)" 3 "is damaged; remove it" "$weft" data fetch 7 \
        --server "$at" -o cache -q
done
sed '/"digest"/d; s/\("bytes": [0-9]*\),/\1/' whole.json >$record
expect "one of version 0.1" 0 "there already" fetch 7
rm -r cache
expect fetch-name 0 "openml/7-toy_set.arff" fetch "toy set"
expect fetch-unknown-name 3 "no active data set named 'nothing'" fetch nothing
expect fetch-unknown-number 3 "no such file or data set (412)" fetch 99
expect fetch-format 2 "stored as PNG" fetch 10
expect fetch-escape 0 'clear \u001b[2J\u009b, ' fetch 11
check "no escape reaches the terminal" sh -c '! grep -q "$(printf "\\033")" "$1" "$2"' - out err
expect fetch-md5 3 "0000000000" fetch 9
check "damaged downloads are thrown away" test ! -e cache/openml/9-damaged.arff.part
expect fetch-sha256 3 "was asked for" fetch "$at/file/toy.arff" --sha256 "$(printf '%064d' 1)"
expect fetch-sha256-right 0 "toy.arff" fetch "$at/file/toy.arff" \
    --sha256 "$(sha256sum <served/toy.arff | cut -d' ' -f1)"
for bad in zzz "$(printf '%063d' 1)" "$(printf '%064d' 1 | tr 1 g)"; do
    before=$(wc -l <served/requests)
    expect "a wrong --sha256 ($bad)" 2 "is no SHA-256" fetch "$at/file/other.arff" --sha256 "$bad"
    check "is noticed before anything is asked ($bad)" test "$(wc -l <served/requests)" = "$before"
done
mkdir empty
expect fetch-empty-again 3 "empty file" "$weft" data fetch "$at/empty/toy.arff" -o empty -q
check "nothing is left of it" test -z "$(ls empty)"
expect fetch-endless 3 "longer than 4294967296 bytes" "$weft" data fetch "$at/endless/toy.arff" \
    -o empty -q
check "nor of one that is too long" test -z "$(ls empty)"
mkdir fulldisk && ln -s /dev/full fulldisk/toy.arff.part
expect fetch-full-disk 4 "No space left on device" "$weft" data fetch "$at/file/toy.arff" \
    -o fulldisk -q
expect fetch-file-limit 4 "File too large" sh \
    -c "ulimit -f 8; exec '$weft' data fetch '$at/file/toy.arff' -o limited -q"

# TLS: the certificate must be trusted, and a redirect may not leave https.
if [ -s served/tls-port ]; then
    safe=https://127.0.0.1:$(cat served/tls-port)
    expect fetch-untrusted 1 "certificate is not accepted" "$weft" data fetch \
        "$safe/file/toy.arff" -o tls -q
    expect fetch-untrusted-says-what 1 "self" "$weft" data fetch "$safe/file/toy.arff" -o tls -q
    check "and does not say try again" sh -c '! grep -q "try again" "$1"' - err
    check "nothing is taken from it" test ! -e tls/toy.arff
    export SSL_CERT_FILE="$scratch/served/own.pem"
    expect fetch-tls 0 "tls/toy.arff" "$weft" data fetch "$safe/file/toy.arff" -o tls -q
    expect fetch-tls-to-http 1 "not taken from one" "$weft" data fetch "$safe/plain/toy.arff" \
        -o plain -q
    check "nothing is taken over http" test ! -e plain/toy.arff
    unset SSL_CERT_FILE
else
    echo "skip fetch over TLS: no openssl"
fi
expect fetch-http-to-http 0 "toy.arff" "$weft" data fetch "$at/plain/toy.arff" -o plain2 -q
expect fetch-redirect 0 "elsewhere/toy.arff" "$weft" data fetch "$at/moved/toy.arff" -o elsewhere -q
expect fetch-404 3 "404" fetch "$at/file/absent.arff"
expect fetch-refused 1 "goes on from" "$weft" data fetch http://127.0.0.1:9/x.csv -o cache -q
expect fetch-bad-address 2 "no file name" fetch "$at/"
expect fetch-same-name 2 "from another address" fetch "$at/norange/toy.arff"
echo mine >foreign.arff
mkdir -p mine && mv foreign.arff mine/toy.arff
expect fetch-foreign 2 "not from weft data fetch" "$weft" data fetch "$at/file/toy.arff" -o mine -q

# Every answer stops half way: one call makes three attempts, each going on where the last one
# stopped.
size=$(wc -c <served/toy.arff)
expect fetch-broken 1 "goes on from" broken
check "each attempt asks for the rest" test "$(grep '/break/' served/requests | cut -d' ' -f2 |
    tr '\n' ' ')" = \
    "- bytes=$((size / 2))- bytes=$((size / 2 + (size - size / 2) / 2))- "
check "the part is kept" test -s broken/toy.arff.part
i=0
until broken --json >broken.json 2>/dev/null || [ $i -gt 8 ]; do i=$((i + 1)); done
check "further calls finish it" cmp served/toy.arff broken/toy.arff
check "resumed bytes are told" python3 \
    -c 'import json; assert json.load(open("broken.json"))["resumed"] > 0'
check "the marks are gone" test ! -e broken/toy.arff.part.tag

# A part of another version is never continued.
mkdir other && head -c 1000 served/toy.arff >other/toy.arff.part &&
    echo '"stale"' >other/toy.arff.part.tag
expect fetch-other-version 0 "toy.arff" "$weft" data fetch "$at/file/toy.arff" -o other -q
check "another version begins anew" cmp served/toy.arff other/toy.arff
mkdir bare && echo rubbish >bare/toy.arff.part
check fetch-unmarked "$weft" data fetch "$at/file/toy.arff" -o bare -q
check "a part without a mark begins anew" cmp served/toy.arff bare/toy.arff
tag=$(python3 \
    -c 'import hashlib; print("\"%s\"" % hashlib.md5(open("served/toy.arff", "rb").read()).hexdigest()[:8])')
mkdir whole && head -c 1000 served/toy.arff >whole/toy.arff.part &&
    echo "$tag" >whole/toy.arff.part.tag
check fetch-no-ranges "$weft" data fetch "$at/norange/toy.arff" -o whole -q
check "a server without ranges" cmp served/toy.arff whole/toy.arff
mkdir full && cp served/toy.arff full/toy.arff.part && echo "$tag" >full/toy.arff.part.tag
check fetch-past-end "$weft" data fetch "$at/file/toy.arff" -o full -q
check "a complete part" cmp served/toy.arff full/toy.arff
mkdir lying && head -c 1000 served/toy.arff >lying/toy.arff.part &&
    echo "$tag" >lying/toy.arff.part.tag
"$weft" data fetch "$at/lying/toy.arff" -o lying -q >/dev/null 2>&1
check "a part from elsewhere is not appended" sh \
    -c 'f=$(ls lying/toy.arff lying/toy.arff.part 2>/dev/null | head -n 1); cmp -n "$(wc -c <"$f")" served/toy.arff "$f"'

mkdir longer
{ head -c 1000 served/toy.arff && echo "what a power loss left"; } >longer/toy.arff.part
printf '%s\n1000\n' "$tag" >longer/toy.arff.part.tag
check fetch-noted "$weft" data fetch "$at/file/toy.arff" -o longer -q
check "what is behind the noted bytes is cut off" cmp served/toy.arff longer/toy.arff

# One process at a time; one that is killed has noted what it has after some seconds.
mkdir slow
"$weft" data fetch "$at/slow/toy.arff" -o slow -q >/dev/null 2>&1 &
first=$!
wait_for test -e slow/.toy.arff.lock
slowly() { "$weft" data fetch "$at/slow/toy.arff" -o slow "$@"; }
expect "two fetch one file" 5 "slow/toy.arff is being made by process $first" slowly
slowly --wait --json >waited.json 2>waited.err &
second=$!
wait_for grep -q waiting waited.err
wait_for test -s slow/toy.arff.part.tag
kill -KILL $first
wait $first 2>/dev/null
wait $second
check "one that waits goes on from there" test $? -eq 0
check "from half of the file at least" python3 -c '
import json, sys
assert json.load(open("waited.json"))["resumed"] >= int(sys.argv[1])' $((size / 2))
check "to the whole" cmp served/toy.arff slow/toy.arff
in_slow() { ls -A slow | tr '\n' ' '; }
check "and leaves the file and its record" test "$(in_slow)" = "toy.arff toy.arff.fetch.json "

# Left beside a finished file by a process that was killed behind its last step.
touch slow/.toy.arff.lock slow/toy.arff.part slow/toy.arff.part.tag
expect "a finished file is not fetched again" 0 "there already" slowly
check "what was left beside it goes" test "$(in_slow)" = "toy.arff toy.arff.fetch.json "
chmod a-w slow
expect "a folder of which one may only read" 0 "there already" slowly
chmod u+w slow

# Gigabytes are looked at in pieces: a signal is heard between two.
truncate -s 20G slow/toy.arff
"$weft" data fetch "$at/slow/toy.arff" -o slow -q 2>err &
first=$!
sleep 0.5
kill -TERM $first
start=$(date +%s)
wait $first
check "SIGTERM while a digest is computed exits 143" test $? -eq 143
check "soon" test $(($(date +%s) - start)) -lt 10
rm slow/toy.arff

# The survey: unpacked, filtered, written as the data folder has it.
expect fetch-acs 0 "acs-income/acsincome-2018-CA.csv" fetch acs:2018:ca
cat >expected.csv <<CSV
AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP
40.0,1.0,21.0,1.0,110.0,6.0,0.0,40.0,1.0,1.0,True
35.0,6.0,16.0,5.0,4720.0,72.0,2.0,20.0,2.0,9.0,False
17.0,-1.0,12.0,5.0,4720.0,6.0,17.0,1.0,2.0,1.0,False
CSV
check "ACSIncome's filter" cmp expected.csv cache/acs-income/acsincome-2018-CA.csv
check "the zip is not kept" test ! -e cache/acs-income/acsincome-2018-CA.csv.zip.part
expect fetch-acs-cached 0 "there already" fetch acs:2018:CA
zip=$(python3 -c 'import json
record = "cache/acs-income/acsincome-2018-CA.csv.fetch.json"
print(json.load(open(record))["download_sha256"])')
expect fetch-acs-sha256 0 "there already" fetch acs:2018:CA --sha256 "$zip"
expect fetch-acs-sha256-wrong 3 "was asked for" fetch acs:2018:CA --sha256 "$(printf '%064d' 1)"
expect fetch-acs-late 3 "RELSHIPP" fetch acs:2019:PR
expect fetch-acs-rubbish 3 "no zip file" fetch acs:2018:TX
expect fetch-acs-none 3 "404" fetch acs:2018:ZZ
expect fetch-acs-words 2 "acs:2018:CA" fetch acs:california
finish
