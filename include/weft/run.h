/* weft/run.h: everything a recipe describes, stage after stage, as `weft run` does it: collection,
 * held-out networks, training, sampling, evaluation, page.
 *
 *     char *result;
 *     wf_run(ctx, "digits", NULL, &(wf_run_desc){.folder = "runs/digits"}, &result);
 *     puts(result);                    {"folder": ..., "eval": {...}, "files": {...}}
 *     wf_free(result);
 *
 * A finished stage with the same settings is skipped, and a broken one goes on where it stopped.
 * Results of other settings are overwritten only where `redo` says so. Nothing is printed: progress
 * and warnings go to the context, lines about stages to the callback. docs/commands.md has the keys
 * of recipes. weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_RUN_H
#define WEFT_RUN_H

#include "weft/settings.h"

WF_BEGIN_C

/* Everything is borrowed for the call; all zero means the defaults. */
typedef struct wf_run_desc {
    const char *folder;                        /* NULL: runs/NAME, NAME of the recipe's file */
    const char *const *overrides;              /* "section.key=value"; NULL: none */
    int n_overrides;                           /* at most 64 */
    const char *seed;                          /* of all that is drawn; NULL: those of the recipe */
    bool redo;                                 /* replace results of other settings */
    void (*say)(void *user, const char *line); /* "training: 12 s", "sampling: done before" */
    void *user;
} wf_run_desc;

/* Run a recipe.
 * recipe  a file, or the name of one that is installed ("digits"). NULL: `text` is the recipe.
 * text    of a recipe; NULL: `recipe` names it. "demo" among the names is that of weft demo.
 * desc    NULL means the defaults.
 * result  {"folder", "name", "seconds", "eval": what eval.json holds, "files": {"zoo", "held_out",
 *         "flow", "log", "nets", "direct", "eval", "points", "report", "recipe"} of those that are
 *         there, "devices"}; wf_free(*result), NULL on failure. May be NULL.
 * Must not run twice at the same time for one folder: WF_ERR_LOCKED, or a wait where the context
 * waits. Returns WF_OK, WF_ERR_USAGE (the recipe or an override; results of another recipe in the
 * folder), WF_ERR_INPUT (a file that is missing or damaged), WF_ERR_INTERRUPTED (the same call goes
 * on from there), WF_ERR_DIVERGED, WF_ERR_DISK, WF_ERR_MEMORY and what the stages return. */
WF_API wf_status wf_run(wf_ctx *ctx, const char *recipe, const char *text, const wf_run_desc *desc,
                        char **result);
/* The same without the struct. json {"folder": text, "set": {"train.updates": 100, ...}, "seed": N,
 * "redo": bool}, every key optional; NULL: the defaults. say and user as above; say may be NULL.
 * result as above: wf_free(*result).
 * Returns what wf_run() returns; WF_ERR_USAGE for bad options. */
WF_API wf_status wf_run_json(wf_ctx *ctx, const char *recipe, const char *text, const char *json,
                             void (*say)(void *user, const char *line), void *user, char **result);
/* Write the page of a run's folder again, to `path`; NULL: where it was.
 * Returns WF_OK, WF_ERR_INPUT (no such run, or results that are not what evaluation left) and what
 * writing returns. */
WF_API wf_status wf_run_report(wf_ctx *ctx, const char *folder, const char *path);

WF_END_C

#endif
