/* Wasserstein distance and JWS against brute force and known answers. */

#include "ctx_fixture.h"
#include "base/random.h"
#include "eval/jws.h"

static void fill(double *points, size_t n, uint32_t index) {
    wf_rng rng = wf_rng_at(9, index, WF_RNG_TEST, 0);
    for (size_t i = 0; i < 3 * n; i++) points[i] = (double)wf_rng_uniform(&rng);
}

static double squared(const double *a, const double *b) {
    return (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
           (a[2] - b[2]) * (a[2] - b[2]);
}

/* Least sum of squares over all ways to pair rows i.. of a with the rows of b not yet used. */
static double least(const double *a, const double *b, int n, int i, unsigned used) {
    if (i == n) return 0;
    double best = INFINITY;
    for (int j = 0; j < n; j++)
        if (!(used >> j & 1u)) {
            double sum = squared(a + 3 * i, b + 3 * j) + least(a, b, n, i + 1, used | 1u << j);
            if (sum < best) best = sum;
        }
    return best;
}

static void distance_equals_brute_force(void **state) {
    (void)state;
    for (int n = 1; n <= 7; n++)
        for (uint32_t trial = 0; trial < 5; trial++) {
            double a[21], b[21], distance;
            fill(a, (size_t)n, 2 * trial);
            fill(b, (size_t)n, 2 * trial + 1);
            assert_ok(ctx, wf_wasserstein2(ctx, a, b, n, &distance));
            assert_close(distance, sqrt(least(a, b, n, 0, 0) / n), 1e-12);
        }
}

/* A shifted copy in another order is exactly the shift away. */
static void shift_is_the_distance(void **state) {
    (void)state;
    enum { n = 50 };
    double a[3 * n], b[3 * n], distance;
    fill(a, n, 3);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) b[3 * i + k] = a[3 * (n - 1 - i) + k] + (k == 1 ? 0.25 : 0);
    assert_ok(ctx, wf_wasserstein2(ctx, a, b, n, &distance));
    assert_close(distance, 0.25, 1e-12);
}

static void same_cloud_scores_one(void **state) {
    (void)state;
    enum { n = 30 };
    double a[3 * n];
    const double scales[3] = {0.9, 0.7, 0.6};
    fill(a, n, 4);
    wf_jws jws;
    assert_ok(ctx, wf__jws(ctx, a, n, a, n, scales, 7, 0, &jws));
    assert_close(jws.full, 1, 1e-12);
    assert_close(jws.raw, 1, 1e-12);
    assert_close(jws.no_sqrt3, 1, 1e-12);
    assert_close(jws.spread, 0, 1e-12);
}

/* All points in one place: every subset has the same distance, so each variant has a closed
 * form. */
static void constant_clouds_have_known_scores(void **state) {
    (void)state;
    enum { n = 5, m = 20 };
    double a[3 * n], b[3 * m];
    const double scales[3] = {0.8, 0.5, 0.6};
    const double here[3] = {0.7, 0.3, 0.4}, there[3] = {0.5, 0.35, 0.55};
    for (int i = 0; i < n; i++) memcpy(a + 3 * i, here, sizeof here);
    for (int i = 0; i < m; i++) memcpy(b + 3 * i, there, sizeof there);
    double scaled = sqrt(pow(0.2 / 0.8, 2) + pow(0.05 / 0.5, 2) + pow(0.15 / 0.6, 2));
    double raw = sqrt(0.2 * 0.2 + 0.05 * 0.05 + 0.15 * 0.15);
    wf_jws jws;
    assert_ok(ctx, wf__jws(ctx, a, n, b, m, scales, 10, 3, &jws));
    assert_close(jws.full, 1 - scaled / sqrt(3), 1e-12);
    assert_close(jws.raw, 1 - raw / sqrt(3), 1e-12);
    assert_close(jws.no_sqrt3, 1 - scaled, 1e-12);
    assert_close(jws.spread, 0, 1e-9);
}

/* Far away: clipped at zero. More networks than the cloud: subsets of both, still 1 for one
 * repeated point. */
static void clips_and_takes_more_networks_than_the_cloud(void **state) {
    (void)state;
    enum { n = 40, m = 10 };
    double a[3 * n], b[3 * m];
    const double scales[3] = {1, 1, 1};
    for (int i = 0; i < 3 * n; i++) a[i] = 5;
    for (int i = 0; i < 3 * m; i++) b[i] = 0;
    wf_jws jws;
    assert_ok(ctx, wf__jws(ctx, a, n, b, m, scales, 3, 0, &jws));
    assert_close(jws.full, 0, 0);
    assert_close(jws.raw, 0, 0);
    assert_close(jws.no_sqrt3, 0, 0);
    for (int i = 0; i < 3 * n; i++) a[i] = 0;
    assert_ok(ctx, wf__jws(ctx, a, n, b, m, scales, 3, 0, &jws));
    assert_close(jws.full, 1, 1e-12);
}

/* Redone by hand: subset b is the beginning of one shuffle; spread over the subsets. */
static void subsets_are_the_stated_shuffles(void **state) {
    (void)state;
    enum { n = 6, m = 15, subsets = 8 };
    double a[3 * n], b[3 * m], part[3 * n], scaled[3 * n];
    const double scales[3] = {0.9, 0.6, 0.7};
    fill(a, n, 5);
    fill(b, m, 6);
    for (int i = 0; i < 3 * n; i++) scaled[i] = a[i] / scales[i % 3];
    double value[subsets], mean = 0, variance = 0;
    for (uint32_t s = 0; s < subsets; s++) {
        uint32_t order[m];
        wf_rng rng = wf_rng_at(11, 0, WF_RNG_JWS, s);
        wf_rng_shuffle(&rng, order, m);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < 3; k++) part[3 * i + k] = b[3 * order[i] + k] / scales[k];
        value[s] = 1 - sqrt(least(scaled, part, n, 0, 0) / n) / sqrt(3);
        mean += value[s] / subsets;
    }
    for (int s = 0; s < subsets; s++) variance += (value[s] - mean) * (value[s] - mean) / subsets;
    wf_jws jws;
    assert_ok(ctx, wf__jws(ctx, a, n, b, m, scales, subsets, 11, &jws));
    assert_close(jws.full, mean, 1e-12);
    assert_close(jws.spread, sqrt(variance), 1e-12);
}

static void refuses_bad_input(void **state) {
    (void)state;
    double a[6] = {0, 0, 0, 0, NAN, 0}, b[6] = {0}, out;
    assert_fails(ctx, wf_wasserstein2(ctx, a, b, 0, &out), WF_ERR_USAGE, "at least one");
    assert_fails(ctx, wf_wasserstein2(ctx, a, b, 2, &out), WF_ERR_USAGE, "point 1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distance_equals_brute_force),
        cmocka_unit_test(shift_is_the_distance),
        cmocka_unit_test(same_cloud_scores_one),
        cmocka_unit_test(constant_clouds_have_known_scores),
        cmocka_unit_test(clips_and_takes_more_networks_than_the_cloud),
        cmocka_unit_test(subsets_are_the_stated_shuffles),
        cmocka_unit_test(refuses_bad_input),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
