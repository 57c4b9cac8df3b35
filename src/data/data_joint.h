/* data_joint: several tables prepared together: rows taken at random, levels merged, tables joined
 * end to end.
 *
 * A joined table has the columns of its first part (the others are matched by name) and the rows of
 * all parts; `part` says where each begins, so that every part is split on its own and sentences
 * name the right file. It points into the cells of its parts, which must outlive it. */
#pragma once

#include "data/data_table.h"

/* At most `most` rows (0: all), drawn uniformly from stream (seed, 0, WF_RNG_SPLIT, 1), in the
 * table's order. */
wf_status wf__table_thin(wf_ctx *ctx, wf_table *table, size_t most, uint64_t seed);

/* Levels renamed in all tables that have the column: "RAC1P: 3.0, 4.0 -> 2.0; COW: 7 -> 8". A level
 * that occurs in none of them is refused. list NULL: nothing to do. */
wf_status wf__table_merge(wf_ctx *ctx, const char *list, wf_table *const *tables, size_t count);

/* parts: text tables, at least one; own: which of them the data set is about. On failure *out is to
 * be freed too. */
wf_status wf__table_join(wf_ctx *ctx, wf_table *const *parts, size_t count, size_t own,
                         wf_table *out);
