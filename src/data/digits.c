/* digits: a digit as strokes, bent by chance and drawn on 8x8 pixels.
 *
 * A glyph is a few strokes in a square, x to the right and y down, both in [-1, 1]: straight pieces
 * between points, or arcs of an ellipse. For each drawing (1) every point moves a little, (2) one
 * affine map turns, shears, stretches and shifts the whole, (3) the distance of each of 4x4 sample
 * places of a pixel to the nearest stroke, against half a pen's width, gives its ink, (4) pixels
 * get a little noise. `noise` scales all of it; 1 is the data set's default, 0 draws the plain
 * glyph. */
#include "base/random.h"
#include "data/data_table.h"

#include <math.h>

enum { side = 8, samples = 4, max_points = 48, arc_points = 10, digits_stream = 2 };

typedef struct point {
    double x, y;
} point;

/* A piece of a glyph: a line to (x, y), a pen-up move there, or an arc round (x, y) with radii (rx,
 * ry) from turn `from` to turn `to` (0 is right, 0.25 down), which begins with a pen-up move unless
 * `joined`. END closes the list. */
typedef struct piece {
    enum { END, MOVE, LINE, ARC, JOINED_ARC } kind;
    double x, y, rx, ry, from, to;
} piece;

enum { variants = 2, max_pieces = 6 };

/* clang-format off */
#define MOVE(x, y) {MOVE, x, y, 0, 0, 0, 0}
#define LINE(x, y) {LINE, x, y, 0, 0, 0, 0}
static const piece glyphs[10][variants][max_pieces] = {
    {{{ARC, 0, 0, .55, .8, 0, 1}},
     {{ARC, 0, 0, .42, .8, 0, 1}}},
    {{MOVE(-.3, -.45), LINE(.1, -.8), LINE(.1, .8)},
     {MOVE(0, -.8), LINE(0, .8)}},
    {{{ARC, 0, -.35, .5, .45, -.5, .1}, LINE(-.5, .8), LINE(.55, .8)},
     {{ARC, -.02, -.4, .45, .4, -.45, .2}, LINE(-.5, .75), LINE(.5, .7)}},
    {{{ARC, 0, -.4, .45, .4, -.45, .25}, {JOINED_ARC, 0, .4, .5, .42, -.25, .45}},
     {MOVE(-.45, -.8), LINE(.45, -.8), LINE(-.05, -.12),
      {JOINED_ARC, -.02, .36, .5, .46, -.25, .42}}},
    {{MOVE(.25, .8), LINE(.25, -.8), LINE(-.55, .25), LINE(.6, .25)},
     {MOVE(-.4, -.75), LINE(-.5, .1), LINE(.5, .1), MOVE(.35, -.7), LINE(.3, .8)}},
    {{MOVE(.5, -.8), LINE(-.4, -.8), LINE(-.45, -.1), {JOINED_ARC, -.02, .3, .5, .48, -.3, .42}},
     {MOVE(.45, -.75), LINE(-.3, -.75), LINE(-.35, -.15),
      {JOINED_ARC, -.1, .32, .52, .45, -.25, .38}}},
    {{{ARC, .35, .35, .85, 1.15, -.3, -.5}, {JOINED_ARC, 0, .35, .48, .43, -.5, .5}},
     {MOVE(.3, -.8), LINE(-.35, .1), {JOINED_ARC, 0, .4, .42, .38, -.5, .5}}},
    {{MOVE(-.5, -.8), LINE(.5, -.8), LINE(-.1, .8)},
     {MOVE(-.5, -.75), LINE(.5, -.75), LINE(-.15, .8), MOVE(-.3, 0), LINE(.4, 0)}},
    {{{ARC, 0, -.4, .4, .4, 0, 1}, {ARC, 0, .4, .48, .42, 0, 1}},
     {{ARC, .02, -.42, .34, .36, 0, 1}, {ARC, -.02, .38, .42, .42, 0, 1}}},
    {{{ARC, 0, -.35, .47, .43, 0, 1}, MOVE(.47, -.35), LINE(.35, .8)},
     {{ARC, -.02, -.38, .42, .4, 0, 1}, MOVE(.42, -.4), LINE(.35, .4), LINE(-.25, .75)}},
};
#undef MOVE
#undef LINE
/* clang-format on */

/* Points of a drawing; pen[i] says that a stroke leads from point i-1 to point i. */
typedef struct drawing {
    point at[max_points];
    bool pen[max_points];
    int count;
} drawing;

static void add_point(drawing *to, double x, double y, bool pen) {
    if (to->count == max_points) return;
    to->at[to->count] = (point){x, y};
    to->pen[to->count] = pen && to->count > 0;
    to->count++;
}

static drawing draw_glyph(const piece *pieces) {
    drawing drawn = {.count = 0};
    for (int k = 0; k < max_pieces && pieces[k].kind != END; k++) {
        const piece *p = &pieces[k];
        if (p->kind == MOVE || p->kind == LINE) add_point(&drawn, p->x, p->y, p->kind == LINE);
        for (int i = 0; i <= arc_points && (p->kind == ARC || p->kind == JOINED_ARC); i++) {
            double turn = p->from + (p->to - p->from) * i / arc_points;
            float sine, cosine;
            wf_sincos_turnf((float)(turn - floor(turn)), &sine, &cosine);
            add_point(&drawn, p->x + p->rx * cosine, p->y + p->ry * sine,
                      i > 0 || p->kind == JOINED_ARC);
        }
    }
    return drawn;
}

/* In (-1, 1). */
static double symmetric(wf_rng *rng) { return 2.0 * wf_rng_uniform(rng) - 1; }

static void bend(drawing *drawn, wf_rng *rng, double noise) {
    float sine, cosine;
    double turn = noise * 0.04 * symmetric(rng);
    wf_sincos_turnf((float)(turn - floor(turn)), &sine, &cosine);
    double shear = noise * 0.28 * symmetric(rng);
    double stretch_x = 1 + noise * 0.22 * symmetric(rng);
    double stretch_y = 1 + noise * 0.13 * symmetric(rng);
    double shift_x = noise * 0.16 * symmetric(rng), shift_y = noise * 0.13 * symmetric(rng);
    for (int i = 0; i < drawn->count; i++) {
        double x = (drawn->at[i].x + noise * 0.08 * symmetric(rng)) * stretch_x;
        double y = (drawn->at[i].y + noise * 0.08 * symmetric(rng)) * stretch_y;
        x += shear * y;
        drawn->at[i] = (point){cosine * x - sine * y + shift_x, sine * x + cosine * y + shift_y};
    }
}

static double square_distance(point p, point a, point b) {
    double dx = b.x - a.x, dy = b.y - a.y;
    double length = dx * dx + dy * dy;
    double t = length > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    double ex = a.x + t * dx - p.x, ey = a.y + t * dy - p.y;
    return ex * ex + ey * ey;
}

static bool inked(const drawing *drawn, point p, double half_width) {
    for (int i = 1; i < drawn->count; i++)
        if (drawn->pen[i] &&
            square_distance(p, drawn->at[i - 1], drawn->at[i]) < half_width * half_width)
            return true;
    return false;
}

/* The share of a pixel's sample places that lie under the pen. The square [-1, 1] fills the image
 * but for a margin. */
static double pixel_ink(const drawing *drawn, int row, int column, double half_width) {
    int hits = 0;
    for (int s = 0; s < samples * samples; s++) {
        point p = {(column + (s % samples + 0.5) / samples) * 2.2 / side - 1.1,
                   (row + (s / samples + 0.5) / samples) * 2.2 / side - 1.1};
        hits += inked(drawn, p, half_width);
    }
    return (double)hits / (samples * samples);
}

void wf__draw_digit(uint64_t seed, uint32_t row, int digit, double noise, double pixel[64]) {
    wf_rng rng = wf_rng_at(seed, row, WF_RNG_DATA, digits_stream);
    drawing drawn = draw_glyph(glyphs[digit][wf_rng_below(&rng, variants)]);
    bend(&drawn, &rng, noise);
    double half_width = 0.14 + noise * 0.055 * symmetric(&rng);
    double ink = 1 - noise * 0.3 * wf_rng_uniform(&rng);
    for (int i = 0; i < side * side; i++) {
        double value = ink * pixel_ink(&drawn, i / side, i % side, half_width);
        value += noise * 0.09 * symmetric(&rng);
        pixel[i] = value < 0 ? 0 : value > 1 ? 1 : value;
    }
}
