/* weft/data.h: labelled data sets: built in, or read from IDX, CSV, TSV, ARFF, NumPy or CIFAR
 * files, plain or gzip.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_DATA_H
#define WEFT_DATA_H

#include "weft/graph.h"
#include "weft/settings.h"

WF_BEGIN_C

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/data.def"

typedef struct wf_data_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/data.def"
} wf_data_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_data_desc wf_data_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_data_settings(void);

typedef struct wf_dataset {
    char name[64];
    size_t n_train, n_test;
    int inputs, classes;
    float *x_train, *x_test; /* (n, inputs), row-major */
    int32_t *y_train, *y_test;
    char **class_names; /* [classes] */
    char **input_names; /* [inputs]: "age", "color=red" */
    /* JSON of all that was fitted on the training part: columns, levels, imputed values, mean,
     * std */
    char *preparation;
    char fingerprint[65]; /* hex digest over both parts as they stand */
    char note[256];       /* what a user of the set must know: "regenerated ..."; often "" */
    /* Of images, whose pixels are the inputs in this order; height 0: plain numbers. */
    int channels, height, width;
} wf_dataset;

/* Read or generate a data set. desc is borrowed for the call and must not be NULL. *out is the
 * caller's: wf_dataset_free(), which accepts NULL; it is NULL on failure. Nothing changes it later,
 * so several threads may read it.
 * Returns WF_OK, WF_ERR_USAGE (settings that do not go together), WF_ERR_INPUT (a file), or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_dataset_open(wf_ctx *ctx, const wf_data_desc *desc, wf_dataset **out);
WF_API void wf_dataset_free(wf_dataset *data);

/* A data set of numbers in memory, which are copied as they are: nothing is scaled or imputed.
 * name      to show, and the name of its scores; NULL: "data".
 * x, y      (n, inputs) and (n) of both parts; labels count from 0. Either part may be empty (n 0,
 *           pointers NULL): networks are judged on the test part and trained on the other.
 * classes   0: one more than the largest label.
 * out       the caller's: wf_dataset_free(). Its preparation is NULL.
 * Returns WF_OK, WF_ERR_USAGE (both parts empty, a label outside the classes), WF_ERR_INPUT (a
 * number that is not finite; the sentence has its row) or WF_ERR_MEMORY. */
WF_API wf_status wf_dataset_from_memory(wf_ctx *ctx, const char *name, int inputs, int classes,
                                        const float *x_train, const int32_t *y_train,
                                        size_t n_train, const float *x_test, const int32_t *y_test,
                                        size_t n_test, wf_dataset **out);
/* The same of one table that is split as files are: stratified, by test_fraction and seed. *out is
 * the caller's: wf_dataset_free(). Returns as wf_dataset_from_memory; WF_ERR_USAGE also for a
 * fraction outside 0 to 1, WF_ERR_INPUT also for a class with fewer than two rows. */
WF_API wf_status wf_dataset_split(wf_ctx *ctx, const char *name, int inputs, int classes,
                                  const float *x, const int32_t *y, size_t n, double test_fraction,
                                  uint64_t seed, wf_dataset **out);

/* For callers that do not know the struct; data must not be NULL. Arrays belong to the data set,
 * NULL where the part is empty. */
WF_API const float *wf_dataset_x(const wf_dataset *data, bool test, size_t *n);
WF_API const int32_t *wf_dataset_y(const wf_dataset *data, bool test, size_t *n);
/* {"name", "inputs", "classes", "n_train", "n_test", "class_names", "input_names", "fingerprint",
 * "note", "preparation": an object or null, "image": [channels, height, width] or null}.
 * wf_free(*out). Returns WF_OK or WF_ERR_MEMORY. */
WF_API wf_status wf_dataset_json(wf_ctx *ctx, const wf_dataset *data, char **out);

/* Whether networks of this description take the data's inputs and give its classes. Plain inputs
 * take images row by row; images must have the network's size. Returns WF_OK, or WF_ERR_SHAPE with
 * what is expected and what was found. */
WF_API wf_status wf_dataset_fits(wf_ctx *ctx, const wf_dataset *data, const wf_graph *graph);

/* A table sampled from a Bayesian network learned on another one, as OpenML's BNG sets are. */
typedef struct wf_bng_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/bng.def"
} wf_bng_desc;
WF_API wf_bng_desc wf_bng_desc_default(void); /* as many rows as BNG(cmc) has */
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_bng_settings(void);
/* Learn from the table from->path (with its root, format, target, categorical and drop) and
 * write an ARFF file. Its first line says that the rows are regenerated and with which seed;
 * every data set read from it carries that note.
 * desc         NULL means the defaults.
 * description  JSON of columns, parents, bins and BIC; free() it. May be NULL.
 * Returns WF_OK, WF_ERR_USAGE (desc), WF_ERR_INPUT (the table), WF_ERR_INTERRUPTED, WF_ERR_DISK
 * or WF_ERR_MEMORY. */
WF_API wf_status wf_data_bng(wf_ctx *ctx, const wf_data_desc *from, const wf_bng_desc *desc,
                             const char *path, char **description);

/* Data sets from the network (builds with libcurl; others answer WF_ERR_UNSUPPORTED). */
typedef struct wf_fetch_desc {
    /* of the files; NULL: the environment's WEFT_DATA, else the working folder */
    const char *folder;
    const char *server; /* NULL: OpenML's, or the Census Bureau's */
    const char *sha256; /* that the file must have; NULL: OpenML's published MD5 is checked alone */
} wf_fetch_desc;
WF_API wf_fetch_desc wf_fetch_desc_default(void);

typedef struct wf_fetched {
    char *path; /* of the file: "FOLDER/openml/23-cmc.arff" */
    char name[128], target[128];
    char sha256[65];
    uint64_t bytes, resumed; /* resumed: those that an earlier, broken call had brought */
    bool cached;             /* it was there already, and is unchanged */
} wf_fetched;
/* Frees what it holds, not itself; accepts NULL. */
WF_API void wf_fetched_free(wf_fetched *fetched);

/* Download a data set. The next call resumes a broken download. A file that is there and unchanged
 * is not asked for again.
 * what  an OpenML number or name ("23", "cmc"), "acs:2018:CA" (ACSIncome of a state, filtered as
 *       Folktables does), or an http(s) address.
 * out   free it with wf_fetched_free, also after a failure.
 * Returns WF_OK, WF_ERR_USAGE (a name that means nothing), WF_ERR_INPUT (the server's answer, a
 * wrong checksum), WF_ERR_FAILED (the server or the network), WF_ERR_LOCKED, WF_ERR_UNSUPPORTED,
 * WF_ERR_INTERRUPTED (the next call goes on), WF_ERR_DISK or WF_ERR_MEMORY. */
WF_API wf_status wf_data_fetch(wf_ctx *ctx, const char *what, const wf_fetch_desc *desc,
                               wf_fetched *out);

/* Names of the built-in sets, NULL-terminated: a constant. */
WF_API const char *const *wf_data_builtin(void);

WF_END_C

#endif
