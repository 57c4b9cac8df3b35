/* weft/settings.h: settings as data. A table of rows describes the members of a desc struct: recipe
 * key, type, default, range, names of choices, the key in files, a line of help. Recipes, --set,
 * help, metadata of files and checks all walk these tables; so do programs that want to show or
 * change settings.
 *
 *     wf_fit_desc fit = wf_fit_desc_default();
 *     wf_settings_set(ctx, wf_fit_settings(), "lr", "3e-4", &fit);
 *
 * A table and its struct come from one .def file with a line per setting (weft/fit.def):
 *
 *     SETTING(REAL, lr, "lr", "1e-3", ABOVE(0, 1e3), TRAINING, CONFIG, "learning rate of adamw")
 *
 * The header makes the members of it, a source file the rows:
 *
 *     typedef struct wf_fit_desc {
 *     #define SETTING(type, member, ...) WF_MEMBER_##type member;
 *     #include "weft/fit.def"
 *     } wf_fit_desc;
 *
 *     static const wf_setting rows[] = {
 *     #define SETTING(type, member, key, text, range, stage, file, ...)                           \
 *         WF_SETTING_ROW(wf_fit_desc, "train", "fit.", type, member, key, text, range, stage,     \
 *                        file, __VA_ARGS__)
 *     #include "weft/fit.def"
 *         {0}};
 *
 * After the help, designated members may follow. A setting that is new in a table needs `.before`,
 * the value that earlier files were made with. Those files then open, and finished stages of their
 * runs stay finished.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_SETTINGS_H
#define WEFT_SETTINGS_H

#include "weft/base.h"

#include <math.h> /* HUGE_VAL */

WF_BEGIN_C

typedef enum wf_setting_type {
    WF_SETTING_TEXT,   /* const char *; NULL: not set. Setting "" brings the default back */
    WF_SETTING_BOOL,   /* bool: yes or no */
    WF_SETTING_INT,    /* int */
    WF_SETTING_SIZE,   /* size_t */
    WF_SETTING_SEED,   /* uint64_t, any */
    WF_SETTING_REAL,   /* double, finite */
    WF_SETTING_CHOICE, /* an enum counted from 0: the index in `names` */
    WF_SETTING_SWITCH  /* bool: the index in two `names`; yes and no are read as well */
} wf_setting_type;

/* The stage of a run whose result a setting changes. NONE: how it is computed, not what. */
typedef enum wf_stage {
    WF_STAGE_COLLECTION,
    WF_STAGE_HELD_OUT,
    WF_STAGE_TRAINING,
    WF_STAGE_SAMPLING,
    WF_STAGE_EVALUATION,
    WF_STAGE_REPORT,
    WF_STAGES,
    WF_STAGE_NONE = WF_STAGES
} wf_stage;

/* What a result's file does with a setting: CONFIG is kept, and a run is continued only with the
 * same value; NOTE is kept, but may change when a run is continued; NONE is not kept. */
typedef enum wf_in_file { WF_FILE_NONE, WF_FILE_NOTE, WF_FILE_CONFIG } wf_in_file;

typedef struct wf_setting {
    const char *section, *key; /* of recipes: "train", "lr". key "": in no recipe; NULL: the end */
    const char *meta;          /* key in files: "fit.lr" */
    wf_in_file in_file;
    wf_setting_type type;
    wf_stage stage;
    size_t offset, size; /* in the struct */
    const char *text;    /* the default, as a recipe writes it */
    const char *before; /* the value in files and run folders without this key; NULL: the default */
    double low, high;   /* allowed numbers ... */
    bool above, below;  /* ... without the bound itself */
    const char *const *names; /* CHOICE, SWITCH; NULL after the last */
    const char *help;         /* one line */
} wf_setting;

enum { WF_SETTING_BUFFER = 32 };

/* All tables end with a row whose key is NULL. `desc` is the struct that the table describes. */
WF_API void wf_settings_default(const wf_setting *rows, void *desc);
WF_API const wf_setting *wf_settings_find(const wf_setting *rows, const char *key); /* or NULL */
/* Set one from text, which a TEXT setting keeps a pointer to. Returns WF_OK, or WF_ERR_USAGE with
 * what is allowed or which key is near; *desc is then as it was. */
WF_API wf_status wf_settings_set(wf_ctx *ctx, const wf_setting *rows, const char *key,
                                 const char *text, void *desc);
/* Every value within its range, every choice one of its names. Returns WF_OK, or WF_ERR_USAGE with
 * the first fault. */
WF_API wf_status wf_settings_check(wf_ctx *ctx, const wf_setting *rows, const void *desc);
/* {"lr": 0.001, "optimizer": "muon", ...}: unset texts are null, numbers above 2^53 are texts.
 * NULL: out of memory. wf_free() it. */
WF_API char *wf_settings_json(const wf_setting *rows, const void *desc);

/* --- without the struct's layout ---------------------------------------------------------------
 * Structs of settings grow with every version. A program in C is compiled against the layout that
 * it uses, and WF_ABI says whether the library still has it. Bindings of other languages do not
 * know layouts at all: they ask for a struct by table and JSON, get a pointer, and hand it to the
 * calls that take one. A setting that is added later has its default there, and nothing changes.
 *
 *     void *fit;
 *     wf_settings_create(ctx, wf_fit_settings(), "{\"updates\": 2000, \"lr\": 1e-3}", &fit);
 *     wf_flow_fit(ctx, &source, 1, NULL, fit, path, NULL);
 *     wf_free(fit); */

/* A struct with the defaults and what a JSON object says, its texts included, in one piece of
 * memory: wf_free(*out). json NULL or "": the defaults. Values may be numbers, texts as recipes
 * write them, true and false; null is the default; a list of scalars is joined by commas.
 * Returns WF_OK, WF_ERR_USAGE (no JSON object, an unknown key and which is near, a value and what
 * is allowed) or WF_ERR_MEMORY; *out is then NULL. */
WF_API wf_status wf_settings_create(wf_ctx *ctx, const wf_setting *rows, const char *json,
                                    void **out);
/* The same into a struct of the caller's: what the object lacks stays as it is. texts: memory that
 * the struct's texts lie in, wf_free() it after the struct; may be NULL for tables without texts.
 * On failure neither is changed.
 * Returns as wf_settings_create. */
WF_API wf_status wf_settings_from_json(wf_ctx *ctx, const wf_setting *rows, const char *json,
                                       void *desc, char **texts);
WF_API size_t wf_settings_size(const wf_setting *rows); /* bytes that suffice for the struct */
/* What there is to set: a JSON list of {"section", "key", "type": text, bool, int, seed, real or
 * choice, "default", "allowed", "help", "names": of choices}. wf_free(*out). Returns WF_OK or
 * WF_ERR_MEMORY. */
WF_API wf_status wf_settings_describe(wf_ctx *ctx, const wf_setting *rows, char **out);

/* The parts of these. Parse answers false and leaves *desc when the text is not allowed. */
WF_API bool wf_setting_parse(const wf_setting *row, const char *text, void *desc);
/* The value as a recipe writes it, which reads back to the same: in `buffer`, or a text of `desc`
 * or of the table; "" for a text that is not set. */
WF_API const char *wf_setting_text(const wf_setting *row, const void *desc,
                                   char buffer[WF_SETTING_BUFFER]);
/* The value of a setting that a file does not have, as text. */
WF_API const char *wf_setting_absent(const wf_setting *row);
WF_API bool wf_setting_equal(const wf_setting *row, const void *a, const void *b);
/* Do two texts mean the same value? False where one of them is not allowed. */
WF_API bool wf_setting_same(const wf_setting *row, const char *a, const char *b);
/* "a number above 0 and at most 1000", "lean, lstar". */
WF_API void wf_setting_allowed(const wf_setting *row, char *out, size_t size);
/* The name among `names` (NULL-terminated) that `word` probably misspells; NULL: none is near. */
WF_API const char *wf_nearest_name(const char *word, const char *const *names);

/* Members of structs. */
#define WF_MEMBER_TEXT const char *
#define WF_MEMBER_BOOL bool
#define WF_MEMBER_INT int
#define WF_MEMBER_SIZE size_t
#define WF_MEMBER_SEED uint64_t
#define WF_MEMBER_REAL double
#define WF_MEMBER_CHOICE(type) type
#define WF_MEMBER_SWITCH(no, yes) bool

/* Rows of tables. CHOICE(wf_solver) takes its names from wf_solver_names. */
#define WF_ROW_TEXT .type = WF_SETTING_TEXT
#define WF_ROW_BOOL .type = WF_SETTING_BOOL
#define WF_ROW_INT .type = WF_SETTING_INT
#define WF_ROW_SIZE .type = WF_SETTING_SIZE
#define WF_ROW_SEED .type = WF_SETTING_SEED
#define WF_ROW_REAL .type = WF_SETTING_REAL
#define WF_ROW_CHOICE(enumeration) .type = WF_SETTING_CHOICE, .names = enumeration##_names
#define WF_ROW_SWITCH(no, yes)                                                                     \
    .type = WF_SETTING_SWITCH, .names = (const char *const[]) { no, yes, NULL }
#define WF_RANGE_ANY .low = -HUGE_VAL, .high = HUGE_VAL /* also of what is no number */
#define WF_RANGE_SEED .low = 0, .high = HUGE_VAL
#define WF_RANGE_UP(low_) .low = low_, .high = HUGE_VAL
#define WF_RANGE_FROM(low_, high_) .low = low_, .high = high_
#define WF_RANGE_ABOVE(low_, high_) .low = low_, .high = high_, .above = true
#define WF_RANGE_BELOW(low_, high_) .low = low_, .high = high_, .below = true
#define WF_RANGE_INSIDE(low_, high_) .low = low_, .high = high_, .above = true, .below = true
#define WF_SETTING_ROW(desc_, section_, prefix_, type_, member_, key_, text_, range_, stage_,      \
                       file_, ...)                                                                 \
    {.section = section_,                                                                          \
     .key = key_,                                                                                  \
     .meta = prefix_ #member_,                                                                     \
     .in_file = WF_FILE_##file_,                                                                   \
     WF_ROW_##type_,                                                                               \
     .stage = WF_STAGE_##stage_,                                                                   \
     .offset = offsetof(desc_, member_),                                                           \
     .size = sizeof((desc_ *)0)->member_,                                                          \
     .text = text_,                                                                                \
     WF_RANGE_##range_,                                                                            \
     .help = __VA_ARGS__},

WF_END_C

#endif
