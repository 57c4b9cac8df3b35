/* The report: escaping, self-containment, the PNG encoder against zlib's own inflate, marked
 * copies, missing parts. WEFT_TEST_REPORT=FILE keeps the page of the full test, to look at it. */
#include "ctx_fixture.h"
#include "comma_locale.h"

#include "base/io.h"
#include "report/page.h"
#include "weft/rng.h"

#include <zlib.h>

enum { n_points = 120, n_networks = 30 };

static wf_points make_points(uint32_t which, size_t n, double accuracy, double iou, double wcs,
                             double spread, double percentile) {
    wf_points points = {.n = n};
    points.accuracy = calloc(n, sizeof(float));
    points.iou = calloc(n, sizeof(float));
    points.wcs = calloc(n, sizeof(float));
    points.nearest_wcs = calloc(n, sizeof(uint32_t));
    points.nearest_iou = calloc(n, sizeof(uint32_t));
    points.wcs_percentile = calloc(n, sizeof(float));
    points.iou_percentile = calloc(n, sizeof(float));
    wf_rng rng = wf_rng_at(7, which, WF_RNG_TEST, 0);
    for (size_t i = 0; i < n; i++) {
        float common = wf_rng_uniform(&rng) - 0.5f;
        points.accuracy[i] = (float)(accuracy + spread * (common + 0.4 * wf_rng_uniform(&rng)));
        points.iou[i] = (float)(iou + 2 * spread * (common + 0.5 * wf_rng_uniform(&rng)));
        points.wcs[i] = (float)(wcs + 0.5 * spread * (wf_rng_uniform(&rng) - 0.5));
        points.nearest_wcs[i] = wf_rng_below(&rng, 600);
        points.nearest_iou[i] = wf_rng_below(&rng, 600);
        points.wcs_percentile[i] = (float)(percentile * wf_rng_uniform(&rng));
        points.iou_percentile[i] = 100 * wf_rng_uniform(&rng);
    }
    return points;
}

static void free_points(wf_points *points) {
    free(points->accuracy);
    free(points->iou);
    free(points->wcs);
    free(points->nearest_wcs);
    free(points->nearest_iou);
    free(points->wcs_percentile);
    free(points->iou_percentile);
}

static wf_eval_row make_row(const char *name, double accuracy, double wcs, double jws) {
    wf_eval_row row = {.n = 100,
                       .accuracy_mean = accuracy,
                       .accuracy_std = 0.012,
                       .iou_mean = 0.51,
                       .iou_std = 0.04,
                       .wcs_mean = wcs,
                       .wcs_std = 0.01,
                       .jws = jws,
                       .jws_std = 0.002,
                       .jws_raw = jws,
                       .jws_no_sqrt3 = jws,
                       .diversity_iou_mean = 0.4,
                       .diversity_iou_std = 0.02,
                       .diversity_wcs_mean = wcs,
                       .diversity_wcs_std = 0.02};
    snprintf(row.name, sizeof row.name, "%s", name);
    return row;
}

static char *read_page(const char *path) {
    char *text;
    size_t size;
    assert_ok(ctx, wf_read_file(ctx, path, 64 << 20, &text, &size));
    assert_int_equal(size, strlen(text));
    return text;
}

/* Three spirals in the plane. */
static void make_data(wf_dataset *data, float *x, int32_t *y, size_t n) {
    wf_rng rng = wf_rng_at(3, 0, WF_RNG_TEST, 0);
    for (size_t i = 0; i < n; i++) {
        double r = 0.1 + 1.4 * wf_rng_uniform(&rng), angle = 2.2 * r + 2.0944 * (double)(i % 3);
        x[2 * i] = (float)(r * cos(angle) + 0.1 * wf_rng_uniform(&rng));
        x[2 * i + 1] = (float)(r * sin(angle) + 0.1 * wf_rng_uniform(&rng));
        y[i] = (int32_t)(i % 3);
    }
    *data = (wf_dataset){.n_train = n, .inputs = 2, .classes = 3, .x_train = x, .y_train = y};
}

/* gap: of the two losses at the end, 0.01 of it there from the start. */
static void write_log(const char *path, double gap) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    wf_rng rng = wf_rng_at(5, 0, WF_RNG_TEST, 0);
    for (int update = 20; update <= 3500; update += 20)
        fprintf(file, "{\"update\": %d, \"loss\": %.4f, \"lr\": 0.002}\n", update,
                0.55 + 0.9 * exp(-update / 500.0) + 0.04 * wf_rng_uniform(&rng));
    for (int update = 35; update <= 3500; update += 35)
        fprintf(file, "{\"update\": %d, \"validation\": %.4f, \"fitted\": %.4f}\n", update,
                0.57 + 0.8 * exp(-update / 400.0) + (gap - 0.01) * update / 3500,
                0.56 + 0.8 * exp(-update / 400.0));
    fputs("{\"update\": 3520, \"lo", file); /* cut by a crash */
    fclose(file);
}

static size_t count_of(const char *text, const char *piece) {
    size_t count = 0;
    for (; (text = strstr(text, piece)) != NULL; text++) count++;
    return count;
}

static void check_full_page(const char *path) {
    static const char *const there[] = {
        "demo &lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;friends&quot;",
        "# &lt;small&gt; &amp; quick",
        "0.949",
        "layers.1.bias",
        "class=\"curve\"",
        "class=\"curve-held-out\"",
        "class=\"gap\"",
        "at the end 0.6051; green",
        "The gap of 0.0450 (8.0 %)",
        "cloud of 600",
        "<dt>reference</dt><dd>the trained networks themselves",
        "<dt>gmn-refined</dt><dd>drawn in the same way",
        "<b>copies</b>: most lie nearer to a trained network"};
    static const char *const absent[] = {"<script", "http", "nan"};
    char *page = read_page(path);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        if (strstr(page, there[i]) == NULL) fail_msg("the page has no %s", there[i]);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strstr(page, absent[i]) != NULL) fail_msg("the page has %s", absent[i]);
    assert_int_equal(count_of(page, "src=\"data:image/png;base64,"), 2 * 24);
    assert_int_equal(count_of(page, "<em class=\"copies\""), 1);
    assert_non_null(strstr(strstr(page, "perturbation-0.05"), "copies"));
    free(page);
}

static void full_page(void **state) {
    (void)state;
    static const struct {
        const char *name;
        wf_report_role role;
        double accuracy, iou, wcs, jws, spread, percentile;
    } kind[] = {{"reference", WF_REPORT_REFERENCE, .92, .52, .905, 1, .05, 100},
                {"held-out", WF_REPORT_HELD_OUT, .92, .52, .904, .984, .05, 100},
                {"random", WF_REPORT_CONTROL, .33, .06, .61, .31, .05, 1},
                {"perturbation-0.05", WF_REPORT_CONTROL, .91, .83, .996, .71, .03, 0},
                {"average", WF_REPORT_CONTROL, .55, .12, .75, .52, .1, 5},
                {"gmn", WF_REPORT_GENERATED, .90, .49, .897, .911, .06, 90},
                {"gmn-refined", WF_REPORT_GENERATED, .915, .51, .903, .949, .05, 95}};
    enum { kinds = sizeof kind / sizeof kind[0] };
    wf_eval_row rows[kinds];
    wf_points points[kinds];
    wf_report_entry entries[kinds];
    for (int i = 0; i < kinds; i++) {
        rows[i] = make_row(kind[i].name, kind[i].accuracy, kind[i].wcs, kind[i].jws);
        points[i] = make_points((uint32_t)i, n_points, kind[i].accuracy, kind[i].iou, kind[i].wcs,
                                kind[i].spread, kind[i].percentile);
        entries[i] = (wf_report_entry){kind[i].role, &rows[i], &points[i], false};
    }
    for (size_t i = 0; i < n_points; i++) points[3].wcs_percentile[i] = 100;

    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "2-16-3", "relu", 0, &graph));
    float *weights = calloc(2 * n_networks * graph->n_params, sizeof(float));
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 0);
    for (size_t i = 0; i < 2 * n_networks * graph->n_params; i++)
        weights[i] = 2.4f * (wf_rng_uniform(&rng) + wf_rng_uniform(&rng) - 1.0f);
    enum { examples = 600 };
    float x[2 * examples];
    int32_t y[examples];
    wf_dataset data;
    make_data(&data, x, y, examples);
    char log_path[64], path[64];
    snprintf(log_path, sizeof log_path, "%s/log.jsonl", folder);
    snprintf(path, sizeof path, "%s/full.html", folder);
    write_log(log_path, 0.045);

    wf_report_desc desc = wf_report_desc_default();
    desc.title = "demo <script>alert(1)</script> & \"friends\"";
    desc.summary =
        "A flow fitted to 600 networks of 2-16-3 on spirals, and 100 networks sampled from it.";
    desc.entries = entries;
    desc.n_entries = kinds;
    desc.notes = "cloud of 600: the collection has no more";
    desc.logs = &(wf_report_log){.path = log_path};
    desc.n_logs = 1;
    desc.graph = graph;
    desc.trained = weights;
    desc.n_trained = n_networks;
    desc.generated = weights + n_networks * graph->n_params;
    desc.n_generated = n_networks;
    desc.generated_name = "gmn-refined";
    desc.data = &data;
    desc.recipe = "[zoo]\narch = 2-16-3  # <small> & quick\n";
    wf_report_fact facts[] = {{"collection", "600 networks of 2-16-3"},
                              {"flow", "lean 32 x 3, 3,500 updates"}};
    desc.facts = facts;
    desc.n_facts = 2;
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    const char *keep = getenv("WEFT_TEST_REPORT");
    if (keep != NULL) assert_ok(ctx, wf_report_write(ctx, &desc, keep));

    check_full_page(path);
    write_log(log_path, -0.02);
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    char *page = read_page(path);
    assert_non_null(strstr(page, "There is no gap between them: nothing is learned by heart."));
    assert_null(strstr(page, "what it has learned"));
    free(page);
    free(weights);
    wf_graph_free(graph);
    for (int i = 0; i < kinds; i++) free_points(&points[i]);
}

/* Without labelled data there are no scores, no IoU, no JWS: dashes, and no plot. */
static void unlabelled_page(void **state) {
    (void)state;
    wf_eval_row row = {.n = 3, .wcs_mean = 0.75, .wcs_std = 0.01};
    snprintf(row.name, sizeof row.name, "gmn<b>");
    row.accuracy_mean = row.accuracy_std = row.iou_mean = row.iou_std = row.jws = row.jws_std = NAN;
    row.diversity_iou_mean = row.diversity_iou_std = row.diversity_wcs_mean =
        row.diversity_wcs_std = NAN;
    wf_report_entry entry = {WF_REPORT_GENERATED, &row, NULL, true};
    wf_report_desc desc = wf_report_desc_default();
    desc.title = "no labels";
    desc.entries = &entry;
    desc.n_entries = 1;
    char missing[64], path[64];
    snprintf(missing, sizeof missing, "%s/absent.jsonl", folder);
    snprintf(path, sizeof path, "%s/plain.html", folder);
    const wf_report_log logs[] = {{.path = missing}, {.name = "runs/<b>", .path = missing}};
    desc.logs = logs;
    desc.n_logs = 1;
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    char *page = read_page(path);
    assert_non_null(strstr(page, "gmn&lt;b&gt;"));
    assert_non_null(strstr(page, "&ndash;"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "Every network as a point"));
    assert_non_null(strstr(page, "<em class=\"copies\""));
    assert_null(strstr(page, "id=\"training\""));
    free(page);

    /* A generator that is fitted in phases: a curve of each, and nothing about flows. */
    FILE *log = fopen(missing, "w");
    for (int update = 1; update <= 8; update++)
        fprintf(log, "{\"update\":%d,\"phase\":\"%s\",\"loss\":%d}\n", update,
                update <= 5 ? "vae" : "ddpm", update <= 5 ? 900 : 1);
    fclose(log);
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    page = read_page(path);
    assert_non_null(strstr(page, "<h2>Training</h2><h3>vae</h3>"));
    assert_non_null(strstr(page, "<h3>ddpm</h3>"));
    assert_int_equal(count_of(page, "class=\"curve\""), 4); /* wide and narrow */
    assert_null(strstr(page, "middle of its path"));
    free(page);
    desc.n_logs = 2; /* of several runs, without copies */
    entry.copies = false;
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    page = read_page(path);
    assert_non_null(strstr(page, "<h3>runs/&lt;b&gt;, ddpm</h3>"));
    assert_null(strstr(page, "<b>copies</b>"));
    assert_int_equal(count_of(page, "class=\"curve\""), 8);
    assert_int_equal(count_of(page, "id=\"training\""), 1);
    free(page);
    remove(missing);

    snprintf(path, sizeof path, "%s/no-such-folder/x.html", folder);
    assert_int_not_equal(wf_report_write(ctx, &desc, path), WF_OK);
}

static uint32_t read_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Decodes the file by the PNG rules and compares every byte. */
static void png_round_trip(void **state) {
    (void)state;
    enum { width = 13, height = 7 };
    uint8_t rgb[height * width * 3], raw[height * (3 * width + 1)];
    wf_rng rng = wf_rng_at(2, 0, WF_RNG_TEST, 0);
    for (size_t i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)wf_rng_below(&rng, 256);
    uint8_t *file;
    size_t size;
    assert_true(wf__png_encode(rgb, width, height, &file, &size));
    assert_memory_equal(file, "\x89PNG\r\n\x1a\n", 8);
    bool ended = false;
    uLongf unpacked = 0;
    for (size_t at = 8; at < size;) {
        uint32_t length = read_u32(file + at);
        assert_true(at + 12 + length <= size);
        assert_int_equal(read_u32(file + at + 8 + length), crc32(0, file + at + 4, length + 4));
        if (memcmp(file + at + 4, "IHDR", 4) == 0) {
            assert_int_equal(read_u32(file + at + 8), width);
            assert_int_equal(read_u32(file + at + 12), height);
            assert_memory_equal(file + at + 16, "\x08\x02\0\0\0", 5);
        }
        if (memcmp(file + at + 4, "IDAT", 4) == 0) {
            unpacked = sizeof raw;
            assert_int_equal(uncompress(raw, &unpacked, file + at + 8, length), Z_OK);
        }
        ended = memcmp(file + at + 4, "IEND", 4) == 0;
        at += 12 + length;
    }
    assert_true(ended);
    assert_int_equal(unpacked, sizeof raw);
    for (int row = 0; row < height; row++) {
        const uint8_t *line = raw + row * (3 * width + 1);
        assert_int_equal(line[0], 1);
        uint8_t left[3] = {0, 0, 0};
        for (int i = 0; i < 3 * width; i++) {
            left[i % 3] = (uint8_t)(left[i % 3] + line[1 + i]);
            assert_int_equal(left[i % 3], rgb[row * 3 * width + i]);
        }
    }
    free(file);
}

static void base64_known_answers(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}};
    for (int i = 0; i < 5; i++) {
        wf__page page = {0};
        wf__page_base64(&page, (const uint8_t *)pairs[i][0], strlen(pairs[i][0]));
        assert_string_equal(page.text == NULL ? "" : page.text, pairs[i][1]);
        wf__page_free(&page);
    }
}

/* A flow of many tasks: a picture a task, bars and a line for each width, means over tasks; names
 * are escaped, what is not known is a dash. */
static void page_of_tasks(void **state) {
    (void)state;
    const wf_report_task tasks[] = {
        {"a<b", "2-4-2", 0.5, 0.9, 0.01, 0.85, 0.02, NAN, 0.91, 0.88, "made & up"},
        {"a<b", "2-8-2", 1, 0.91, 0.01, 0.9, 0.02, 0.9512, 0.92, 0.93, "made & up"},
        {"bare", "3-8-2", 1, NAN, NAN, NAN, NAN, 0.5, 0, 0, NULL},
        {"other", "4-8-2", 1, 0.71, 0.01, 0.74, 0.02, NAN, 0, 0, ""}};
    wf_report_desc desc = wf_report_desc_default();
    desc.tasks = tasks;
    desc.n_tasks = 4;
    desc.summary = "";
    wf__page page = {0};
    wf__report_tasks(&page, &desc);
    assert_false(page.failed);
    assert_int_equal(count_of(page.text, "<figure>"), 3);
    assert_int_equal(count_of(page.text, "<rect"), 6);
    assert_int_equal(count_of(page.text, "class=\"whisker\""), 6);
    assert_int_equal(count_of(page.text, "class=\"paper\" d=\"M"), 5); /* and one in the legend */
    assert_null(strstr(page.text, "a<b"));
    assert_non_null(strstr(page.text, "a&lt;b"));
    assert_non_null(strstr(page.text, ">-5.00<"));
    assert_non_null(strstr(page.text, "85.00 <small>&plusmn;&thinsp;2.00</small>"));
    assert_non_null(strstr(page.text, "<td>0.951</td>"));
    assert_non_null(strstr(page.text, "<td>&ndash;</td>"));
    assert_null(strstr(page.text, "nan"));
    /* Width 0.5: one task, -5.00, the paper -3.00. Width 1: two tasks, (-1 + 3) / 2, and no paper
     * for both of them. */
    assert_non_null(strstr(page.text, "times 0.5</span><b>-5.00</b><small>mean of 1 task: 85.00 "
                                      "against 90.00&thinsp;%; the paper has -3.00</small>"));
    assert_non_null(strstr(page.text, "times 1</span><b>+1.00</b><small>mean of 2 tasks: 82.00 "
                                      "against 81.00&thinsp;%</small>"));
    assert_int_equal(count_of(page.text, "made &amp; up."), 1);
    wf__page_free(&page);
    desc.n_tasks = 0;
    wf__report_tasks(&page, &desc);
    assert_null(page.text);
    wf__page_free(&page);
}

/* Two domains: collections, networks at the ends and between, one curve of averages and one of
 * ensembles, JWS over c. */
static void page_of_domains(void **state) {
    (void)state;
    const float x[] = {0.9f, 0.8f, 0.85f, 0.88f}, y[] = {0.7f, 0.92f, 0.84f, 0.86f};
    const wf_report_cloud clouds[] = {{"CA & more", true, 0, x, y, 4},
                                      {"c = 0", false, 0, x, y, 2},
                                      {"c = 0.5", false, 0.5, x + 2, y + 2, 2}};
    char names[2][32] = {"average-5", "ensemble"};
    double alpha[] = {0, 0.5, 1},
           mean[] = {0.9, 0.7, 0.4, 0.45, 0.7, 0.9, 0.9, 0.7, 0.87, 0.85, 0.7, 0.9};
    double std[12] = {0}, cond[] = {0, 0.5, 1}, jws_x[] = {0.97, 0.7, 0.4},
           jws_y[] = {0.5, 0.8, 0.98};
    wf_mix mix = {2, 3, 2, names, alpha, mean, std};
    wf_report_domains domains = {.x_name = "CA & more",
                                 .y_name = "PR",
                                 .x_cond = 0,
                                 .y_cond = 1,
                                 .clouds = clouds,
                                 .n_clouds = 3,
                                 .mix = &mix,
                                 .n_jws = 3,
                                 .jws_cond = cond,
                                 .jws_x = jws_x,
                                 .jws_y = jws_y};
    wf_report_desc desc = wf_report_desc_default();
    desc.score = WF_SCORE_AUC;
    desc.domains = &domains;
    wf__page page = {0};
    wf__report_domains(&page, &desc);
    assert_false(page.failed);
    assert_int_equal(count_of(page.text, "<figure>"), 4); /* ends, between, close; JWS */
    assert_null(strstr(page.text, "CA & more"));
    assert_non_null(strstr(page.text, "ROC AUC on CA &amp; more"));
    assert_null(strstr(page.text, "nan"));
    assert_null(strstr(page.text, "inf"));
    /* c = 0.5 lies half way between the colours of the domains, and its row has the JWS of c =
     * 0.5. */
    assert_non_null(strstr(page.text, "var(--subject) 50%,var(--held)"));
    assert_non_null(strstr(page.text, "<td>0.700</td><td>0.800</td>"));
    assert_non_null(strstr(page.text, "0.8650 <small>&plusmn;&thinsp;0.0150</small>"));
    /* The best place of the ensemble is the middle, that of the averages an end. */
    assert_non_null(strstr(page.text, "ensemble, alpha = 0.5"));
    assert_non_null(strstr(page.text, "average-5, alpha = 0<"));
    wf__page_free(&page);
    domains.mix = NULL;
    domains.n_jws = 0;
    domains.n_clouds = 0;
    wf__report_domains(&page, &desc); /* nothing to show is no fault */
    assert_false(page.failed);
    assert_null(strstr(page.text, "nan"));
    wf__page_free(&page);
    desc.domains = NULL;
    wf__report_domains(&page, &desc);
    assert_null(page.text);
}

/* A copy: more than half of the networks at the 99th percentile or above. */
/* Three decades: 100, 1,000 and 10,000 stand at equal distances, JWS 0.6 in the middle between 0.2
 * and 1. */
static void page_of_a_sweep(void **state) {
    (void)state;
    const double x[] = {100, 1000, 10000}, few[] = {2, 4};
    wf_eval_row rows[3], other[2] = {make_row("a", .5, .5, .4), make_row("b", .5, .5, NAN)};
    for (int i = 0; i < 3; i++) rows[i] = make_row("run", 0.5, 0.5, 0.2 + 0.4 * i);
    wf_report_series series[] = {{"<direct>", false, x, rows, 3}, {"paper", true, x, other, 2}};
    wf_report_sweep sweep = {"train.limit & more", series, 2};
    wf_report_entry entry = {WF_REPORT_GENERATED, &rows[2], NULL, false};
    wf_report_desc desc = wf_report_desc_default();
    desc.summary = "";
    desc.entries = &entry;
    desc.n_entries = 1;
    desc.sweep = &sweep;
    char path[128];
    snprintf(path, sizeof path, "%s/sweep.html", folder);
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    char *page = read_page(path);
    assert_non_null(strstr(page, "M69.3 250.8L260.0 136.0L450.7 21.2"));
    assert_non_null(strstr(page, ">1000</text>"));
    assert_non_null(strstr(page, "&lt;direct&gt;"));
    assert_non_null(strstr(page, "train.limit &amp; more"));
    assert_null(strstr(page, "class=\"tiles\"")); /* no single run is the subject */
    assert_null(strstr(page, "nan"));
    free(page);
    series[0] = (wf_report_series){"direct", false, few, rows, 2}; /* 2 and 4: an even axis */
    sweep.n_series = 1;
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    page = read_page(path);
    assert_non_null(strstr(page, ">3.0</text>"));
    free(page);
    sweep.n_series = 0; /* runs without a number to stand over: the table alone */
    assert_ok(ctx, wf_report_write(ctx, &desc, path));
    page = read_page(path);
    assert_null(strstr(page, "<figure>"));
    assert_non_null(strstr(page, "The table"));
    free(page);
}

static void copies_are_told(void **state) {
    (void)state;
    float percentile[4] = {99, 100, 98.9f, 10};
    wf_points points = {.n = 4, .wcs_percentile = percentile};
    assert_false(wf_report_is_copy(&points));
    percentile[2] = 99;
    assert_true(wf_report_is_copy(&points));
    assert_false(wf_report_is_copy(NULL));
}

/* SVG has no decimal comma, whatever the host program's locale. */
static void numbers_ignore_the_locale(void **state) {
    (void)state;
    wf__page page = {0};
    bool comma = comma_locale_begin();
    wf__page_add(&page, "%.1f %s", 2.5, "x");
    comma_locale_end();
    assert_string_equal(page.text, "2.5 x");
    wf__page_free(&page);
    if (!comma) skip("no localedef");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_page),       cmocka_unit_test(unlabelled_page),
        cmocka_unit_test(png_round_trip),  cmocka_unit_test(base64_known_answers),
        cmocka_unit_test(page_of_tasks),   cmocka_unit_test(page_of_domains),
        cmocka_unit_test(copies_are_told), cmocka_unit_test(numbers_ignore_the_locale),
        cmocka_unit_test(page_of_a_sweep),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
