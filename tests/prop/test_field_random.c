/* Random fields over random networks: equivariance in float and double, and the gradient along a
 * random direction of all parameters and weights at once. WEFT_LONG_TESTS=1 takes twenty times as
 * many. */
#include "field_case.h"

typedef struct random_case {
    wf_field_desc desc;
    char text[8][64];
    const char *archs[9];
} random_case;

static int between(wf_rng *rng, int low, int high) {
    return low + (int)wf_rng_below(rng, (uint32_t)(high - low + 1));
}

static void draw(wf_rng *rng, random_case *out) {
    wf_field_desc *desc = &out->desc;
    *desc = wf_field_desc_default();
    desc->layout = (wf_layout)between(rng, 0, 1);
    desc->node = between(rng, 8, 40);
    desc->edge = 2 * between(rng, 4, 20);
    desc->time = 2 * between(rng, 2, 10);
    desc->blocks = between(rng, 1, 3);
    desc->messages = (wf_messages)between(rng, 0, 2);
    desc->encoder = (wf_encoder)between(rng, 0, 2);
    desc->activation = (wf_field_act)between(rng, 0, 2);
    desc->cond = (wf_cond_kind)between(rng, 0, 2);
    desc->cond_size = desc->cond == WF_COND_NONE ? 0 : between(rng, 1, 5);
    bool fold = between(rng, 0, 2) == 0;
    int inputs = between(rng, 1, 12), count = between(rng, 1, 8);
    if (fold) desc->fold_rows = inputs + 1;
    for (int k = 0; k < count; k++) {
        char *text = out->text[k];
        int used = snprintf(text, 64, "%s%d", fold ? "*" : "", fold ? inputs : between(rng, 1, 12));
        for (int layer = between(rng, 1, 3); layer-- > 0;)
            used += snprintf(text + used, 64 - (size_t)used, "-%d%s", between(rng, 2, 14),
                             between(rng, 0, 3) ? "" : "!");
        snprintf(text + used, 64 - (size_t)used, "-%d", between(rng, 1, 6));
        out->archs[k] = text;
    }
    out->archs[count] = NULL;
}

/* The derivative of sum dv*v along a direction, from backward and from central differences. */
static void check_direction(const random_case *r, uint32_t round) {
    field_case c = case_open(r->desc, WF_F64, r->archs);
    size_t params = c.field->params, n = c.batch.n_params;
    case_forward(&c, true);
    case_backward(&c);
    double *along = case_random(&c, params, 50, 0.1), *across = case_random(&c, n, 51, 0.1);
    double *theta = c.params, *w = c.w, exact = 0, step = 1e-5, value[2];
    for (size_t i = 0; i < params; i++) exact += along[i] * ((double *)c.grad)[i];
    for (size_t i = 0; i < n; i++) exact += across[i] * ((double *)c.dw)[i];
    for (int side = 0; side < 2; side++) {
        double move = side ? -2 * step : step;
        for (size_t i = 0; i < params; i++) theta[i] += move * along[i];
        for (size_t i = 0; i < n; i++) w[i] += move * across[i];
        value[side] = case_loss(&c);
    }
    double numeric = (value[0] - value[1]) / (2 * step);
    double scale = fabs(exact) + 1e-3 * case_norm(&c, c.grad, params);
    if (!(fabs(exact - numeric) <= 1e-5 * scale))
        fail_msg("round %u (layout %d, messages %d, first %s): gradient %.12g, difference %.12g",
                 round, r->desc.layout, r->desc.messages, r->archs[0], exact, numeric);
    free(along);
    free(across);
    case_close(&c);
}

static void test_random_fields(void **state) {
    (void)state;
    uint32_t rounds = getenv("WEFT_LONG_TESTS") != NULL ? 200 : 10;
    for (uint32_t round = 0; round < rounds; round++) {
        wf_rng rng = wf_rng_at(99, round, WF_RNG_TEST, 1);
        random_case r;
        draw(&rng, &r);
        check_direction(&r, round);
        for (int dtype = 0; dtype < 2; dtype++) {
            field_case c = case_open(r.desc, dtype ? WF_F64 : WF_F32, r.archs);
            double error = equivariance_error(&c, round, false), limit = dtype ? 1e-12 : 1e-5;
            if (!(error <= limit))
                fail_msg("round %u (layout %d, messages %d, encoder %d, first %s): %.3g > %.3g",
                         round, r.desc.layout, r.desc.messages, r.desc.encoder, r.archs[0], error,
                         limit);
            case_close(&c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
