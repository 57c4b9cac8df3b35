/* Exact assignment against brute force, and its refusals. */

#include "ctx_fixture.h"
#include "weft/align.h"
#include "weft/rng.h"

static double matching_value(int n, const double *score, const uint32_t *match) {
    double sum = 0;
    for (int r = 0; r < n; r++) sum += score[r * n + (int)match[r]];
    return sum;
}

/* The best of all n! permutations, by exchanging tails. */
static double brute_force(int n, const double *score, uint32_t *order, int fixed) {
    if (fixed == n) return matching_value(n, score, order);
    double best = -INFINITY;
    for (int i = fixed; i < n; i++) {
        uint32_t kept = order[fixed];
        order[fixed] = order[i];
        order[i] = kept;
        double value = brute_force(n, score, order, fixed + 1);
        if (value > best) best = value;
        order[i] = order[fixed];
        order[fixed] = kept;
    }
    return best;
}

static void assert_permutation(int n, const uint32_t *match) {
    char seen[64] = {0};
    assert_true(n <= 64);
    for (int r = 0; r < n; r++) {
        assert_true(match[r] < (uint32_t)n);
        assert_false(seen[match[r]]);
        seen[match[r]] = 1;
    }
}

static void solves_like_brute_force(void **state) {
    (void)state;
    for (int n = 1; n <= 7; n++)
        for (uint32_t trial = 0; trial < 40; trial++) {
            double score[49];
            uint32_t match[7], order[7] = {0, 1, 2, 3, 4, 5, 6};
            wf_rng rng = wf_rng_at(1, trial, WF_RNG_TEST, (uint32_t)n);
            /* A third of the trials are full of exact ties. */
            for (int i = 0; i < n * n; i++)
                score[i] = trial % 3 == 0 ? (double)wf_rng_below(&rng, 3)
                                          : (double)wf_rng_uniform(&rng) * 20 - 10;
            assert_ok(ctx, wf_assign_max(ctx, n, score, match));
            assert_permutation(n, match);
            assert_close(matching_value(n, score, match), brute_force(n, score, order, 0), 1e-12);
        }
}

/* A hidden permutation with a clear margin must be found at any size. */
static void finds_planted_permutation(void **state) {
    (void)state;
    static double score[200 * 200];
    uint32_t match[200];
    const int sizes[] = {2, 16, 33, 100, 200};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        wf_rng rng = wf_rng_at(2, 0, WF_RNG_TEST, (uint32_t)n);
        for (int r = 0; r < n; r++)
            for (int j = 0; j < n; j++)
                score[r * n + j] =
                    (double)wf_rng_uniform(&rng) + (j == (r * 7 + 3) % n && n % 7 ? n : 0);
        assert_ok(ctx, wf_assign_max(ctx, n, score, match));
        for (int r = 0; r < n && n % 7; r++) assert_int_equal(match[r], (r * 7 + 3) % n);
    }
}

static void equal_scores_end(void **state) {
    (void)state;
    static double score[64 * 64];
    uint32_t match[64];
    assert_ok(ctx, wf_assign_max(ctx, 64, score, match));
    assert_permutation(64, match);
}

static void refuses_bad_input(void **state) {
    (void)state;
    double score[4] = {1, 2, 3, NAN};
    uint32_t match[2];
    assert_fails(ctx, wf_assign_max(ctx, 2, score, match), WF_ERR_USAGE, "row 1, column 1");
    assert_fails(ctx, wf_assign_max(ctx, 0, score, match), WF_ERR_USAGE, "at least one");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(solves_like_brute_force),
        cmocka_unit_test(finds_planted_permutation),
        cmocka_unit_test(equal_scores_end),
        cmocka_unit_test(refuses_bad_input),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
