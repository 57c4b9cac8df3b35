/* trainer_fresh: when a run's pool of fresh networks is filled and renewed.
 *
 * A renewal is made every fresh_every updates. With train.fresh_rate that is a function of the
 * settings. Without, rank 0 times the first updates, and the choice stands in the checkpoint:
 * pieces of a run agree on it, two runs need not. */
#include "flow/trainer.h"

#include "base/comm.h"

#include <math.h>

static const double networks_share = 0.25; /* of the time, where nothing else is asked for */
enum { untimed_updates = 16, timed_updates = 48 };

static void renew_every(wf_trainer *tr, double rate, size_t from) {
    double every = fmax(1, floor((double)tr->pool.slices / rate + 0.5));
    tr->state.fresh_every = (size_t)fmin(every, 1e15);
    tr->state.fresh_from = from;
}

/* Renewals before update `update`. */
static size_t renewals(const wf_trainer *tr, size_t update) {
    const wf_fit_state *state = &tr->state;
    if (state->fresh_every == 0 || update < state->fresh_from) return 0;
    return (update - state->fresh_from) / state->fresh_every;
}

bool wf__trainer_renewal_due(const wf_trainer *tr, size_t update) {
    return tr->pool.sources != NULL && renewals(tr, update) > tr->pool.renewals;
}

wf_status wf__trainer_fill_pool(wf_trainer *tr) {
    if (tr->pool.sources == NULL) return WF_OK;
    if (tr->desc.fresh_rate > 0) renew_every(tr, tr->desc.fresh_rate, 0);
    tr->fresh_timed_from = tr->state.made + untimed_updates;
    WF_TRY(wf_fresh_pool_fill(tr->ctx, &tr->pool, renewals(tr, tr->state.made)));
    return wf_training_set_normalise(tr->ctx, &tr->desc, &tr->set);
}

/* By this rank's clock. */
static void choose_rate(wf_trainer *tr, size_t next) {
    if (tr->state.made == tr->fresh_timed_from) tr->fresh_timed_at = wf_seconds();
    if (tr->state.made < tr->fresh_timed_from + timed_updates) return;
    double update_time = (wf_seconds() - tr->fresh_timed_at) / timed_updates;
    double ratio = update_time / fmax(tr->pool.network_time, 1e-9);
    renew_every(tr, fmax(networks_share / (1 - networks_share) * ratio, 1e-9), next);
}

wf_status wf__trainer_choose_rate(wf_trainer *tr, size_t next) {
    if (tr->pool.sources == NULL || tr->state.fresh_every > 0) return WF_OK;
    choose_rate(tr, next);
    WF_TRY(wf_broadcast(tr->ctx, &tr->state.fresh_every, sizeof tr->state.fresh_every));
    return wf_broadcast(tr->ctx, &tr->state.fresh_from, sizeof tr->state.fresh_from);
}
