/* data_split: the stratified split (prepare.h says the rule). */
#include "base/random.h"
#include "data/prepare.h"

#include <math.h>
#include <stdlib.h>

typedef struct share {
    size_t rows, test;
    double remainder;
} share;

/* Whole parts first, then one row more to the largest remainders while any class has a row to
 * give. */
static void deal_shares(share *shares, size_t classes, double fraction, size_t wanted) {
    size_t given = 0;
    for (size_t c = 0; c < classes; c++) {
        double exact = (double)shares[c].rows * fraction;
        shares[c].test = (size_t)floor(exact);
        shares[c].remainder = exact - (double)shares[c].test;
        if (shares[c].test + 1 > shares[c].rows) shares[c].test = shares[c].rows - 1;
        given += shares[c].test;
    }
    while (given < wanted) {
        share *best = NULL;
        for (size_t c = 0; c < classes; c++)
            if (shares[c].test + 1 < shares[c].rows &&
                (best == NULL || shares[c].remainder > best->remainder))
                best = &shares[c];
        if (best == NULL) return;
        best->test++;
        best->remainder -= 1;
        given++;
    }
}

wf_status wf__split(wf_ctx *ctx, const int32_t *labels, size_t rows, size_t classes,
                    double fraction, uint64_t seed, bool *in_test) {
    share *shares = NULL;
    uint32_t *members = NULL, *order = NULL;
    wf_status status;
    WF_TRY_GOTO(wf_alloc(ctx, classes, sizeof *shares, "split", &shares), done);
    WF_TRY_GOTO(wf_alloc(ctx, rows, sizeof *members, "split", &members), done);
    WF_TRY_GOTO(wf_alloc(ctx, rows, sizeof *order, "split", &order), done);
    for (size_t r = 0; r < rows; r++) {
        in_test[r] = false;
        shares[labels[r]].rows++;
    }
    deal_shares(shares, classes, fraction, (size_t)floor((double)rows * fraction + 0.5));
    for (size_t c = 0; c < classes; c++) {
        uint32_t n = 0;
        for (size_t r = 0; r < rows; r++)
            if (labels[r] == (int32_t)c) members[n++] = (uint32_t)r;
        wf_rng rng = wf_rng_at(seed, (uint32_t)c, WF_RNG_SPLIT, 0);
        wf_rng_shuffle(&rng, order, n);
        for (size_t i = 0; i < shares[c].test; i++) in_test[members[order[i]]] = true;
    }
done:
    free(order);
    free(members);
    free(shares);
    return status;
}
