/* Text in buffers of fixed size, and text as a terminal may show it. */
#include "wf_test.h"

#include "weft/text.h"

static void grows_to_the_end_of_its_buffer(void **state) {
    (void)state;
    struct {
        char text[8], guard[8];
    } b = {.guard = "guard"};
    wf_text text = wf_text_start(b.text, sizeof b.text);
    assert_true(wf_text_add(&text, "%s%d", "ab", 12));
    assert_true(wf_text_add(&text, "%s", "cde"));
    assert_int_equal(text.length, 7);
    assert_true(wf_text_add(&text, "%s", ""));
    assert_false(text.cut);
    assert_false(wf_text_add(&text, "%s", "f"));
    assert_true(text.cut);
    for (int i = 0; i < 1000; i++) assert_false(wf_text_add(&text, "%.1f,", 1e300));
    assert_string_equal(b.text, "ab12cde");
    assert_int_equal(text.length, 7);
    assert_string_equal(b.guard, "guard");
}

static void keeps_what_fits_and_nothing_later(void **state) {
    (void)state;
    char buffer[6];
    wf_text text = wf_text_start(buffer, sizeof buffer);
    assert_false(wf_text_add(&text, "%s", "0123456789"));
    assert_string_equal(buffer, "01234");
    text = wf_text_start(buffer, 1);
    assert_false(wf_text_add(&text, "x"));
    assert_string_equal(buffer, "");
    assert_false(wf_text_add(&text, "%s", ""));
}

/* The sign of plus and minus is two bytes, the arrow three. */
static void cuts_between_characters(void **state) {
    (void)state;
    char buffer[5];
    wf_text text = wf_text_start(buffer, sizeof buffer);
    wf_text_add(&text, "%s", "abc\u00b1");
    assert_string_equal(buffer, "abc");
    text = wf_text_start(buffer, sizeof buffer);
    wf_text_add(&text, "%s", "a\u2192\u2192");
    assert_string_equal(buffer, "a\u2192");
    text = wf_text_start(buffer, sizeof buffer);
    wf_text_add(&text, "%s", "ab\u2192");
    assert_string_equal(buffer, "ab");
    text = wf_text_start(buffer, sizeof buffer);
    wf_text_add(&text, "%s", "\xff\xff\xff\xff\xff");
    assert_string_equal(buffer, "\xff\xff\xff");
    assert_int_equal(text.length, strlen(buffer));
}

static const char *shown(const char *text, size_t size) {
    static char all[256];
    wf_text out = wf_text_start(all, sizeof all);
    while (size > 0) {
        char one[8];
        size_t step = wf_text_shown(text, size, one);
        assert_in_range(step, 1, size);
        wf_text_add(&out, "%s", one);
        text += step, size -= step;
    }
    return all;
}

static void shows_what_a_terminal_would_act_on(void **state) {
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain, 93 \u00b1 3 \u2192 \U0001f600\n\t", "plain, 93 \u00b1 3 \u2192 \U0001f600\n\t"},
        {"\x1b[2J\x1b]0;title\a", "\\u001b[2J\\u001b]0;title\\u0007"},
        {"over\rwritten\b\x7f", "over\\u000dwritten\\u0008\\u007f"},
        {"c1 \xc2\x9b"
         "31m",
         "c1 \\u009b31m"},
        {"raw \x9b"
         "31m \xff\xc2",
         "raw \\x9b31m \\xff\\xc2"},
        {"txt.\u202egnp\u2066\u200f", "txt.\\u202egnp\\u2066\\u200f"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(shown(cases[i].text, strlen(cases[i].text)), cases[i].shown);
    char one[8] = "x";
    assert_int_equal(wf_text_shown("a", 0, one), 0);
    assert_string_equal(one, "");
    assert_string_equal(shown("a\0b", 3), "a\\u0000b");
}

static void a_long_text_holds_everything(void **state) {
    (void)state;
    wf_long_text text = {0};
    for (int i = 0; i < 5000; i++) {
        assert_true(wf_long_text_add(&text, "%d,", i % 10));
        assert_true(wf_long_text_put(&text, "\0;", 2));
    }
    assert_true(wf_long_text_put(&text, NULL, 0));
    assert_int_equal(text.length, 20000);
    char *all = wf_long_text_end(&text);
    assert_non_null(all);
    for (size_t i = 0; i < 5000; i++)
        assert_memory_equal(all + 4 * i, ((char[]){(char)('0' + i % 10), ',', '\0', ';'}), 4);
    assert_int_equal(all[20000], 0);
    free(all);
    wf_long_text empty = {0};
    all = wf_long_text_end(&empty);
    assert_string_equal(all, "");
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_to_the_end_of_its_buffer),
        cmocka_unit_test(keeps_what_fits_and_nothing_later),
        cmocka_unit_test(cuts_between_characters),
        cmocka_unit_test(shows_what_a_terminal_would_act_on),
        cmocka_unit_test(a_long_text_holds_everything),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
