/* The polynomials against libm; the bounds are those stated in base/vmath.h. */
#include "wf_test.h"
#include "base/vmath.h"

static double ulps(double value, double exact) {
    float f = (float)fabs(exact);
    return fabs(value - exact) / (nextafterf(f, INFINITY) - f);
}

static void exponential(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -86.9f; x < 88.0f; x += 0.00137f)
        worst = fmax(worst, ulps(wf_expf(x), exp((double)x)));
    assert_close(worst, 0, 2);
    assert_true(wf_expf(0) == 1);
    assert_true(wf_expf(-1000) < 2e-38f);
}

static void logarithm(void **state) {
    (void)state;
    double worst = 0;
    for (float x = 1e-30f; x < 1e30f; x *= 1.00013f)
        worst = fmax(worst, ulps(wf_logf(x), log((double)x)));
    assert_close(worst, 0, 2);
}

static void hyperbolic_tangent(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -12; x < 12; x += 0.00017f)
        worst = fmax(worst, ulps(wf_tanhf(x), tanh((double)x)));
    assert_close(worst, 0, 4);
}

static void sines(void **state) {
    (void)state;
    double worst = 0, worst_turn = 0;
    for (double x = -1e4; x < 1e4; x += 0.0173) {
        worst = fmax(worst, fabs(wf_sinf((float)x) - sin((double)(float)x)));
        worst = fmax(worst, fabs(wf_cosf((float)x) - cos((double)(float)x)));
    }
    for (float turn = 0; turn < 1; turn += 1e-5f) {
        float s, c;
        wf_sincos_turnf(turn, &s, &c);
        worst_turn = fmax(worst_turn, fabs(s - sin(2 * M_PI * (double)turn)));
        worst_turn = fmax(worst_turn, fabs(c - cos(2 * M_PI * (double)turn)));
    }
    assert_close(worst, 0, 2e-7);
    assert_close(worst_turn, 0, 1.2e-7);
}

static void normal_probability(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -14; x < 14; x += 0.00031f) {
        float bell;
        double value = wf_normal_cdff(x, &bell), exact = 0.5 * erfc(-(double)x * M_SQRT1_2);
        worst = fmax(worst, fabs(value - exact));
        worst = fmax(worst, fabs(bell - exp(-0.5 * (double)x * (double)x)));
    }
    assert_close(worst, 0, 2.5e-7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),        cmocka_unit_test(logarithm),
        cmocka_unit_test(hyperbolic_tangent), cmocka_unit_test(sines),
        cmocka_unit_test(normal_probability),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
