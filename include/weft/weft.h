/* weft/weft.h: the whole library in one include. Each header also stands alone.
 *
 * What holds where a comment says nothing else:
 *   - Arguments are borrowed for the call and must not be NULL; ctx may be NULL.
 *   - *out of a call that makes an object is the caller's, to be freed by the object's _free
 *     function, which accepts NULL; on failure *out is NULL. Texts and arrays that are handed over
 *     go to wf_free(). What a getter returns belongs to the object it was asked of.
 *   - A status other than WF_OK leaves a sentence in the context (wf_last_error).
 *   - Any call that computes, reads or writes returns WF_ERR_INTERRUPTED after wf_interrupt(), and
 *     WF_ERR_RANK or the status of a process that shares the work (weft/comm.h) when that failed.
 *     One that could use a GPU returns WF_ERR_UNSUPPORTED when the context demands one and there is
 *     none. One that writes a file refuses a path that is empty or too long as WF_ERR_USAGE.
 *   - Objects that are only read (graphs, collections, data sets, references, settings) may be used
 *     by several threads at once; contexts, flows and generators by one at a time. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "weft/align.h"
#include "weft/base.h"
#include "weft/bench.h"
#include "weft/comm.h"
#include "weft/data.h"
#include "weft/eval.h"
#include "weft/field.h"
#include "weft/file.h"
#include "weft/flow.h"
#include "weft/generator.h"
#include "weft/graph.h"
#include "weft/import.h"
#include "weft/plan.h"
#include "weft/recipe.h"
#include "weft/report.h"
#include "weft/rng.h"
#include "weft/run.h"
#include "weft/settings.h"
#include "weft/text.h"
#include "weft/zoo.h"

#endif
