#!/usr/bin/env python3
"""A server for tests/cli/test_fetch.sh: OpenML's descriptions, files with ranges, a zip of the
survey, broken connections.

    data_server.py FOLDER      writes FOLDER/port, then a line a request into FOLDER/requests
Each file is served whole, in parts (Range with If-Range), or broken off in the middle, as its path
says:
    /file/NAME      plain, with ranges          /norange/NAME  answers 200 with everything, whatever
                    is asked
    /break/NAME     every answer stops after half of what it should send (the length in the header
                    is right)
    /slow/NAME      half of it, then a byte every 0.2 s; a part at once
    /changing/NAME  another ETag every time     /lying/NAME    a part that begins elsewhere than
                    asked
    /endless/NAME   promises more than any table may have         /empty/NAME    nothing
    /plain/NAME     leads to /file/NAME over http
With FOLDER/cert.pem (certificate and key) there is a second server, over https: FOLDER/tls-port.
"""
import hashlib, http.server, io, json, pathlib, ssl, sys, threading, time, zipfile

folder = pathlib.Path(sys.argv[1])
arff = "@relation toy\n@attribute x numeric\n@attribute y {a,b}\n@data\n" + "".join(
    f"{i * 0.25},{'ab'[i % 2]}\n" for i in range(4000))
rows = ["RT,SERIALNO,PWGTP,AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP"]
# weight, age, class of worker, school, marriage, occupation, birthplace, relation, hours, sex,
# race, income
people = [
    ("12", "40", "1", "21", "1", "0110", "006", "00", "40", "1", "1", "60000"),
    ("3", "35", "6", "16", "5", "4720", "072", "02", "20", "2", "9", "50000"),
    ("3", "16", "1", "12", "5", "4720", "006", "02", "20", "2", "1", "900"),   # too young
    ("0", "50", "1", "12", "5", "4720", "006", "02", "20", "2", "1", "900"),   # weighs nothing
    ("9", "50", "", "12", "5", "", "006", "02", "", "2", "1", "9000"),         # does not work
    ("9", "50", "1", "12", "5", "4720", "006", "02", "20", "2", "1", "100"),   # earns too little
    # just in; a missing code
    ("9", "17", "", "12", "5", "4720", "006", "17", "1", "2", "1", "101"),
]
for person in people:
    rows.append("P,2018000000001," + ",".join(person))
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("ACS2018_PUMS_README.pdf", b"not a table")
    archive.writestr("psam_p99.csv", "\r\n".join(rows) + "\r\n")
late = io.BytesIO()
with zipfile.ZipFile(late, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("psam_p99.csv", "\n".join(row.replace("RELP", "RELSHIPP") for row in rows))
content = {
    "toy.arff": arff.encode(), "acs.zip": packed.getvalue(), "late.zip": late.getvalue(),
    "rubbish.zip": b"no zip at all",
}
versions = 0


def description(number, kind, host):
    digest = hashlib.md5(content["toy.arff"]).hexdigest()
    sets = {
        "7": ("toy set", "file"),
        "8": ("breaks", "break"),
        "9": ("damaged", "file"),
        "10": ("picture", "file"),
        "11": ("clear \x1b[2J\x9b", "file"),
    }
    if number not in sets:
        return None
    name, how = sets[number]
    return {"data_set_description": {
        "id": number, "name": name, "version": "1", "format": "PNG" if number == "10" else "ARFF",
        "url": f"http://{host}/{how}/toy.arff", "default_target_attribute": "y",
        "md5_checksum": digest if number != "9" else "0" * 32}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body, headers=()):
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value):
        self.answer(
            200 if value is not None else 412,
            json.dumps(value).encode(),
            [("Content-Type", "application/json")],
        )

    def send_file(self, how, name):
        global versions
        body = content[name]
        versions += 1
        tag = '"%s%s"' % (hashlib.md5(body).hexdigest()[:8], versions if how == "changing" else "")
        headers = [("ETag", tag), ("Accept-Ranges", "bytes")]
        start, asked = 0, self.headers.get("Range")
        if asked and how != "norange" and self.headers.get("If-Range", tag) == tag:
            start = int(asked[len("bytes="):].split("-")[0])
        if start >= len(body) and start > 0:
            return self.answer(416, b"", [("Content-Range", f"bytes */{len(body)}")])
        rest = body[start:]
        if start > 0:
            said = start + 1 if how == "lying" else start
            headers.append(("Content-Range", f"bytes {said}-{len(body) - 1}/{len(body)}"))
        self.send_response(206 if start > 0 else 200)
        for header in headers:
            self.send_header(*header)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if how == "slow" and start == 0:
            self.wfile.write(rest[: len(rest) // 2])
            for byte in rest[len(rest) // 2 :][:200]:
                time.sleep(0.2)
                self.wfile.write(bytes([byte]))
            self.close_connection = True
            return
        self.wfile.write(
            rest[: len(rest) // 2]
            if how in ("break", "changing", "lying") and len(rest) > 2000
            else rest
        )
        self.close_connection = True

    def do_GET(self):
        with open(folder / "requests", "a") as log:
            log.write(f"{self.path} {self.headers.get('Range', '-')}\n")
        host, parts = self.headers["Host"], self.path.strip("/").split("/")
        if self.path.startswith("/api/v1/json/data/list/data_name/"):
            matches = (
                [
                    {"did": 6, "name": "toy set", "version": 1, "status": "deactivated"},
                    {"did": 70, "name": "toy set", "version": 3, "status": "active"},
                    {"did": 7, "name": "toy set", "version": 2, "status": "active"},
                ]
                if "toy%20set" in self.path
                else []
            )
            return self.send_json({"data": {"dataset": matches}})
        if self.path.startswith("/api/v1/json/data/"):
            return self.send_json(description(parts[-1], None, host))
        if self.path.startswith("/programs-surveys/acs/data/pums/"):
            names = {
                "csv_pca.zip": "acs.zip",
                "csv_ppr.zip": "late.zip",
                "csv_ptx.zip": "rubbish.zip",
            }
            return (
                self.send_file("file", names[parts[-1]])
                if parts[-1] in names
                else self.answer(404, b"")
            )
        if self.path == "/empty/toy.arff":
            return self.answer(200, b"")
        if self.path == "/endless/toy.arff":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            self.close_connection = True
            return None
        if self.path == "/plain/toy.arff":
            return self.answer(
                302,
                b"",
                [("Location", f"http://127.0.0.1:{server.server_address[1]}/file/toy.arff")],
            )
        if self.path == "/moved/toy.arff":
            return self.answer(302, b"", [("Location", f"http://{host}/file/toy.arff")])
        if len(parts) == 2 and parts[1] in content:
            return self.send_file(*parts)
        self.answer(404, b"")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if (folder / "cert.pem").exists():
    secure = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "cert.pem")
    secure.socket = tls.wrap_socket(secure.socket, server_side=True)
    threading.Thread(target=secure.serve_forever, daemon=True).start()
    (folder / "tls-port").write_text(str(secure.server_address[1]))
(folder / "toy.arff").write_bytes(content["toy.arff"])
(folder / "port.new").write_text(str(server.server_address[1]))
(folder / "port.new").rename(folder / "port")
server.serve_forever()
