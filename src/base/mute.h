/* mute: a context that reports nothing for a while. For work inside a call that the caller did not
 * ask for, such as a measurement. */
#pragma once

#include "weft/base.h"

/* Progress, warnings and lines of logs are dropped while `mute`. ctx may be NULL. */
void wf__ctx_mute(wf_ctx *ctx, bool mute);
