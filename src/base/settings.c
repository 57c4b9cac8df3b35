/* settings: see weft/settings.h. */
#include "weft/settings.h"
#include "weft/text.h"
#include "base/c_locale.h"
#include "base/settings_json.h"
#include "base/status.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const no_yes[] = {"no", "yes", NULL};
static const double most_exact = WF_MOST_EXACT;

static void *member(const wf_setting *row, const void *desc) {
    return (char *)(uintptr_t)desc + row->offset;
}

/* --- slips of the pen ------------------------------------------------------------------------- */

enum { longest_name = 64 };

/* Edits (change, insert, delete, swap of neighbours) that turn a into b; both at most
 * longest_name long. */
static int edit_distance(const char *a, const char *b) {
    int rows[3][longest_name + 1];
    int *before = rows[0], *last = rows[1], *row = rows[2];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++) last[j] = before[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            row[j] = best;
        }
        int *free_row = before;
        before = last, last = row, row = free_row;
    }
    return last[n];
}

const char *wf_nearest_name(const char *word, const char *const *names) {
    const char *best = NULL;
    int least = longest_name;
    for (; strlen(word) <= longest_name && *names != NULL; names++) {
        size_t length = strlen(*names);
        if (length > longest_name) continue;
        int distance = edit_distance(word, *names);
        if (distance > (int)(length + 2) / 3 || distance >= least) continue; /* too far */
        best = *names;
        least = distance;
    }
    return best;
}

/* --- from text -------------------------------------------------------------------------------- */

/* Digits as C has them: sign, digits with at most one point, exponent. No hex, inf, nan, spaces. */
static bool is_decimal(const char *text, bool whole) {
    if (*text == '+' || *text == '-') text++;
    size_t digits = strspn(text, "0123456789");
    text += digits;
    if (whole) return digits > 0 && *text == '\0';
    if (*text == '.') {
        size_t behind = strspn(++text, "0123456789");
        text += behind;
        digits += behind;
    }
    if (digits == 0) return false;
    if (*text == 'e' || *text == 'E') {
        text++;
        if (*text == '+' || *text == '-') text++;
        size_t power = strspn(text, "0123456789");
        if (power == 0) return false;
        text += power;
    }
    return *text == '\0';
}

static bool in_range(const wf_setting *row, double value) {
    bool low = row->above ? value > row->low : value >= row->low;
    bool high = row->below ? value < row->high : value <= row->high;
    return low && high && isfinite(value);
}

static bool find_name(const char *const *names, const char *text, int *out) {
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

bool wf_setting_parse(const wf_setting *row, const char *text, void *desc) {
    void *at = member(row, desc);
    int index;
    switch (row->type) {
    case WF_SETTING_TEXT:
        if (*text == '\0') text = row->text; /* empty takes the default back */
        *(const char **)at = *text == '\0' ? NULL : text;
        return true;
    case WF_SETTING_BOOL:
    case WF_SETTING_SWITCH:
        if (!find_name(no_yes, text, &index) &&
            (row->names == NULL || !find_name(row->names, text, &index)))
            return false;
        *(bool *)at = index == 1;
        return true;
    case WF_SETTING_CHOICE:
        if (!find_name(row->names, text, &index)) return false;
        *(int *)at = index;
        return true;
    default: break;
    }
    if (!is_decimal(text, row->type != WF_SETTING_REAL)) return false;
    if (row->type == WF_SETTING_SEED) { /* all 64 bits */
        errno = 0;
        uint64_t seed = strtoull(text, NULL, 10);
        if (*text == '-' || errno != 0) return false;
        *(uint64_t *)at = seed;
        return true;
    }
    double value = wf_c_strtod(text, NULL);
    if (!in_range(row, value)) return false;
    if (row->type == WF_SETTING_REAL) *(double *)at = value;
    else if (fabs(value) > most_exact) return false;
    else if (row->type == WF_SETTING_INT) *(int *)at = (int)value;
    else *(size_t *)at = (size_t)value;
    return true;
}

/* --- to text ---------------------------------------------------------------------------------- */

double wf__setting_number(const wf_setting *row, const void *desc) {
    const void *at = member(row, desc);
    switch (row->type) {
    case WF_SETTING_BOOL:
    case WF_SETTING_SWITCH: return *(const bool *)at;
    case WF_SETTING_INT:
    case WF_SETTING_CHOICE: return *(const int *)at;
    case WF_SETTING_SIZE: return (double)*(const size_t *)at;
    case WF_SETTING_SEED: return (double)*(const uint64_t *)at;
    case WF_SETTING_REAL: return *(const double *)at;
    case WF_SETTING_TEXT: break;
    }
    return 0;
}

/* The shortest decimal, of six digits at least, that reads back to the same number. */
static void real_text(double value, char buffer[WF_SETTING_BUFFER]) {
    locale_t before = wf_c_locale_enter();
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buffer, WF_SETTING_BUFFER, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) break;
    }
    wf_c_locale_leave(before);
}

static int count_names(const wf_setting *row) {
    int count = 0;
    while (row->names[count] != NULL) count++;
    return count;
}

const char *wf_setting_text(const wf_setting *row, const void *desc,
                            char buffer[WF_SETTING_BUFFER]) {
    const void *at = member(row, desc);
    switch (row->type) {
    case WF_SETTING_TEXT: {
        const char *text = *(const char *const *)at;
        return text == NULL ? "" : text;
    }
    case WF_SETTING_BOOL: return no_yes[*(const bool *)at];
    case WF_SETTING_SWITCH: return row->names[*(const bool *)at];
    case WF_SETTING_CHOICE:
        if (*(const unsigned *)at < (unsigned)count_names(row)) return row->names[*(const int *)at];
        snprintf(buffer, WF_SETTING_BUFFER, "number %d", *(const int *)at);
        break;
    case WF_SETTING_INT: snprintf(buffer, WF_SETTING_BUFFER, "%d", *(const int *)at); break;
    case WF_SETTING_SIZE: snprintf(buffer, WF_SETTING_BUFFER, "%zu", *(const size_t *)at); break;
    case WF_SETTING_SEED:
        snprintf(buffer, WF_SETTING_BUFFER, "%" PRIu64, *(const uint64_t *)at);
        break;
    case WF_SETTING_REAL: real_text(*(const double *)at, buffer); break;
    }
    return buffer;
}

const char *wf_setting_absent(const wf_setting *row) {
    return row->before != NULL ? row->before : row->text;
}

bool wf_setting_equal(const wf_setting *row, const void *a, const void *b) {
    if (row->type != WF_SETTING_TEXT) return memcmp(member(row, a), member(row, b), row->size) == 0;
    char none[WF_SETTING_BUFFER];
    return strcmp(wf_setting_text(row, a, none), wf_setting_text(row, b, none)) == 0;
}

bool wf_setting_same(const wf_setting *row, const char *a, const char *b) {
    wf_setting alone = *row;
    alone.offset = 0;
    union {
        double number;
        const char *text;
        uint64_t whole;
    } left = {0}, right = {0};
    return wf_setting_parse(&alone, a, &left) && wf_setting_parse(&alone, b, &right) &&
           wf_setting_equal(&alone, &left, &right);
}

void wf_setting_allowed(const wf_setting *row, char *out, size_t size) {
    const char *const *names = row->type == WF_SETTING_BOOL ? no_yes : row->names;
    wf_text text = wf_text_start(out, size);
    if (names != NULL) {
        for (int i = 0; names[i] != NULL; i++)
            wf_text_add(&text, "%s%s", i > 0 ? ", " : "", names[i]);
        return;
    }
    if (row->type == WF_SETTING_TEXT) {
        snprintf(out, size, "any text");
        return;
    }
    const char *kind = row->type == WF_SETTING_REAL ? "a number" : "a whole number";
    const char *from = row->above ? "above" : "from", *to = row->below ? "below" : "to";
    locale_t before = wf_c_locale_enter();
    if (isfinite(row->low) && isfinite(row->high))
        snprintf(out, size, "%s %s %.16g%s %s %.16g", kind, from, row->low,
                 row->above ? " and" : "", row->above && !row->below ? "up to" : to, row->high);
    else if (isfinite(row->low))
        snprintf(out, size, "%s %s %.16g%s", kind, from, row->low, row->above ? "" : " up");
    else snprintf(out, size, "%s", kind);
    wf_c_locale_leave(before);
}

/* --- tables ----------------------------------------------------------------------------------- */

void wf_settings_default(const wf_setting *rows, void *desc) {
    for (; rows->key != NULL; rows++) {
        bool good = wf_setting_parse(rows, rows->text, desc);
        assert(good && "a table's default is outside its range");
        (void)good;
    }
}

const wf_setting *wf_settings_find(const wf_setting *rows, const char *key) {
    for (; rows->key != NULL; rows++)
        if (strcmp(rows->key, key) == 0) return rows;
    return NULL;
}

wf_status wf_settings_set(wf_ctx *ctx, const wf_setting *rows, const char *key, const char *text,
                          void *desc) {
    const wf_setting *row = wf_settings_find(rows, key);
    char allowed[512];
    if (row == NULL) {
        const char *names[256] = {NULL};
        for (int i = 0; rows[i].key != NULL && i < 255; i++) names[i] = rows[i].key;
        const char *near = wf_nearest_name(key, names);
        return wf_fail(ctx, WF_ERR_USAGE, "[%s] has no setting \"%.64s\"%s%s%s", rows->section, key,
                       near != NULL ? "; did you mean \"" : "", near != NULL ? near : "",
                       near != NULL ? "\"?" : "");
    }
    if (wf_setting_parse(row, text, desc)) return WF_OK;
    wf_setting_allowed(row, allowed, sizeof allowed);
    return wf_fail(ctx, WF_ERR_USAGE, "%s.%s is \"%.80s\"; allowed is %s", row->section, row->key,
                   text, allowed);
}

wf_status wf_settings_check(wf_ctx *ctx, const wf_setting *rows, const void *desc) {
    for (; rows->key != NULL; rows++) {
        double value = wf__setting_number(rows, desc);
        bool number = rows->type != WF_SETTING_TEXT && rows->names == NULL;
        bool good =
            number ? in_range(rows, value)
                   : rows->type != WF_SETTING_CHOICE || (value >= 0 && value < count_names(rows));
        if (good) continue;
        char buffer[WF_SETTING_BUFFER], allowed[512];
        wf_setting_allowed(rows, allowed, sizeof allowed);
        bool named = *rows->key != '\0'; /* in recipes */
        return wf_fail(ctx, WF_ERR_USAGE, "%s%s%s is %s; allowed is %s", named ? rows->section : "",
                       named ? "." : "", named ? rows->key : rows->meta,
                       wf_setting_text(rows, desc, buffer), allowed);
    }
    return WF_OK;
}
