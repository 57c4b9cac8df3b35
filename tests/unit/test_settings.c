/* Tables of settings: text to value and back, ranges, defaults, JSON; and a table made from
 * lines. */
#include "comma_locale.h"
#include "ctx_fixture.h"
#include "run/recipe_schema.h"

typedef enum toy_kind { TOY_ROUND, TOY_SQUARE } toy_kind;
static const char *const toy_kind_names[] = {"round", "square", NULL};

/* clang-format off */
#define TOY_SETTINGS                                                                               \
    SETTING(CHOICE(toy_kind), kind, "kind", "square", ANY, TRAINING, CONFIG, "of toys")            \
    SETTING(SWITCH("round", "square"), edged, "edge", "round", ANY, TRAINING, CONFIG, "of toys")   \
    SETTING(REAL, rate, "lr", "0.1", ABOVE(0, 1), TRAINING, CONFIG, "of learning", .before = "1")  \
    SETTING(REAL, decay, "decay", "0", BELOW(0, 1), TRAINING, CONFIG, "of weights")                \
    SETTING(REAL, shift, "shift", "-0.5", ANY, TRAINING, CONFIG, "of weights")                     \
    SETTING(INT, steps, "steps", "3", FROM(-5, 1e6), NONE, NOTE, "of the toy")                     \
    SETTING(SIZE, count, "count", "7", FROM(1, 1e12), NONE, NONE, "of toys")                       \
    SETTING(SEED, seed, "seed", "0", SEED, NONE, CONFIG, "of chance")                              \
    SETTING(BOOL, loud, "loud", "yes", ANY, NONE, NONE, "or silent")                               \
    SETTING(TEXT, name, "name", "", ANY, NONE, NONE, "of the toy")
/* clang-format on */

#define SETTING(type, member, ...) WF_MEMBER_##type member;
typedef struct toy {
    TOY_SETTINGS
} toy;
#undef SETTING

#define SETTING(type, member, key, text, range, stage, file, ...)                                  \
    WF_SETTING_ROW(toy, "toy", "t.", type, member, key, text, range, stage, file, __VA_ARGS__)
static const wf_setting rows[] = {TOY_SETTINGS{0}};
#undef SETTING

static toy defaults(void) {
    toy t = {0};
    wf_settings_default(rows, &t);
    return t;
}

static void rows_hold_all_columns(void **state) {
    (void)state;
    const wf_setting *rate = wf_settings_find(rows, "lr");
    assert_non_null(rate);
    assert_string_equal(rate->meta, "t.rate");
    assert_string_equal(rate->before, "1");
    assert_string_equal(rate->help, "of learning");
    assert_int_equal(rate->offset, offsetof(toy, rate));
    assert_int_equal(rate->size, sizeof(double));
    assert_null(wf_settings_find(rows, "rate"));
    toy t = defaults();
    assert_int_equal(t.kind, TOY_SQUARE);
    assert_false(t.edged);
    assert_true(t.rate == 0.1 && t.shift == -0.5 && t.steps == 3 && t.count == 7 && t.loud);
    assert_null(t.name);
}

static void text_and_back(void **state) {
    (void)state;
    static const char *const values[][2] = {{"kind", "round"},
                                            {"edge", "square"},
                                            {"lr", "0.3333333333333333"},
                                            {"lr", "1e-07"},
                                            {"shift", "-1e+30"},
                                            {"steps", "-5"},
                                            {"count", "1000000000000"},
                                            {"seed", "18446744073709551615"},
                                            {"loud", "no"},
                                            {"name", "two words"},
                                            {"name", ""}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        toy t = defaults();
        char buffer[WF_SETTING_BUFFER];
        assert_ok(ctx, wf_settings_set(ctx, rows, values[i][0], values[i][1], &t));
        const wf_setting *row = wf_settings_find(rows, values[i][0]);
        assert_string_equal(wf_setting_text(row, &t, buffer), values[i][1]);
    }
    toy t = defaults(), other = defaults();
    assert_ok(ctx, wf_settings_set(ctx, rows, "edge", "yes", &t)); /* as files of 0.1 wrote it */
    assert_true(t.edged);
    assert_false(wf_setting_equal(wf_settings_find(rows, "edge"), &t, &other));
    assert_true(wf_setting_equal(wf_settings_find(rows, "name"), &t, &other));
}

static void refuses(const char *key, const char *text, const char *words) {
    toy t = defaults(), before = t;
    assert_fails(ctx, wf_settings_set(ctx, rows, key, text, &t), WF_ERR_USAGE, words);
    assert_memory_equal(&t, &before, sizeof t);
}

static void says_what_is_allowed(void **state) {
    (void)state;
    refuses("kind", "oval", "toy.kind is \"oval\"; allowed is round, square");
    refuses("lr", "0", "toy.lr is \"0\"; allowed is a number above 0 and up to 1");
    refuses("lr", "0x1", "above 0");
    refuses("lr", "nan", "above 0");
    refuses("decay", "1", "a number from 0 below 1");
    refuses("shift", "1e999", "allowed is a number");
    refuses("steps", "1.5", "a whole number from -5 to 1000000");
    refuses("count", "0", "a whole number from 1 to 1000000000000");
    refuses("seed", "-1", "a whole number from 0");
    refuses("loud", "on", "no, yes");
    refuses("stesp", "1", "[toy] has no setting \"stesp\"; did you mean \"steps\"?");
    refuses("unlike", "1", "[toy] has no setting \"unlike\"");
}

static void checks_values(void **state) {
    (void)state;
    toy t = defaults();
    assert_ok(ctx, wf_settings_check(ctx, rows, &t));
    t.rate = NAN;
    assert_fails(ctx, wf_settings_check(ctx, rows, &t), WF_ERR_USAGE, "toy.lr is nan; allowed");
    t = defaults();
    t.kind = (toy_kind)2;
    assert_fails(ctx, wf_settings_check(ctx, rows, &t), WF_ERR_USAGE, "toy.kind is number 2");
    t = defaults();
    t.steps = 1000001;
    assert_fails(ctx, wf_settings_check(ctx, rows, &t), WF_ERR_USAGE, "toy.steps is 1000001");
}

static void json_has_every_row(void **state) {
    (void)state;
    toy t = defaults();
    char *text = wf_settings_json(rows, &t);
    assert_string_equal(text,
                        "{\"kind\": \"square\", \"edge\": \"round\", \"lr\": 0.10000000000000001, "
                        "\"decay\": 0.0, \"shift\": -0.5, \"steps\": 3, \"count\": 7, \"seed\": 0, "
                        "\"loud\": true, \"name\": null}");
    free(text);
}

static void numbers_ignore_the_locale(void **state) {
    (void)state;
    bool comma = comma_locale_begin();
    toy t = defaults();
    char buffer[WF_SETTING_BUFFER];
    const char *text = wf_setting_text(wf_settings_find(rows, "lr"), &t, buffer);
    comma_locale_end();
    assert_true(t.rate == 0.1);
    assert_string_equal(text, "0.1");
    if (!comma) skip("no localedef");
}

/* --- the tables there are --------------------------------------------------------------------- */

static const wf_setting recipe_rows[] = {
#define SETTING(section, ...) WF_SETTING_ROW(wf_run_recipe, section, "", __VA_ARGS__)
#include "run/recipe.def"
    {0}};

static size_t size_of_type(wf_setting_type type) {
    static const size_t sizes[] = {
        [WF_SETTING_TEXT] = sizeof(char *),   [WF_SETTING_BOOL] = sizeof(bool),
        [WF_SETTING_INT] = sizeof(int),       [WF_SETTING_SIZE] = sizeof(size_t),
        [WF_SETTING_SEED] = sizeof(uint64_t), [WF_SETTING_REAL] = sizeof(double),
        [WF_SETTING_CHOICE] = sizeof(int),    [WF_SETTING_SWITCH] = sizeof(bool)};
    return sizes[type];
}

static void check_row(const wf_setting *row) {
    union {
        double number;
        uint64_t whole;
        const char *text;
    } value = {0}, again = {0};
    wf_setting alone = *row;
    char buffer[WF_SETTING_BUFFER];
    alone.offset = 0;
    if (row->help == NULL || strlen(row->help) < 3 || strchr(row->help, '\n') != NULL)
        fail_msg("%s has no line of help", row->meta);
    if (row->size != size_of_type(row->type)) fail_msg("%s has another size", row->meta);
    bool names = row->type == WF_SETTING_CHOICE || row->type == WF_SETTING_SWITCH;
    if (names != (row->names != NULL)) fail_msg("%s: names do not fit the type", row->meta);
    bool number = !names && row->type != WF_SETTING_TEXT && row->type != WF_SETTING_BOOL;
    if (number && !(row->low < row->high)) fail_msg("%s: an empty range", row->meta);
    if (row->type == WF_SETTING_INT && (row->low < -2147483648.0 || row->high > 2147483647.0))
        fail_msg("%s: a range beyond int", row->meta);
    if (!wf_setting_parse(&alone, row->text, &value)) fail_msg("%s: default", row->meta);
    if (!wf_setting_parse(&alone, wf_setting_text(&alone, &value, buffer), &again) ||
        !wf_setting_equal(&alone, &value, &again))
        fail_msg("%s: its default does not read back", row->meta);
    if (!wf_setting_parse(&alone, wf_setting_absent(row), &value))
        fail_msg("%s: before", row->meta);
}

static void tables_are_sound(void **state) {
    (void)state;
    const wf_setting *tables[] = {recipe_rows,         wf_data_settings(), wf_zoo_settings(),
                                  wf_field_settings(), wf_fit_settings(),  wf_sample_settings(),
                                  wf_eval_settings()};
    const wf_setting *all[512];
    int n = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const wf_setting *row = tables[t]; row->key != NULL; row++) {
            check_row(row);
            for (int i = 0; i < n; i++) {
                bool same_key = *row->key != '\0' && strcmp(all[i]->key, row->key) == 0 &&
                                strcmp(all[i]->section, row->section) == 0;
                if (same_key || strcmp(all[i]->meta, row->meta) == 0)
                    fail_msg("%s stands there twice", row->meta);
            }
            assert_true(n < 512);
            all[n++] = row;
        }
    assert_true(n > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold_all_columns), cmocka_unit_test(text_and_back),
        cmocka_unit_test(says_what_is_allowed),  cmocka_unit_test(checks_values),
        cmocka_unit_test(json_has_every_row),    cmocka_unit_test(numbers_ignore_the_locale),
        cmocka_unit_test(tables_are_sound),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
