/* match_ahead: relabellings of the matched coupling, found by host threads some updates ahead of
 * the GPU.
 *
 * What an update draws depends on its number alone. So each thread takes one of the coming updates
 * and leaves its relabellings in entry update % ring. */
#pragma once

#include "flow/draw.h"

typedef struct wf_match_ahead wf_match_ahead;

/* relabellings (ring, batch, units): ring entries, units: wf_match_units. It and the set are
 * borrowed. Updates first .. end-1. */
wf_status wf_match_ahead_start(wf_ctx *ctx, const wf_training_set *set, const wf_fit_desc *desc,
                               size_t first, size_t end, uint32_t *relabellings, size_t ring,
                               wf_match_ahead **out);
size_t wf_match_units(const wf_training_set *set);
/* Waits until update `update` is in its entry. */
wf_status wf_match_ahead_wait(wf_ctx *ctx, wf_match_ahead *ahead, size_t update);
/* The entries of updates below `update` are free again. */
void wf_match_ahead_release(wf_match_ahead *ahead, size_t update);
void wf_match_ahead_stop(wf_match_ahead *ahead); /* accepts NULL */
