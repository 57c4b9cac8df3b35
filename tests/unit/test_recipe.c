/* The recipe reader: values, overrides, and a sentence with file and line for every mistake. */
#include "comma_locale.h"
#include "failing_malloc.h"
#include "weft/data.h"
#include "weft/settings.h"
#include "one_setting.h"
#include "ctx_fixture.h"

#include <limits.h>
#include <unistd.h>

static wf_recipe *parse(const char *text) {
    wf_recipe *recipe = NULL;
    assert_ok(ctx, wf_recipe_parse(ctx, "r.conf", text, strlen(text), &recipe));
    return recipe;
}

static const char *string_of(wf_recipe *recipe, const char *section, const char *key) {
    const char *value = NULL;
    assert_ok(ctx, wf_recipe_string(ctx, recipe, section, key, &value));
    return value;
}

static void reads_values(void **state) {
    (void)state;
    wf_recipe *recipe = parse("\xef\xbb\xbf# a recipe\r\n"
                              "\n"
                              "[ zoo ]   # networks\r\n"
                              "arch=64-16-8-10    # one line, one setting\n"
                              "\t name =  two  words \t# \"x\"\n"
                              "tag = a#b = c\n"
                              "quoted = \"a # \\\"b\\\" \\\\\"\t# why\n"
                              "empty = \"\"\r\n"
                              "inner = it's \"so\"\n"
                              "[flow]\n"
                              "rate = -1.5e-3\n"
                              "half = .5\n"
                              "whole = 7.\n"
                              "count = +42\n"
                              "least = -2147483648\n"
                              "on = yes\n"
                              "off = no\n"
                              "solver = heun");
    assert_string_equal(string_of(recipe, "zoo", "arch"), "64-16-8-10");
    assert_string_equal(string_of(recipe, "zoo", "name"), "two  words");
    assert_string_equal(string_of(recipe, "zoo", "tag"), "a#b = c");
    assert_string_equal(string_of(recipe, "zoo", "quoted"), "a # \"b\" \\");
    assert_string_equal(string_of(recipe, "zoo", "empty"), "");
    assert_string_equal(string_of(recipe, "zoo", "inner"), "it's \"so\"");
    assert_null(string_of(recipe, "zoo", "rate"));
    assert_null(string_of(recipe, "none", "rate"));
    double real = 9;
    assert_ok(ctx, ask_real(ctx, recipe, "flow", "rate", -1, 1, &real));
    assert_true(real == -1.5e-3);
    assert_ok(ctx, ask_real(ctx, recipe, "flow", "half", 0.5, 0.5, &real));
    assert_true(real == 0.5);
    assert_ok(ctx, ask_real(ctx, recipe, "flow", "whole", -INFINITY, INFINITY, &real));
    assert_true(real == 7);
    assert_ok(ctx, ask_real(ctx, recipe, "flow", "absent", 0, 1, &real));
    assert_true(real == 7);
    int whole = 5;
    assert_ok(ctx, ask_int(ctx, recipe, "flow", "count", 0, 42, &whole));
    assert_int_equal(whole, 42);
    assert_ok(ctx, ask_int(ctx, recipe, "flow", "least", INT_MIN, INT_MAX, &whole));
    assert_true(whole == INT_MIN);
    assert_ok(ctx, ask_int(ctx, recipe, "flow", "absent", 0, 1, &whole));
    assert_true(whole == INT_MIN);
    bool on = false, off = true, absent = true;
    assert_ok(ctx, ask_bool(ctx, recipe, "flow", "on", &on));
    assert_ok(ctx, ask_bool(ctx, recipe, "flow", "off", &off));
    assert_ok(ctx, ask_bool(ctx, recipe, "flow", "absent", &absent));
    assert_true(on && !off && absent);
    static const char *const solvers[] = {"euler", "heun", NULL};
    int solver = 0;
    assert_ok(ctx, ask_choice(ctx, recipe, "flow", "solver", solvers, &solver));
    assert_int_equal(solver, 1);
    assert_true(wf_recipe_has(recipe, "zoo", "arch"));
    assert_false(wf_recipe_has(recipe, "flow", "arch"));
    assert_false(wf_recipe_has(recipe, "eval", "arch"));
    assert_true(wf_recipe_has_section(recipe, "flow"));
    assert_false(wf_recipe_has_section(recipe, "flo"));
    assert_ok(ctx, wf_recipe_finish(ctx, recipe));
    wf_recipe_free(recipe);
}

/* --- mistakes in the text --------------------------------------------------------------------- */

#define LONG_NAME "a123456789b123456789c123456789d123456789e123456789f123456789g1234"

static void refuses_bad_text(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size; /* 0: strlen */
        const char *words;
    } cases[] = {
        {"count = 3\n", 0, "r.conf:1: \"count\" stands before the first [section]"},
        {"[zoo]\ncount\n", 0, "r.conf:2: \"count\" is neither a [section] nor a \"key = value\""},
        {"[zoo]\n\n= 3\n", 0, "r.conf:3: \"\" is no key"},
        {"[zoo]\na b = 3\n", 0, "r.conf:2: \"a b\" is no key"},
        {"[zoo]\na.b = 3\n", 0, "\"a.b\" is no key"},
        {"[zoo]\n\xc3\xa9 = 3\n", 0, "is no key"},
        {"[zoo]\n" LONG_NAME " = 3\n", 0, "is no key"},
        {"[zoo]\na =\n", 0, "r.conf:2: the key has no value; write \"\""},
        {"[zoo]\na = # why\n", 0, "r.conf:2: the key has no value"},
        {"[zoo]\na =#b\n", 0, "r.conf:2: the key has no value"},
        {"[zoo]\na = 1\nb = 2\na = 1\n", 0, "r.conf:4: a was set in line 2 already"},
        {"[zoo]\na = 1\n[flow]\n[zoo]\n", 0, "r.conf:4: section [zoo] was begun in line 1"},
        {"[zoo\n", 0, "r.conf:1: the section lacks its ']'"},
        {"[]\n", 0, "r.conf:1: \"\" is no section name"},
        {"[a b]\n", 0, "r.conf:1: \"a b\" is no section name"},
        {"[" LONG_NAME "]\n", 0, "is no section name"},
        {"[zoo] count = 1\n", 0, "r.conf:1: only a comment may stand after [zoo]"},
        {"[[zoo]]\n", 0, "only a comment may stand after"},
        {"[zoo]\na = \"b\n", 0, "r.conf:2: the value lacks its closing quote"},
        {"[zoo]\na = \"b\\\"\n", 0, "r.conf:2: the value lacks its closing quote"},
        {"[zoo]\na = \"b\\n\"\n", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\\", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\\x0\"\n", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\\x00\"\n", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\\x41\"\n", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\\xff\"\n", 0, "r.conf:2: in quotes, \\ stands before"},
        {"[zoo]\na = \"b\" c\n", 0, "r.conf:2: \"c\" stands after the closing quote"},
        {"[zoo]\na = \"b\"# c\n", 0, "stands after the closing quote"},
        {"[zoo]\na = \x01\n", 0, "r.conf:2: control character 0x01 at column 5"},
        {"[zoo]\na = b\rc = d\n", 0, "r.conf:2: control character 0x0d at column 6"},
        {"[zoo]\na = b\0c\n", 13, "r.conf:2: control character 0x00 at column 6"},
        {"[zoo]\na = \x7f\n", 0, "control character 0x7f"},
        {"[zoo]\na = \xff\n", 0, "r.conf:2: not UTF-8 at column 5"},
        {"[zoo]\n# \xc0\xaf\n", 0, "r.conf:2: not UTF-8 at column 3"},
        {"[zoo]\na = \xed\xa0\x80\n", 0, "r.conf:2: not UTF-8"},
        {"\xfe\xff", 0, "r.conf:1: not UTF-8 at column 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size = cases[i].size != 0 ? cases[i].size : strlen(cases[i].text);
        wf_recipe *recipe = (wf_recipe *)&cases;
        assert_fails(ctx, wf_recipe_parse(ctx, "r.conf", cases[i].text, size, &recipe),
                     WF_ERR_INPUT, cases[i].words);
        assert_null(recipe);
    }
}

static void refuses_large_text(void **state) {
    (void)state;
    enum { size = (1 << 20) + 1 };
    char *text = malloc(size);
    memset(text, '\n', size);
    wf_recipe *recipe;
    assert_fails(ctx, wf_recipe_parse(ctx, "r.conf", text, size, &recipe), WF_ERR_INPUT,
                 "too many for a recipe");
    assert_ok(ctx, wf_recipe_parse(ctx, "r.conf", text, size - 1, &recipe));
    wf_recipe_free(recipe);
    int used = sprintf(text, "[zoo]\n");
    for (int i = 0; i < 5000; i++) used += sprintf(text + used, "k%d = 1\n", i);
    assert_fails(ctx, wf_recipe_parse(ctx, "r.conf", text, (size_t)used, &recipe), WF_ERR_INPUT,
                 "more than 4096 settings");
    free(text);
}

static void files(void **state) {
    (void)state;
    char path[] = "/tmp/weft_recipe_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "[a]\nb = 1\nb = 2\n", 16) == 16);
    close(fd);
    wf_recipe *recipe;
    char words[64];
    snprintf(words, sizeof words, "%s:3: b was set in line 2", path);
    assert_fails(ctx, wf_recipe_open(ctx, path, &recipe), WF_ERR_INPUT, words);
    unlink(path);
    assert_fails(ctx, wf_recipe_open(ctx, path, &recipe), WF_ERR_INPUT, "No such file");
    assert_null(recipe);
    assert_fails(ctx, wf_recipe_open(ctx, "/", &recipe), WF_ERR_INPUT, "Is a directory");
}

/* --- mistakes in values ----------------------------------------------------------------------- */

static void refuses_bad_numbers(void **state) {
    (void)state;
    static const char *const not_numbers[] = {
        "x",      "1x",  "0x10",  "inf",  "-inf", "nan",  "NAN", "infinity", "1e999",
        "-1e999", "1,5", "1_000", "1 2",  "--1",  "+",    "-",   ".",        "e5",
        "1e",     "1e+", "1.2.3", "\"\"", "1e5x", "1.5f", "0b1", "1e5.0"};
    static const char *const not_whole[] = {"1.0",
                                            "1e3",
                                            "9223372036854775808",
                                            "0x1",
                                            "1 000",
                                            "-9223372036854775809",
                                            "99999999999999999999"};
    for (size_t i = 0; i < sizeof not_numbers / sizeof *not_numbers; i++) {
        char text[64];
        snprintf(text, sizeof text, "[f]\n\nrate = %s\n", not_numbers[i]);
        wf_recipe *recipe = parse(text);
        double real = 3;
        int whole = 3;
        assert_fails(ctx, ask_real(ctx, recipe, "f", "rate", -INFINITY, INFINITY, &real),
                     WF_ERR_INPUT, "r.conf:3: [f] rate is \"");
        assert_fails(ctx, ask_int(ctx, recipe, "f", "rate", 0, 9, &whole), WF_ERR_INPUT,
                     "allowed is a whole number from 0 to 9");
        assert_true(real == 3 && whole == 3);
        wf_recipe_free(recipe);
    }
    for (size_t i = 0; i < sizeof not_whole / sizeof *not_whole; i++) {
        char text[64];
        snprintf(text, sizeof text, "[f]\nn = %s\n", not_whole[i]);
        wf_recipe *recipe = parse(text);
        int whole = 3;
        assert_fails(ctx, ask_int(ctx, recipe, "f", "n", INT_MIN, INT_MAX, &whole), WF_ERR_INPUT,
                     "r.conf:2: [f] n is \"");
        assert_true(whole == 3);
        wf_recipe_free(recipe);
    }
}

static void says_what_is_allowed(void **state) {
    (void)state;
    wf_recipe *recipe = parse("[f]\na = 2.5\nb = 7\nc = Yes\nd = huen\ne = zzzzzz\n");
    double real;
    int whole;
    bool flag = false;
    int choice = 0;
    static const char *const names[] = {"euler", "heun", "rk4", NULL};
    assert_fails(ctx, ask_real(ctx, recipe, "f", "a", 0, 1, &real), WF_ERR_INPUT,
                 "r.conf:2: [f] a is \"2.5\"; allowed is a number from 0 to 1");
    assert_fails(ctx, ask_real(ctx, recipe, "f", "a", 3, INFINITY, &real), WF_ERR_INPUT,
                 "allowed is a number from 3 up");
    assert_fails(ctx, ask_int(ctx, recipe, "f", "b", 1, 6, &whole), WF_ERR_INPUT,
                 "r.conf:3: [f] b is \"7\"; allowed is a whole number from 1 to 6");
    assert_fails(ctx, ask_int(ctx, recipe, "f", "b", 8, INFINITY, &whole), WF_ERR_INPUT,
                 "allowed is a whole number from 8 up");
    assert_fails(ctx, ask_bool(ctx, recipe, "f", "c", &flag), WF_ERR_INPUT,
                 "r.conf:4: [f] c is \"Yes\"; allowed is no, yes");
    assert_fails(ctx, ask_choice(ctx, recipe, "f", "d", names, &choice), WF_ERR_INPUT,
                 "allowed is euler, heun, rk4 (did you mean heun?)");
    assert_fails(ctx, ask_choice(ctx, recipe, "f", "e", names, &choice), WF_ERR_INPUT,
                 "\"zzzzzz\"; allowed is euler, heun, rk4");
    assert_null(strstr(wf_last_error(ctx), "did you mean"));
    wf_recipe_free(recipe);
}

/* Where a comma is the decimal point, recipes still have a point. */
static void numbers_ignore_the_locale(void **state) {
    (void)state;
    bool comma = comma_locale_begin();
    wf_recipe *recipe = parse("[f]\na = 2.5\nb = 2,5\n");
    double real = 0;
    wf_status status = ask_real(ctx, recipe, "f", "a", 0, 3, &real);
    wf_status refused = ask_real(ctx, recipe, "f", "b", 0, 3, &real);
    comma_locale_end();
    assert_int_equal(status, WF_OK);
    assert_int_equal(refused, WF_ERR_INPUT);
    assert_true(real == 2.5);
    wf_recipe_free(recipe);
    if (!comma) skip("no localedef");
}

/* --- keys nobody asked for -------------------------------------------------------------------- */

static void finish_refuses(const char *text, const char *override, wf_status status,
                           const char *words) {
    wf_recipe *recipe = parse(text);
    if (override != NULL) assert_ok(ctx, wf_recipe_override(ctx, recipe, override));
    string_of(recipe, "zoo", "count");
    string_of(recipe, "zoo", "epochs");
    string_of(recipe, "zoo", "learning_rate");
    string_of(recipe, "flow", "updates");
    string_of(recipe, "flow", "solver");
    assert_fails(ctx, wf_recipe_finish(ctx, recipe), status, words);
    wf_recipe_free(recipe);
}

static void finish_names_the_nearest(void **state) {
    (void)state;
    finish_refuses("[zoo]\ncount = 1\nepohcs = 2\n", NULL, WF_ERR_INPUT,
                   "r.conf:3: [zoo] has no key \"epohcs\"; did you mean \"epochs\"?");
    finish_refuses("[zoo]\nlearning-rate = 1\n", NULL, WF_ERR_INPUT,
                   "r.conf:2: [zoo] has no key \"learning-rate\"; did you mean \"learning_rate\"?");
    finish_refuses("[zoo]\nqqqq = 1\n", NULL, WF_ERR_INPUT,
                   "r.conf:2: [zoo] has no key \"qqqq\"; it has count, epochs, learning_rate");
    finish_refuses("[zoo]\nupdates = 1\n", NULL, WF_ERR_INPUT,
                   "r.conf:2: [zoo] has no key \"updates\"; it belongs to [flow]");
    finish_refuses("[zoo]\n\n[flwo]\nupdates = 3\n", NULL, WF_ERR_INPUT,
                   "r.conf:3: unknown section [flwo]; did you mean [flow]?");
    finish_refuses("[something]\n", NULL, WF_ERR_INPUT,
                   "r.conf:1: unknown section [something]; known here: zoo, flow");
    finish_refuses("", "zoo.cuont=3", WF_ERR_USAGE,
                   "override zoo.cuont: [zoo] has no key \"cuont\"; did you mean \"count\"?");
    finish_refuses("", "zo.count=3", WF_ERR_USAGE, "unknown section [zo]; did you mean [zoo]?");
}

/* --- overrides and text ----------------------------------------------------------------------- */

/* Whatever a file may be called reads back as it was; what is not UTF-8 is refused. */
static void any_path_reads_back(void **state) {
    (void)state;
    static const char *const paths[] = {
        "plain", "a b",       "a\"b", "\"",           "a # b",  "#a", " a ",      "a\\b",   "a\\",
        "a\nb",  "\n[zoo]\n", "a\r",  "\001\033\177", "a\tb\t", "",   "\xc3\xa9", "a\\x0ab"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *quoted, text[200];
        assert_ok(ctx, wf_recipe_quote(ctx, paths[i], &quoted));
        snprintf(text, sizeof text, "[zoo]\npath = %s\nlast = 1\n", quoted);
        wf_recipe *recipe = parse(text);
        assert_string_equal(string_of(recipe, "zoo", "path"), paths[i]);
        assert_string_equal(string_of(recipe, "zoo", "last"), "1");
        assert_ok(ctx, wf_recipe_set(ctx, recipe, "zoo", "path", paths[i]));
        char *whole = wf_recipe_text(recipe);
        wf_recipe *again = parse(whole);
        assert_string_equal(string_of(again, "zoo", "path"), paths[i]);
        wf_recipe_free(again);
        wf_recipe_free(recipe);
        free(whole);
        wf_free(quoted);
    }
    char *none;
    assert_fails(ctx, wf_recipe_quote(ctx, "a\xff", &none), WF_ERR_USAGE, "is not UTF-8");
    assert_null(none);
}

static void overrides_replace_and_add(void **state) {
    (void)state;
    wf_recipe *recipe = parse("[zoo]\ncount = 5\n[flow]\nrate = 1\n");
    const char *old = string_of(recipe, "zoo", "count");
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "zoo.count=10"));
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "zoo.count = 11"));
    assert_ok(ctx, wf_recipe_override(ctx, recipe, " zoo . note = a # b "));
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "zoo.quote=\" a \\\" \""));
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "eval.none="));
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "eval.pair=a=b"));
    assert_string_equal(old, "5");
    assert_string_equal(string_of(recipe, "zoo", "count"), "11");
    assert_string_equal(string_of(recipe, "zoo", "note"), "a # b");
    assert_string_equal(string_of(recipe, "zoo", "quote"), " a \" ");
    assert_string_equal(string_of(recipe, "eval", "none"), "");
    assert_string_equal(string_of(recipe, "eval", "pair"), "a=b");
    char *text = wf_recipe_text(recipe);
    assert_string_equal(text, "[zoo]\ncount = 11\nnote = \"a # b\"\nquote = \" a \\\" \"\n\n"
                              "[flow]\nrate = 1\n\n[eval]\nnone = \"\"\npair = a=b\n");
    wf_recipe *again = parse(text);
    char *same = wf_recipe_text(again);
    assert_string_equal(text, same);
    assert_string_equal(string_of(again, "zoo", "quote"), " a \" ");
    free(text);
    free(same);
    wf_recipe_free(again);
    int whole = 0;
    assert_ok(ctx, wf_recipe_override(ctx, recipe, "zoo.count=many"));
    assert_fails(ctx, ask_int(ctx, recipe, "zoo", "count", 1, 9, &whole), WF_ERR_USAGE,
                 "override zoo.count is \"many\"; allowed is a whole number from 1 to 9");
    wf_recipe_free(recipe);
}

static void refuses_bad_overrides(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "write it as section.key=value"},
        {"zoo", "write it as section.key=value"},
        {"zoo.count", "write it as section.key=value"},
        {"count=3", "write it as section.key=value"},
        {"count=3.5", "write it as section.key=value"},
        {".count=3", "make a section and a key"},
        {"zoo.=3", "make a section and a key"},
        {"zoo.a.b=3", "make a section and a key"},
        {"zoo.count=1\n[flow]", "control character 0x0a"},
        {"zoo.count=\xff", "not UTF-8"},
        {"zoo.count=\"a", "lacks its closing quote"},
        {"zoo.count=\"a\"b", "stands after the closing quote"},
        {"zoo.count=\"a\" # b", "stands after the closing quote"},
    };
    wf_recipe *recipe = parse("[zoo]\ncount = 5\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(ctx, wf_recipe_override(ctx, recipe, cases[i][0]), WF_ERR_USAGE, cases[i][1]);
    assert_string_equal(string_of(recipe, "zoo", "count"), "5");
    wf_recipe_free(recipe);
}

/* --- memory ----------------------------------------------------------------------------------- */

static wf_status use_recipe(wf_ctx *with, void *path) {
    wf_recipe *recipe = NULL;
    wf_status status = wf_recipe_open(with, path, &recipe);
    const char *text = NULL;
    double real = 0;
    if (status == WF_OK) status = wf_recipe_override(with, recipe, "new.key=\"x\"");
    if (status == WF_OK) status = wf_recipe_override(with, recipe, "a.b=2");
    if (status == WF_OK) status = wf_recipe_string(with, recipe, "a", "c", &text);
    if (status == WF_OK) status = wf_recipe_string(with, recipe, "new", "key", &text);
    if (status == WF_OK) status = ask_real(with, recipe, "a", "b", 0, 5, &real);
    if (status == WF_OK) status = wf_recipe_finish(with, recipe);
    char *whole = status == WF_OK ? wf_recipe_text(recipe) : NULL;
    if (status == WF_OK && whole == NULL) status = WF_ERR_MEMORY;
    if (whole != NULL && strcmp(whole, "[a]\nb = 2\nc = q\n\n[new]\nkey = x\n") != 0)
        status = WF_ERR_FAILED; /* a part of it would be worse than nothing */
    free(whole);
    wf_recipe_free(recipe);
    return status;
}

/* Options as bindings give them: all of them, or a failure; never another number or text. */
static wf_status use_options(wf_ctx *with, void *unused) {
    (void)unused;
    void *made;
    static const char options[] = "{\"name\": \"a name of more than sixteen letters\", "
                                  "\"rows\": 123456789, \"noise\": 0.12345678901234567, "
                                  "\"drop\": [\"a\", 3]}";
    wf_status status = wf_settings_create(with, wf_data_settings(), options, &made);
    if (status != WF_OK) return status;
    const wf_data_desc *data = made;
    bool whole = strcmp(data->name, "a name of more than sixteen letters") == 0 &&
                 data->rows == 123456789 && data->noise == 0.12345678901234567 &&
                 strcmp(data->drop, "a, 3") == 0;
    wf_free(made);
    return whole ? WF_OK : WF_ERR_FAILED;
}

static void options_survive_lack_of_memory(void **state) {
    (void)state;
    fail_every_allocation(ctx, "options", use_options, NULL);
}

static void survives_lack_of_memory(void **state) {
    (void)state;
    char path[] = "/tmp/weft_recipe_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "[a]\nb = 1\nc = \"q\"\n", 18) == 18);
    close(fd);
    fail_every_allocation(ctx, "recipe", use_recipe, path);
    unlink(path);
}

/* A text that is larger than any buffer is whole, or a failure, too. */
enum { long_keys = 40, long_value = 900 };

static wf_status use_long_recipe(wf_ctx *with, void *path) {
    wf_recipe *recipe;
    wf_status status = wf_recipe_open(with, path, &recipe);
    if (status != WF_OK) return status;
    char *text = wf_recipe_text(recipe);
    if (text == NULL) status = WF_ERR_MEMORY;
    else
        assert_int_equal(strlen(text),
                         strlen("[a]\n") + long_keys * (strlen("k00 = \n") + long_value));
    free(text);
    wf_recipe_free(recipe);
    return status;
}

static void long_texts_survive_lack_of_memory(void **state) {
    (void)state;
    char path[] = "/tmp/weft_recipe_XXXXXX";
    int fd = mkstemp(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    assert_non_null(file);
    fputs("[a]\n", file);
    for (int i = 0; i < long_keys; i++) fprintf(file, "k%02d = %0*d\n", i, long_value, i);
    fclose(file);
    fail_every_allocation(ctx, "long recipe", use_long_recipe, path);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),
        cmocka_unit_test(refuses_bad_text),
        cmocka_unit_test(refuses_large_text),
        cmocka_unit_test(files),
        cmocka_unit_test(refuses_bad_numbers),
        cmocka_unit_test(says_what_is_allowed),
        cmocka_unit_test(numbers_ignore_the_locale),
        cmocka_unit_test(finish_names_the_nearest),
        cmocka_unit_test(any_path_reads_back),
        cmocka_unit_test(overrides_replace_and_add),
        cmocka_unit_test(refuses_bad_overrides),
        cmocka_unit_test(options_survive_lack_of_memory),
        cmocka_unit_test(survives_lack_of_memory),
        cmocka_unit_test(long_texts_survive_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
