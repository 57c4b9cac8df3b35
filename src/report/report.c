/* report: the page as a whole: style, order of the parts, writing. No script and no outside
 * reference; light and dark follow the reader's system. */
#include "base/io.h"
#include "report/page.h"

#include <string.h>

static const char style_sheet[] =
    ":root{color-scheme:light "
    "dark;--bg:#fbfbf9;--card:#fff;--ink:#1d2126;--soft:#5c6670;--line:#dfe2e4;"
    "--grid:#eceeef;--reference:#8a949e;--held:#2468ad;--subject:#d0344a;--direct:#e08e1b;--random:"
    "#7a56b3;"
    "--perturbation:#23906a;--average:#8a6237;--matched:#5f8f9f;--other:#607080;--bar:#e9ecee;"
    "--warn:#b35309;--fitted:#2e8b57}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15181b;--card:#1c2024;--ink:#e6e8ea;--soft:#"
    "9aa4ad;"
    "--line:#32383e;--grid:#262b30;--reference:#8993a0;--held:#6fb1f2;--subject:#ff6b7d;--direct:#"
    "f4b04a;"
    "--random:#b394ea;--perturbation:#4cc498;--average:#c99a64;--matched:#8fc0cf;--other:#93a3b3;--"
    "bar:#2a3036;--warn:#ffb454;--fitted:#5cc98b}}\n"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 "
    "system-ui,-apple-system,\"Segoe UI\",Roboto,"
    "\"Helvetica Neue\",\"DejaVu Sans\",sans-serif;-webkit-text-size-adjust:100%;"
    "overflow-wrap:anywhere}\n"
    "main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}"
    "h1{font-size:34px;line-height:1.15;letter-spacing:-.02em;margin:0 0 6px}"
    "h2{font-size:21px;letter-spacing:-.01em;margin:0 0 12px}"
    "h3{font-size:15px;font-weight:600;color:var(--soft);margin:18px 0 6px}"
    ".lead{font-size:17px;color:var(--soft);margin:0 0 24px;max-width:75ch}"
    "section{margin:44px 0 0}p{margin:8px "
    "0}.note{color:var(--soft);font-size:14px;max-width:95ch}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(215px,100%),1fr));gap:"
    "14px}"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px "
    "16px}"
    ".tile span{display:block;font-size:13.5px;color:var(--soft)}"
    ".tile b{display:block;font-size:34px;line-height:1.25;letter-spacing:-.02em;font-weight:650;"
    "font-variant-numeric:tabular-nums}.tile b "
    "i{font-style:normal;font-size:18px;color:var(--soft);"
    "font-weight:400;letter-spacing:0}"
    ".tile small{display:block;font-size:13px;color:var(--soft);line-height:1.4}\n"
    ".facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:"
    "8px "
    "28px;margin:18px 0 0}"
    ".facts dt{font-size:12.5px;color:var(--soft)}.facts dd{margin:0;font-size:15px}\n"
    ".rows{margin:0;font-size:14px;max-width:95ch}.rows div{margin:3px 0}"
    ".rows dt{display:inline;font-weight:600}.rows dt::after{content:\": \"}"
    ".rows dd{display:inline;margin:0;color:var(--soft)}\n"
    /* The right edge is shaded as long as there is more to scroll to. */
    ".scroll{overflow-x:auto;background:linear-gradient(90deg,transparent,var(--bg) 60%) "
    "right/48px "
    "100% no-repeat local,linear-gradient(270deg,color-mix(in srgb,var(--ink) 22%,transparent),"
    "transparent) right/16px 100% no-repeat scroll}"
    ".hint{display:none;color:var(--soft);font-size:13px;margin:0 0 4px}"
    ".narrow{display:none}"
    "@media(max-width:820px){.hint,.narrow{display:block}.wide{display:none}}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px;"
    "font-variant-numeric:tabular-nums}"
    "th,td{padding:6px 7px;text-align:right;border-bottom:1px solid "
    "var(--line);white-space:nowrap}"
    "thead th{font-weight:600;color:var(--soft);font-size:13px}"
    "tbody th{font-weight:400}.main th:first-child{text-align:left;padding-left:4px}"
    "td small{color:var(--soft);font-size:12.5px}"
    "tr.generated{background:color-mix(in srgb,var(--subject) 7%,transparent)}"
    "tr.generated th,tr.generated td{font-weight:600}tr.generated small{font-weight:400}\n"
    ".copies{font-style:normal;font-size:11.5px;border:1px solid "
    "var(--warn);color:var(--warn);"
    "border-radius:99px;padding:0 7px;margin-left:5px}"
    ".bar{display:inline-block;width:46px;height:8px;background:var(--bar);border-radius:4px;"
    "margin-right:7px;"
    "overflow:hidden}.bar i{display:block;height:100%;background:var(--reference)}"
    "tr.generated .bar i{background:var(--subject)}tr.held .bar i{background:var(--held)}\n"
    "figure{margin:0}figcaption{font-size:14px;color:var(--soft);margin:0 0 "
    "6px}svg{display:block;width:100%;height:auto}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(400px,100%),1fr));gap:"
    "18px}"
    ".grid3{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(270px,100%),1fr));gap:"
    "16px}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13.5px;margin:0 0 4px}"
    "svg.key{display:inline-block;width:12px;height:12px;margin-right:6px;vertical-align:-1px}\n"
    ".grid{stroke:var(--grid);stroke-width:1;fill:none}.frame{stroke:var(--soft);stroke-width:1;"
    "fill:none}"
    ".tick{font-size:11.5px;fill:var(--soft)}.axis{font-size:12.5px;fill:var(--ink)}"
    ".k-reference{fill:var(--reference);fill-opacity:.55}"
    ".k-held{fill:none;stroke:var(--held);stroke-width:1.4}"
    ".k-subject{fill:var(--subject);fill-opacity:.85}.k-direct{fill:var(--direct);fill-opacity:.75}"
    ".k-random{stroke:var(--random);stroke-width:1.3;fill:none}"
    ".k-perturbation{fill:var(--perturbation);stroke:var(--perturbation);fill-opacity:.6}.k-"
    "average{fill:var(--average);fill-"
    "opacity:.75}"
    ".k-matched{fill:var(--matched);fill-opacity:.8}.k-other{fill:var(--other);fill-opacity:.7}\n"
    ".k-run0{fill:var(--subject)}.k-run1{fill:var(--direct)}.k-run2{fill:var(--perturbation)}"
    ".k-run3{fill:var(--random)}.k-run4{fill:var(--average)}.k-run5{fill:var(--matched)}"
    ".k-run6{fill:var(--other)}\n"
    ".curve{fill:none;stroke:var(--subject);stroke-width:1.8}"
    ".curve-raw{fill:none;stroke:var(--subject);stroke-opacity:.28;stroke-width:1}"
    ".curve-held-out{fill:none;stroke:var(--held);stroke-width:1.6}"
    ".curve-fitted{fill:none;stroke:var(--fitted);stroke-width:1.6;stroke-dasharray:5 3}"
    ".gap{stroke:var(--held);stroke-width:3;stroke-opacity:.6}"
    ".hist-trained{fill:var(--reference);fill-opacity:.4;stroke:none}"
    ".hist-generated{fill:none;stroke:var(--subject);stroke-width:1.6}\n"
    ".walls{display:grid;grid-template-columns:minmax(150px,.45fr) 1fr 1fr;gap:18px 24px;"
    "align-items:start}@media(max-width:820px){.walls{grid-template-columns:1fr}}"
    ".wall{display:grid;grid-template-columns:repeat(6,1fr);gap:5px}"
    ".wall img{width:100%;height:auto;display:block;border-radius:3px}"
    ".task svg{max-width:260px;background:#fff;border-radius:6px}\n"
    "details{margin:10px 0}summary{cursor:pointer;color:var(--soft);font-size:14px}"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px "
    "16px;overflow-x:auto;"
    "font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace}"
    "footer{margin:44px 0 0;color:var(--soft);font-size:13px;border-top:1px solid "
    "var(--line);padding-top:12px}\n"
    ".whisker{stroke:var(--ink);stroke-width:1.1;fill:none}"
    ".paper{stroke:var(--held);stroke-width:2;fill:none}"
    ".line{fill:none;stroke-width:1.8}.dashed{stroke-dasharray:5 4}"
    "tr.mean th,tr.mean td{font-weight:600}tr.first th,tr.first td{border-top:2px solid "
    "var(--line)}\n"
    "@media print{body{background:#fff}section{break-inside:avoid}}\n";

wf_report_desc wf_report_desc_default(void) {
    return (wf_report_desc){.title = "weft", .wall = 24, .score = WF_SCORE_ACCURACY};
}

static void page_head(wf__page *page, const wf_report_desc *desc) {
    wf__page_add(page, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                       "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                       "<link rel=\"icon\" href=\"data:,\"><title>");
    wf__page_escaped(page, desc->title);
    wf__page_add(page, "</title><style>\n");
    wf__page_bytes(page, style_sheet, sizeof style_sheet - 1);
    wf__page_add(page, "</style></head><body><main>\n<header><h1>");
    wf__page_escaped(page, desc->title);
    wf__page_add(page, "</h1><p class=\"lead\">");
    wf__page_escaped(page, desc->summary);
    wf__page_add(page, "</p></header>\n");
}

static void page_tail(wf__page *page, const wf_report_desc *desc) {
    if (desc->recipe != NULL && desc->recipe[0] != '\0') {
        wf__page_add(page, "<section id=\"recipe\"><h2>The recipe</h2><pre>");
        wf__page_escaped(page, desc->recipe);
        wf__page_add(page, "</pre></section>\n");
    }
    wf__page_add(page, "<footer>Written by weft " WF_VERSION
                       ". This page refers to nothing outside itself.</footer>"
                       "</main></body></html>\n");
}

wf_status wf__report_page(wf_ctx *ctx, const wf_report_desc *desc, wf__page *page) {
    page_head(page, desc);
    wf__report_glance(page, desc);
    wf__report_sweep(page, desc);
    wf__report_table(page, desc);
    wf__report_tasks(page, desc);
    wf__report_domains(page, desc);
    wf__report_scatter(page, desc);
    WF_TRY(wf__report_wall(ctx, page, desc));
    WF_TRY(wf__report_loss(ctx, page, desc));
    wf__report_histograms(page, desc);
    wf__report_audit(page, desc);
    page_tail(page, desc);
    return page->failed ? wf_fail(ctx, WF_ERR_MEMORY, "the report does not fit in memory") : WF_OK;
}

wf_status wf_report_write(wf_ctx *ctx, const wf_report_desc *desc, const char *path) {
    wf__page page = {0};
    wf_status status = wf__report_page(ctx, desc, &page);
    if (status == WF_OK) status = wf_write_file(ctx, path, page.text, page.size);
    wf__page_free(&page);
    return status;
}
