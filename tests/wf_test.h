/* What every test program includes: cmocka, a context, and comparisons that show both values. */
#ifndef WF_TEST_H
#define WF_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "weft/base.h"

/* Ends the test as skipped; tests/run.sh prints the name and `why`, a text in quotes. */
#undef skip
#define skip(why)                                                                                  \
    do {                                                                                           \
        print_message("reason: %s\n", "" why);                                                     \
        _skip(__FILE__, __LINE__);                                                                 \
    } while (0)

/* A context with two threads unless WEFT_TEST_THREADS says otherwise. */
static inline wf_ctx *test_ctx(void) {
    const char *threads = getenv("WEFT_TEST_THREADS");
    wf_ctx_desc desc = {.threads = threads ? atoi(threads) : 2};
    wf_ctx *ctx = NULL;
    if (wf_ctx_create(&desc, &ctx) != WF_OK) abort();
    return ctx;
}

#define assert_ok(ctx, call)                                                                       \
    do {                                                                                           \
        wf_status status_ = (call);                                                                \
        if (status_ != WF_OK)                                                                      \
            fail_msg("%s: status %d: %s", #call, (int)status_, wf_last_error(ctx));                \
    } while (0)

/* The call must fail with `status`, and its sentence must contain `words`. */
#define assert_fails(ctx, call, status, words)                                                     \
    do {                                                                                           \
        wf_status status_ = (call);                                                                \
        if (status_ != (status) || strstr(wf_last_error(ctx), words) == NULL)                      \
            fail_msg("%s: status %d, sentence \"%s\"; expected %d with \"%s\"", #call,             \
                     (int)status_, wf_last_error(ctx), (int)(status), words);                      \
    } while (0)

#define assert_close(a, b, tolerance)                                                              \
    do {                                                                                           \
        double a_ = (a), b_ = (b), tolerance_ = (tolerance);                                       \
        if (!(fabs(a_ - b_) <= tolerance_))                                                        \
            fail_msg("%s = %.17g, %s = %.17g, difference %.3g > %.3g", #a, a_, #b, b_,             \
                     fabs(a_ - b_), tolerance_);                                                   \
    } while (0)

/* ||a - b|| / ||b|| of float arrays. */
static inline double relative_difference(const float *a, const float *b, size_t n) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* The nearest number of bf16: eight bits of the mantissa stay. */
static inline double round_bf16(double x) {
    int exponent;
    double mantissa = frexp(x, &exponent);
    return ldexp(rint(256 * mantissa), exponent - 8);
}

#endif
