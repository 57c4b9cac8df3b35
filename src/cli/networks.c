#include "cli/networks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

wf_status cli_not_there(wf_run_app *app, const char *path) {
    struct stat info;
    if (cli_flag(app, "force") || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return WF_OK;
    return wf__run_fail(app, WF_ERR_USAGE,
                        "%s is there already; give another name, or --force to replace it", path);
}

wf_status cli_new_file(wf_run_app *app, const char *path) {
    WF_TRY(cli_not_there(app, path));
    WF_TRY(wf__run_lock_file(app, path));
    return cli_not_there(app, path); /* who had the lock may have made it */
}

/* --- indices ---------------------------------------------------------------------------------- */

/* "7" or "10-19" at *at; false where it is written otherwise. */
static bool read_range(const char **at, size_t *from, size_t *to) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    *from = *to = strtoull(*at, &end, 10);
    if (*end == '-') {
        if (end[1] < '0' || end[1] > '9') return false;
        *to = strtoull(end + 1, &end, 10);
    }
    *at = end;
    return *to >= *from;
}

wf_status cli_read_indices(wf_run_app *app, const char *what, const char *text, const char *path,
                           size_t count, size_t **out, size_t *n) {
    *out = NULL;
    *n = 0;
    for (const char *at = text;;) {
        size_t from, to;
        at += strspn(at, " ");
        if (!read_range(&at, &from, &to) || (*at != ',' && *at != '\0')) {
            free(*out);
            return wf__run_fail(app, WF_ERR_USAGE,
                                "%s is %s; write numbers of networks, as 3 or 0,3,10-19", what,
                                text);
        }
        if (to >= count) {
            free(*out);
            return wf__run_fail(app, WF_ERR_USAGE,
                                "%s names network %zu, but %s has %zu network%s, counted from 0",
                                what, to, path, count, WF_RUN_S(count));
        }
        size_t *moved = realloc(*out, (*n + to - from + 1) * sizeof *moved);
        if (moved == NULL) {
            free(*out);
            return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
        }
        *out = moved;
        for (size_t i = from; i <= to; i++) (*out)[(*n)++] = i;
        if (*at == '\0') return WF_OK;
        at++;
    }
}

/* --- scores ----------------------------------------------------------------------------------- */

static wf_status stored_scores(wf_run_app *app, const wf_zoo *zoo, const float **out,
                               const char **name) {
    const char *test = cli_text(app, "test");
    *out = wf_zoo_scores(zoo, test);
    *name = test != NULL ? test : wf_zoo_test(zoo, 0);
    if (*out != NULL) return WF_OK;
    if (test != NULL && wf_zoo_test(zoo, 0) != NULL)
        return wf__run_fail(app, WF_ERR_USAGE, "%s has no scores on %s; the first it has are on %s",
                            wf_zoo_path(zoo), test, wf_zoo_test(zoo, 0));
    return wf__run_fail(app, WF_ERR_USAGE,
                        "%s holds no scores; give --data, the data set to score its networks on",
                        wf_zoo_path(zoo));
}

wf_status cli_scores(wf_run_app *app, const wf_zoo *zoo, float **out, const char **name,
                     wf_dataset **data) {
    size_t count = wf_zoo_count(zoo);
    const float *stored = NULL;
    float *weights = NULL;
    *data = NULL;
    *out = NULL;
    if (cli_text(app, "data") == NULL) WF_TRY(stored_scores(app, zoo, &stored, name));
    *out = calloc(count, sizeof **out);
    if (*out == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    if (stored != NULL) {
        memcpy(*out, stored, count * sizeof **out);
        return WF_OK;
    }
    wf_status status = cli_open_data(app, zoo, data);
    if (status == WF_OK) status = wf_zoo_load(app->ctx, zoo, 0, count, &weights);
    if (status == WF_OK)
        status = wf_score_networks(app->ctx, wf_zoo_graph(zoo), weights, count, *data,
                                   WF_SCORE_ACCURACY, *out, NULL);
    if (status == WF_OK) *name = (*data)->name;
    free(weights);
    if (status == WF_OK) return WF_OK;
    free(*out);
    *out = NULL;
    wf_dataset_free(*data);
    *data = NULL;
    return status;
}

typedef struct ranked {
    float score;
    size_t index;
} ranked;

static int by_falling_score(const void *a_, const void *b_) {
    const ranked *a = a_, *b = b_;
    if (isnan(a->score) || isnan(b->score)) {
        if (!isnan(a->score)) return -1;
        if (!isnan(b->score)) return 1;
    } else if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

wf_status cli_order_by_score(wf_run_app *app, const float *scores, size_t *index, size_t n) {
    ranked *order = calloc(n + 1, sizeof *order);
    if (order == NULL) return wf__run_fail(app, WF_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) order[i] = (ranked){scores[index[i]], index[i]};
    qsort(order, n, sizeof *order, by_falling_score);
    for (size_t i = 0; i < n; i++) index[i] = order[i].index;
    free(order);
    return WF_OK;
}
