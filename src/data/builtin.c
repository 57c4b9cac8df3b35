/* builtin: the data sets that come with the library. Row r of a set depends on (seed, r, noise)
 * alone, so more rows are the same rows and some. Only additions, products, quotients, roots and
 * the polynomials of base/vmath.h are used: the same bits everywhere.
 *
 *   spirals  3 arms. t uniform in [0, 1): radius 0.1 + 0.9 t, angle 4 t + 2 pi arm / 3 + noise *
 *            normal
 *   moons    2 half circles of radius 1, the second upside down and moved by (1, -0.5); both
 *            coordinates + noise * normal
 *   digits   8x8 pixels in [0, 1], 10 classes, drawn as strokes (digits.c) */
#include "base/random.h"
#include "data/data_table.h"
#include "weft/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct builtin_set {
    const char *name;
    uint32_t step; /* of the stream; never renumber */
    int classes, inputs;
    size_t rows;
    double noise;
    int image[3]; /* channels, height, width; zeros: no images */
    void (*row)(wf_rng *rng, uint64_t seed, uint32_t row, int label, double noise, double *out);
} builtin_set;

static double normal(wf_rng *rng) {
    float x, y;
    uint32_t a = wf_rng_u32(rng), b = wf_rng_u32(rng);
    wf_box_muller(a, b, &x, &y);
    return x;
}

static void polar(double radius, double turns, double *x, double *y) {
    float sine, cosine;
    wf_sincos_turnf((float)(turns - floor(turns)), &sine, &cosine);
    *x = radius * cosine;
    *y = radius * sine;
}

static void spirals_row(wf_rng *rng, uint64_t seed, uint32_t row, int label, double noise,
                        double *out) {
    (void)seed, (void)row;
    const double radian = 0.15915494309189535; /* in turns */
    double t = wf_rng_uniform(rng);
    double turns = (4 * t + noise * normal(rng)) * radian + label / 3.0;
    polar(0.1 + 0.9 * t, turns, &out[0], &out[1]);
}

static void moons_row(wf_rng *rng, uint64_t seed, uint32_t row, int label, double noise,
                      double *out) {
    (void)seed, (void)row;
    polar(1, 0.5 * wf_rng_uniform(rng), &out[0], &out[1]);
    if (label == 1) {
        out[0] = 1 - out[0];
        out[1] = 0.5 - out[1];
    }
    out[0] += noise * normal(rng);
    out[1] += noise * normal(rng);
}

static void digits_row(wf_rng *rng, uint64_t seed, uint32_t row, int label, double noise,
                       double *out) {
    (void)rng;
    wf__draw_digit(seed, row, label, noise, out);
}

static const builtin_set sets[] = {
    {"spirals", 0, 3, 2, 1500, 0.5, {0}, spirals_row},
    {"moons", 1, 2, 2, 1000, 0.25, {0}, moons_row},
    {"digits", 2, 10, 64, 4000, 1, {1, 8, 8}, digits_row},
};
enum { n_sets = sizeof sets / sizeof *sets };

const char *const *wf_data_builtin(void) {
    static const char *const names[n_sets + 1] = {"spirals", "moons", "digits", NULL};
    return names;
}

/* Columns: the inputs, then the label. */
static wf_status name_columns(wf_ctx *ctx, const builtin_set *set, double *values, wf_table *out) {
    for (int c = 0; c <= set->inputs; c++) {
        const char *name;
        if (c == set->inputs) name = "class";
        else if (set->inputs == 2) name = c == 0 ? "x" : "y";
        else name = wf__arena_format(&out->arena, "pixel %d,%d", c / 8, c % 8);
        if (name == NULL) return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory", set->name);
        out->column[c] = (wf_column){.name = name, .values = values + (size_t)c * out->rows};
    }
    return WF_OK;
}

wf_status wf__table_builtin(wf_ctx *ctx, const char *name, uint64_t seed, size_t rows, double noise,
                            wf_table *out) {
    const builtin_set *set = sets;
    while (set < sets + n_sets && strcmp(set->name, name) != 0) set++;
    if (set == sets + n_sets)
        return wf_fail(ctx, WF_ERR_USAGE,
                       "data: there is no built-in set '%s' (spirals, moons, digits), and no path "
                       "to a file is given",
                       name);
    if (rows > 100000000)
        return wf_fail(ctx, WF_ERR_USAGE, "%s: %zu rows are too many", set->name, rows);
    out->label = set->name;
    out->rows = rows > 0 ? rows : set->rows;
    out->columns = (size_t)set->inputs + 1;
    out->target = (size_t)set->inputs;
    for (int i = 0; i < 3; i++) out->image[i] = set->image[i];
    out->column = wf_arena_zalloc(&out->arena, out->columns * sizeof *out->column);
    double *values = wf_arena_alloc(&out->arena, out->rows * out->columns * sizeof *values);
    if (out->column == NULL || values == NULL)
        return wf_fail(ctx, WF_ERR_MEMORY, "%s: out of memory for %zu rows", set->name, out->rows);
    WF_TRY(name_columns(ctx, set, values, out));
    for (size_t r = 0; r < out->rows; r++) {
        double row[64];
        int label = (int)(r % (size_t)set->classes);
        wf_rng rng = wf_rng_at(seed, (uint32_t)r, WF_RNG_DATA, set->step);
        set->row(&rng, seed, (uint32_t)r, label, noise < 0 ? set->noise : noise, row);
        for (size_t c = 0; c < out->target; c++) values[c * out->rows + r] = row[c];
        values[out->target * out->rows + r] = label;
    }
    return WF_OK;
}
