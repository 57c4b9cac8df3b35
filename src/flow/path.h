/* path: where a weight is at time t, and the part of its velocity that needs no learning; for C and
 * for CUDA.
 *
 *   w_t = (1-t) w0 + t w1 + q z     w0 ~ N(0, s^2)   w1 of variance l   z ~ N(0, 1)     u = w1 - w0
 * Plain: v = F. Preconditioned: v = skip w_t + out F(in w_t, t). With F = 0 that is the exact
 * velocity for Gaussian weights, and F learns targets of unit variance. The inputs of F have unit
 * variance too, or l where that is less: a coordinate that hardly varies carries little
 * information. With a = l t^2 + s^2 (1-t)^2 + q^2
 *   in = sqrt(min(l, 1) / a)   skip = (l t - s^2 (1-t)) / a
 *   out = sqrt((l s^2 + (l + s^2) q^2) / a)
 * which for l = 1, s = 1, q = 0 is v = (2t-1)/a w + F(w/sqrt a, t)/sqrt a. */
#pragma once

#include "base/vmath.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct wf_path {
    bool precondition;
    double source_std, path_noise;
} wf_path;

typedef struct wf_path_scales {
    float in, skip, out;
} wf_path_scales;

static inline WF_HD wf_path_scales wf_path_at(const wf_path *path, double variance, double t) {
    wf_path_scales plain = {1, 0, 1};
    if (!path->precondition) return plain;
    double l = variance, s2 = path->source_std * path->source_std;
    double q2 = path->path_noise * path->path_noise;
    double a = l * t * t + s2 * (1 - t) * (1 - t) + q2;
    double seen = l < 1 ? sqrt(l) : 1;
    wf_path_scales scales = {(float)(seen / sqrt(a)), (float)((l * t - s2 * (1 - t)) / a),
                             (float)sqrt((l * s2 + (l + s2) * q2) / a)};
    return scales;
}

/* Parameters first .. first + count - 1 of a network are rows of `width` numbers along axes with
 * these variances; all others have unit variance. count 0: there are no such rows. */
typedef struct wf_axes {
    uint32_t first, count, width;
    const float *variance; /* (width) */
} wf_axes;

/* The scales of parameter i at time t; `others`: those of parameters with unit variance. */
static inline WF_HD wf_path_scales wf_axes_at(const wf_axes *axes, const wf_path *path,
                                              wf_path_scales others, double t, uint32_t i) {
    uint32_t place = i - axes->first;
    if (place >= axes->count) return others;
    return wf_path_at(path, (double)axes->variance[place % axes->width], t);
}
