/* Philox known answers (Random123's kat_vectors), addressing, deviates. */
#include "wf_test.h"
#include "base/random.h"

static void known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t out[4];
    } cases[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffffu,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822u,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t out[4];
        wf_philox(cases[i].counter, cases[i].key, out);
        for (int k = 0; k < 4; k++) assert_int_equal(out[k], cases[i].out[k]);
    }
}

static void normals_are_addressed(void **state) {
    (void)state;
    wf_rng rng = wf_rng_at(7, 3, WF_RNG_TEST, 11);
    float all[101], part[13];
    wf_rng_normals(&rng, all, 101);
    wf_rng_normals_from(&rng, 42, part, 13);
    for (int i = 0; i < 13; i++) assert_true(part[i] == all[42 + i]);
}

static void normals_have_their_moments(void **state) {
    (void)state;
    enum { n = 400000 };
    float *x = malloc(n * sizeof *x);
    wf_rng rng = wf_rng_at(1, 0, WF_RNG_TEST, 0);
    wf_rng_normals(&rng, x, n);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    for (int i = 0; i < n; i++) {
        double v = x[i];
        m1 += v / n, m2 += v * v / n, m3 += v * v * v / n, m4 += v * v * v * v / n;
    }
    free(x);
    assert_close(m1, 0, 5 / sqrt(n));
    assert_close(m2, 1, 5 * sqrt(2.0 / n));
    assert_close(m3, 0, 5 * sqrt(15.0 / n));
    assert_close(m4, 3, 5 * sqrt(96.0 / n));
}

static void below_is_uniform(void **state) {
    (void)state;
    wf_rng rng = wf_rng_at(5, 0, WF_RNG_TEST, 1);
    int count[7] = {0};
    for (int i = 0; i < 70000; i++) count[wf_rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++) assert_close(count[i], 10000, 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(normals_are_addressed),
        cmocka_unit_test(normals_have_their_moments),
        cmocka_unit_test(below_is_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
